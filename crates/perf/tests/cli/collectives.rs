//! Every collective, checked element by element, with several numbers of processes.

use spark_ccl::{DType, ReduceOp};

use crate::program::{Run, run, succeed};

/// Small enough for a loaded machine. The sizes cover every algorithm of the tuner, and counts
/// below the number of ranks.
const SWEEP: &str = "-b 8 -e 600K -f 64 -n 1 -w 0";
/// Its lines for one type; for all types; and for all types with all reductions.
const SIZES: usize = 3;
const TYPES: usize = SIZES * DType::ALL.len();
const REDUCTIONS: usize = TYPES * ReduceOp::ALL.len();

fn all_right(args: &str) -> usize {
    let run = succeed(&format!("{args} {SWEEP}"));
    let rows = run.rows();
    for row in &rows {
        // The redop column of hypercube is empty.
        let wrong = [row[row.len() - 5], row[row.len() - 1]];
        assert_eq!(wrong, ["0", "0"], "{args}: {row:?}");
    }
    assert!(run.stdout.contains("# Out of bounds values : 0 OK"));
    rows.len()
}

macro_rules! collectives {
    ($($name:ident: $args:literal, $procs:expr, $lines:expr;)+) => {$(
        #[test]
        fn $name() {
            for procs in $procs {
                let lines = all_right(&format!("{} --procs {procs}", $args));
                assert_eq!(lines, $lines, "{procs} processes");
            }
        }
    )+};
}

collectives! {
    all_reduce: "all_reduce -d all -o all", [2, 3, 5, 8], REDUCTIONS;
    reduce_scatter: "reduce_scatter -d all -o all", [2, 3, 5, 8], REDUCTIONS;
    reduce: "reduce -d all -o all -r 1", [2, 3, 5, 8], REDUCTIONS;
    all_gather: "all_gather -d all", [2, 3, 5, 8], TYPES;
    broadcast: "broadcast -d all -r 1", [2, 3, 5, 8], TYPES;
    gather: "gather -d all -r 1", [2, 3, 5, 8], TYPES;
    scatter: "scatter -d all -r 1", [2, 3, 5, 8], TYPES;
    all_to_all: "alltoall -d all", [2, 3, 5, 8], TYPES;
    all_to_all_v: "alltoallv -d all", [2, 3, 5, 8], TYPES;
    send_recv: "sendrecv -d all", [2, 3, 5, 8], TYPES;
    hypercube: "hypercube -d all", [2, 8], TYPES;
}

#[test]
fn every_root() {
    for collective in ["broadcast", "reduce", "gather", "scatter"] {
        assert_eq!(all_right(&format!("{collective} --procs 3 -r -1")), 9);
    }
}

#[test]
fn registered_memory() {
    for collective in [
        "all_reduce -o all",
        "reduce_scatter -o all",
        "reduce -o all -r 1",
        "all_gather",
        "broadcast -r 1",
        "gather -r 1",
        "scatter -r 1",
        "alltoall",
        "alltoallv",
        "sendrecv",
    ] {
        for procs in [2, 3] {
            all_right(&format!("{collective} --procs {procs} --memory registered"));
        }
    }
}

#[test]
fn zero_copy_only_applies_to_measured_calls() {
    for collective in ["all_reduce", "all_gather", "reduce_scatter", "broadcast"] {
        all_right(&format!("{collective} --procs 2 --path zero-copy"));
    }
}

#[test]
fn threads_and_processes_of_threads() {
    assert_eq!(all_right("all_reduce -t 3"), 3);
    assert_eq!(all_right("all_reduce -t 2 -g 2"), 3);
    let run = succeed("all_gather --procs 2 -t 2 -b 4K -e 4K -n 1");
    assert_eq!(run.stdout.matches("#  Rank ").count(), 4);
    let pids: std::collections::BTreeSet<&str> = run
        .stdout
        .lines()
        .filter(|line| line.starts_with("#  Rank "))
        .map(|line| line.split_whitespace().nth(6).unwrap())
        .collect();
    assert_eq!(pids.len(), 2);
}

#[test]
fn one_rank() {
    for collective in ["all_reduce", "alltoall", "sendrecv", "hypercube", "gather"] {
        assert_eq!(all_right(&format!("{collective} --procs 1")), 3);
    }
}

#[test]
fn over_tcp() {
    let args: Vec<&str> = "all_reduce --procs 3 -d all -o all"
        .split_whitespace()
        .chain(SWEEP.split_whitespace())
        .collect();
    let output = crate::program::command(&args)
        .env("SPARK_CCL_SHM_DISABLE", "1")
        .env("NCCL_SHM_DISABLE", "1")
        .output()
        .unwrap();
    let run = Run::from(output);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("links: tcp"), "{}", run.stdout);
    assert!(run.rows().iter().all(|row| Run::wrong(row) == [0, 0]));
}

#[test]
fn planted_wrong_elements_are_counted_exactly() {
    for (args, wrong) in [
        ("all_reduce --procs 3 --plant 1:3", 1),
        ("all_gather --procs 2 --plant 0:5 -d bfloat16", 1),
        ("alltoallv --procs 3 --plant 2:0 -d int8", 1),
        // The rank's receive buffer must remain unchanged.
        ("reduce --procs 2 --plant 1:0", 1),
        // The average of floats has a tolerance, which must not hide the error.
        ("reduce_scatter --procs 2 --plant 0:7 -o avg -d half", 1),
        // Beyond the first period of the values.
        ("all_reduce --procs 2 -b 1M -e 1M --plant 0:131045", 1),
        // Beyond the end.
        ("all_reduce --procs 2 --plant 1:1000000", 0),
    ] {
        let (collective, more) = args.split_once(' ').unwrap();
        let run = run(&format!("{collective} -b 4K -e 4K -n 1 {more}"));
        assert_eq!(Run::wrong(&run.rows()[0]), [wrong, wrong], "{args}");
        let (code, foot) = if wrong == 0 {
            (0, "0 OK")
        } else {
            (7, "2 FAILED")
        };
        assert_eq!(run.code, Some(code), "{args}\n{}", run.stderr);
        let foot = format!("# Out of bounds values : {foot}");
        assert!(run.stdout.contains(&foot), "{args}\n{}", run.stdout);
    }
}
