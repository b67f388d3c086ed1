//! NCCL and the engine on the GPUs of this machine, and the messages on machines without any.

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

/// Runs the engine where all ranks share the first GPU, and NCCL cannot be found.
fn run_sharing(args: &str) -> Run {
    let args: Vec<&str> = args.split_whitespace().collect();
    let out = command(&args)
        .env("SPARK_CCL_SHARE_GPU", "1")
        .env("SPARK_CCL_NCCL_LIBRARY", "/nonexistent/libnccl.so.2")
        .env("CUDA_VISIBLE_DEVICES", "0")
        .output();
    out.unwrap().into()
}

/// Whether this many GPUs can run the engine's kernels.
fn has_gpus_for_the_engine(least: usize) -> bool {
    has(Need::Gpus(least)) && has(Need::RealGpus)
}

#[test]
fn what_is_missing_is_named() {
    if !has(Need::NoGpus) {
        return;
    }
    for backend in ["nccl", "engine", "engine,nccl"] {
        let run = run(&format!(
            "all_reduce --backend {backend} -g 1 -b 8 -e 8 -n 1"
        ));
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        let missing = ["libcuda.so.1", "libnccl.so.2", "no GPU"];
        let named = missing.iter().any(|name| run.stderr.contains(name));
        assert!(named, "{}", run.stderr);
        assert!(
            backend != "engine" || !run.stderr.contains("libnccl"),
            "{}",
            run.stderr
        );
        assert_eq!(run.stdout, "");
    }
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

#[test]
fn the_engine_is_right_on_a_shared_gpu() {
    if !has_gpus_for_the_engine(1) {
        return;
    }
    for collective in COLLECTIVES {
        for more in [
            "--procs 2 -r 1",
            "--procs 2 -y 1 -m 2 -u 1",
            "-t 2 -z 1 -C 1 -N 2",
            "-t 2 -G 2 -m 2",
            "-g 2 -I 1 -K 1",
        ] {
            let args = format!("{collective} --backend engine -b 8 -e 256K -f 32 -n 3 {more}");
            let run = run_sharing(&args);
            let text = format!("{args}\n{}\n{}", run.stdout, run.stderr);
            assert_eq!(run.code, Some(0), "{text}");
            assert!(
                run.stdout
                    .contains("# Backend: engine (kernels of our own; peers' memory, "),
                "{text}"
            );
            assert!(!run.stdout.contains("NCCL"), "{text}");
            assert!(
                run.stdout.contains("# Out of bounds values : 0 OK"),
                "{text}"
            );
            let cycles = if more.contains("-N 2") { 2 } else { 1 };
            assert_eq!(run.rows().len(), 4 * cycles, "{text}");
        }
    }
}

#[test]
fn the_engine_has_all_types_and_reductions() {
    if !has_gpus_for_the_engine(1) {
        return;
    }
    let run = run_sharing("all_reduce --backend engine -t 2 -b 64 -e 64 -n 1 -d all -o all -M 1");
    let text = format!("{}\n{}", run.stdout, run.stderr);
    assert_eq!(run.code, Some(0), "{text}");
    assert_eq!(run.rows().len(), 12 * 6, "{text}");
    assert!(run.stdout.contains(" on rank 0's GPU | peak"), "{text}");
}

#[test]
fn a_planted_value_is_found_with_the_engine() {
    if !has_gpus_for_the_engine(1) {
        return;
    }
    for launch in ["--procs 2", "-t 2"] {
        let run = run_sharing(&format!(
            "all_reduce --backend engine {launch} -b 1M -e 1M -n 1 --plant 1:70000"
        ));
        assert_eq!(run.code, Some(7), "{}", run.stderr);
        assert_eq!(Run::wrong(&run.rows()[0]), [1, 1]);
    }
}

#[test]
fn the_engine_and_nccl_take_turns() {
    if !has_gpus_for_the_engine(2) {
        return;
    }
    let run = succeed("all_reduce --backend engine,nccl -g 2 -b 64 -e 64K -f 32 -n 3");
    assert!(run.stdout.contains("# NCCL version 2."), "{}", run.stdout);
    assert_eq!(run.rows().len(), 6, "{}", run.stdout);
    for pair in run.rows().chunks(2) {
        assert_eq!([pair[0][0], pair[0][5]], [pair[1][0], "engine"]);
        assert_eq!([pair[1][5], pair[0][10], pair[0][15]], ["nccl", "-", "-"]);
        for ratio in [pair[1][10], pair[1][15]] {
            assert!(ratio.parse::<f64>().unwrap() > 0.0, "{}", run.stdout);
        }
    }
}
