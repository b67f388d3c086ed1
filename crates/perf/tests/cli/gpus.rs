//! NCCL on the GPUs of this machine, and the messages on machines without any.

use spark_ccl_testing::{Need, has};

use crate::program::{Run, command, run, succeed};

pub(crate) const COLLECTIVES: [&str; 11] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "sendrecv",
    "hypercube",
];

#[test]
fn what_is_missing_is_named() {
    if !has(Need::NoGpus) {
        return;
    }
    let run = run("all_reduce --backend nccl -g 1 -b 8 -e 8 -n 1");
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    let missing = ["libcuda.so.1", "libnccl.so.2", "no GPU"];
    let named = missing.iter().any(|name| run.stderr.contains(name));
    assert!(named, "{}", run.stderr);
    assert_eq!(run.stdout, "");
}

/// The started processes must not repeat the message.
#[test]
fn the_message_is_printed_once() {
    if !has(Need::NoGpus) {
        return;
    }
    let run = run("all_reduce --backend nccl --procs 3");
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn a_library_that_is_not_there_is_named() {
    if !has(Need::Gpus(1)) {
        return;
    }
    let out = command(&["all_reduce", "--backend", "nccl"])
        .env("SPARK_CCL_NCCL_LIBRARY", "/nonexistent/libnccl.so.2")
        .output()
        .unwrap();
    let run = Run::from(out);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("/nonexistent"), "{}", run.stderr);
}

#[test]
fn collectives_are_right_on_gpus() {
    if !has(Need::Gpus(1)) {
        return;
    }
    for collective in COLLECTIVES {
        for more in ["-g 1", "-t 1 -G 2", "-g 1 -m 3 -R 1", "-g 1 -I 1 -u 1"] {
            let args = format!("{collective} --backend nccl -b 8 -e 1M -f 16 -n 3 {more}");
            let out = succeed(&args);
            assert!(out.stdout.contains("# NCCL version 2."), "{}", out.stdout);
            assert!(out.stdout.contains("# Out of bounds values : 0 OK"));
            assert_eq!(out.rows().len(), 5, "{args}");
        }
    }
}

#[test]
fn a_planted_value_is_found_on_gpus() {
    if !has(Need::Gpus(1)) {
        return;
    }
    let out = run("all_reduce --backend nccl -g 1 -b 1M -e 1M -n 1 --plant 0:70000");
    assert_eq!(out.code, Some(7), "{}", out.stderr);
    assert_eq!(Run::wrong(&out.rows()[0]), [1, 1]);
}
