//! RDMA between two ranks, and its absence.

mod memory;
mod staged;

use std::process::Child;

use spark_ccl_testing::{Need, found, free_port, has};

use crate::program::{Run, command, run};

/// The devices of two ranks that are connected by cables; `None` if the rails are laid out
/// differently.
fn ends() -> Option<[&'static str; 2]> {
    let layout = std::env::var("RAILS").unwrap_or_default();
    let probed = match layout.as_str() {
        "wire" => Ok(["rxe0a,rxe1a", "rxe0b,rxe1b"]),
        _ => Err(format!("RAILS={layout} is not wire")),
    };
    found(Need::Cables, probed)
}

/// The variables that give ranks a fake GPU. `ends` has found the cables before.
fn fake_gpus() -> Option<Vec<(&'static str, String)>> {
    let folder =
        has(Need::FakeGpuLibrary).then(|| std::env::var("SPARK_CCL_TEST_FAKE_GPUS").unwrap())?;
    Some(vec![
        ("LD_LIBRARY_PATH", folder),
        ("FAKE_GPUS", "1".to_owned()),
    ])
}

/// Runs both ranks, each with its devices.
fn run_both(devices: [&str; 2], args: &str) -> [Run; 2] {
    finish(start_both(devices, args, &[]))
}

/// Starts both ranks, with these settings as well.
fn start_both(devices: [&str; 2], args: &str, settings: &[(&str, String)]) -> [Child; 2] {
    let port = free_port();
    let args: Vec<&str> = args.split_whitespace().collect();
    [0, 1].map(|rank| {
        command(&args)
            .env("SPARK_CCL_RANK", rank.to_string())
            .env("SPARK_CCL_SIZE", "2")
            .env("SPARK_CCL_SECRET", "a secret of this test alone")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("NCCL_IB_HCA", devices[rank])
            .env("SPARK_CCL_SHM", "0")
            .env("SPARK_CCL_NET", "rdma")
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .spawn()
            .unwrap()
    })
}

fn finish(ranks: [Child; 2]) -> [Run; 2] {
    ranks.map(|rank| rank.wait_with_output().unwrap().into())
}

/// Runs both ranks, which must succeed; returns what rank 0 printed.
fn measure(devices: [&str; 2], args: &str) -> Run {
    right(run_both(devices, args), args)
}

/// Both ranks must have succeeded; returns what rank 0 printed.
fn right([first, second]: [Run; 2], args: &str) -> Run {
    for run in [&first, &second] {
        let (code, stderr) = (run.code, &run.stderr);
        assert_eq!(code, Some(0), "{args}\n{}\n{stderr}", first.stdout);
    }
    first
}

#[test]
fn collectives_on_registered_memory_over_all_rails() {
    let Some(ends) = ends() else { return };
    for collective in [
        "all_reduce --algo ring",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "alltoall",
        "alltoallv",
        "sendrecv",
    ] {
        let args = format!("{collective} --path zero-copy -b 4 -e 600004 -f 150001 -n 1 -w 0");
        let run = measure(ends, &args);
        let links = run.stdout.lines().find(|line| line.contains("links:"));
        assert!(
            links.is_some_and(|line| line.contains("rdma rxe0a")),
            "{links:?}"
        );
        if run.stdout.contains("# Algorithm") {
            assert!(
                run.stdout.contains("zero-copy between devices"),
                "{}",
                run.stdout
            );
        }
        for row in run.rows() {
            let wrong = [row[row.len() - 5], row[row.len() - 1]];
            assert_eq!(wrong, ["0", "0"], "{args}: {row:?}");
        }
    }
}

#[test]
fn bandwidth_over_all_rails_and_one_with_every_verb() {
    let Some(ends) = ends() else { return };
    for verb in ["write", "read", "send"] {
        for more in ["", "--rails one --wait events", "--bidirectional -d 3"] {
            let args = format!("rdma_bw --verb {verb} -b 100 -e 40000 -f 400 -n 20 -w 5 {more}");
            let run = measure(ends, &args);
            let rails = if more.contains("one") { 1 } else { 2 };
            let requests = if more.contains("bi") { 40 } else { 20 };
            let rows = run.rows();
            assert_eq!(rows.len(), 2);
            for (row, bytes) in rows.iter().zip([100, 40_000]) {
                let number = |column: usize| row[column].parse::<u64>().unwrap();
                assert_eq!([0, 1, 2, 7].map(number), [bytes, rails, requests, 0]);
                // One packet may be lost, and the rate of a few bytes is rounded to 0.
                let [us, rate] = [3, 4].map(|column: usize| row[column].parse::<f64>().unwrap());
                let exact = (requests * bytes) as f64 / us / 1e3;
                assert!(
                    us > 0.0 && (rate - exact).abs() < 1e-4 + exact * 0.1 / us,
                    "{row:?}"
                );
            }
            let carried: Vec<u64> = run
                .stdout
                .lines()
                .filter(|line| line.starts_with("#    rail"))
                .map(|line| line.split_whitespace().nth(3).unwrap().parse().unwrap())
                .collect();
            assert_eq!(carried.len(), if rails == 2 { 4 } else { 0 });
            for pair in carried.chunks(2) {
                assert_eq!(pair.iter().sum::<u64>(), requests);
                assert!(!pair.contains(&0), "{carried:?}");
            }
        }
    }
}

#[test]
fn latency_of_each_rail_with_every_verb() {
    let Some(ends) = ends() else { return };
    for verb in ["write", "read", "send"] {
        for wait in ["poll", "events"] {
            let args = format!("rdma_lat --verb {verb} --wait {wait} -b 1 -e 5000 -f 5000 -n 50");
            let run = measure(ends, &args);
            let rows = run.rows();
            assert_eq!(rows.len(), 4);
            for (row, expected) in rows.iter().zip([[1, 0], [1, 1], [5000, 0], [5000, 1]]) {
                let number = |column: usize| row[column].parse::<u64>().unwrap();
                assert_eq!([0, 1].map(number), expected);
                assert_eq!([2, 8].map(number), [50, 0]);
                let times: Vec<f64> = [3, 4, 6, 7].map(|at| row[at].parse().unwrap()).into();
                assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
            }
        }
    }
}

#[test]
fn ranks_on_different_cables_say_so() {
    if ends().is_none() {
        return;
    }
    for run in run_both(["rxe0a", "rxe1b"], "rdma_bw -n 1") {
        let Run { code, stderr, .. } = run;
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains("has a subnet in common"), "{stderr}");
    }
}

#[test]
fn a_missing_library_is_named() {
    for program in ["rdma_bw", "rdma_lat"] {
        let run: Run = command(&[program])
            .env("SPARK_CCL_IBVERBS_LIBRARY", "/nowhere/libibverbs.so.1")
            .output()
            .unwrap()
            .into();
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        let expected = "no RDMA here: ";
        assert!(
            run.stderr.contains(expected) && run.stderr.contains("/nowhere/libibverbs.so.1"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn arguments_that_make_no_sense() {
    for args in [
        "rdma_bw --procs 3",
        "rdma_bw -b 0",
        "rdma_bw -b 2K -e 1K",
        "rdma_bw -e 4G",
        "rdma_bw -f 1",
        "rdma_bw -n 0",
        "rdma_bw -d 0",
        "rdma_bw --verb atomic",
        "rdma_lat --bidirectional",
        "rdma_lat -d 4",
        "rdma_lat --rails two",
        "rdma_bw --memory device",
        "rdma_lat --memory",
    ] {
        let run = run(args);
        assert_eq!(run.code, Some(6), "{args}: {}", run.stderr);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{args}");
    }
}
