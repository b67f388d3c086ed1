//! The memory that `rdma_bw` and `rdma_lat` send and receive, in their tables and documents.

use serde_json::Value;

use super::{ends, fake_gpus, finish, right, run_both, start_both};

/// Rank 0's output of a run on pinned memory; `None` where there are no cables.
fn measure_pinned(args: &str) -> Option<String> {
    let ends = ends()?;
    let settings = fake_gpus()?;
    let args = format!("{args} --memory pinned");
    let run = right(finish(start_both(ends, &args, &settings)), &args);
    Some(run.stdout)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn pinned_memory_is_sent_and_received_with_every_verb() {
    for verb in ["write", "read", "send"] {
        let args = format!("--verb {verb} -n 20 -w 5");
        // Inline, and not.
        let bandwidth = format!("rdma_bw {args} -b 100 -e 40000 -f 400 --bidirectional --json");
        let Some(text) = measure_pinned(&bandwidth) else {
            return;
        };
        let seen = json(&text);
        assert_eq!(seen["memory"], "pinned");
        let row = |row: &Value| [&row["bytes"], &row["wrong"]].map(|it| it.as_u64().unwrap());
        let rows: Vec<_> = seen["rows"].as_array().unwrap().iter().map(row).collect();
        assert_eq!(rows, [[100, 0], [40_000, 0]], "{verb}");

        let text = measure_pinned(&format!("rdma_lat {args} -b 1 -e 5000 -f 5000")).unwrap();
        let first = text.lines().next().unwrap();
        assert!(
            first.starts_with("# ") && first.ends_with(", pinned memory"),
            "{text}"
        );
        let rows: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(rows.len(), 4, "{text}");
        assert!(rows.iter().all(|row| row.ends_with(" 0")), "{text}");
    }
}

#[test]
fn documents_have_the_rails_the_memory_and_a_row_for_each_size() {
    let Some(ends) = ends() else { return };
    let measure = |args: &str| json(&right(run_both(ends, args), args).stdout);
    let seen = measure("rdma_bw --json --rails each -b 100 -e 40000 -f 400 -n 20 -w 0");
    assert_eq!(seen["memory"], "host");
    assert_eq!(
        seen["what"],
        "write, one way, 128 requests in flight on a rail"
    );
    let rails = seen["rails"].as_array().unwrap();
    let names = [("rxe0a:1", "rxe0b:1"), ("rxe1a:1", "rxe1b:1")];
    assert_eq!(rails.len(), names.len());
    for (rail, (own, peer)) in rails.iter().zip(names) {
        let ends = [&rail["ends"][0], &rail["ends"][1]].map(|end| end.as_str().unwrap());
        assert!(
            ends[0].starts_with(own) && ends[1].starts_with(peer),
            "{ends:?}"
        );
        assert_eq!(rail["round_trip_us"], Value::Null);
    }
    let rows = seen["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for (index, row) in rows.iter().enumerate() {
        let used = [vec![0], vec![1], vec![0, 1]][index / 2].clone();
        assert_eq!(row["rails"], Value::from(used));
        assert_eq!(row["bytes"], [100, 40_000][index % 2]);
        let carried = row["carried"].as_array().unwrap();
        let carried = carried.iter().map(|it| it.as_u64().unwrap());
        assert_eq!((carried.sum::<u64>(), &row["wrong"]), (20, &0.into()));
        assert!(row["gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }

    let seen = measure("rdma_lat --json -b 1 -e 5000 -f 5000 -n 50");
    assert_eq!(seen["memory"], "host");
    let rows = seen["rows"].as_array().unwrap();
    let places = rows
        .iter()
        .map(|row| [&row["bytes"], &row["rail"]].map(|it| it.as_u64().unwrap()));
    assert_eq!(
        places.collect::<Vec<_>>(),
        [[1, 0], [1, 1], [5000, 0], [5000, 1]]
    );
    for row in rows {
        assert_eq!((&row["iterations"], &row["wrong"]), (&50.into(), &0.into()));
        let times =
            ["min_us", "median_us", "p99_us", "max_us"].map(|name| row[name].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
    }
}

/// CUDA's driver is nowhere.
#[test]
fn both_ranks_hear_that_there_is_no_pinned_memory() {
    let Some(ends) = ends() else { return };
    for run in run_both(ends, "rdma_bw --memory pinned") {
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        let said = "has no memory for --memory pinned: CUDA's driver was not found";
        assert!(run.stderr.contains(said), "{}", run.stderr);
        assert_eq!(run.stdout, "");
    }
}
