//! `--backend nccl` end to end, on a fake driver and a fake NCCL (`tests/fake_gpu`): which calls
//! are made on which memory, and how results are checked. This shows nothing about NCCL itself. The
//! engine's kernels are played by threads, except those of messages.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use spark_ccl_testing::{Need, has};
use tempfile::TempDir;

use crate::gpus::COLLECTIVES;
use crate::program::{Run, command};

/// A folder with both libraries; `None` without a C++ compiler.
pub(crate) fn libraries() -> Option<&'static Path> {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    has(Need::CppCompiler).then(|| MADE.get_or_init(|| build("global: *;")).path())
}

/// Links both libraries; a linker's version script says which functions they have.
pub(crate) fn build(functions: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("functions");
    std::fs::write(&script, format!("{{ {functions} }};")).unwrap();
    // NCCL enqueues in CUDA's streams, so one library contains both.
    let library = folder.path().join("libcuda.so");
    let linked = Command::new("c++")
        .arg("-shared")
        .args(SOURCES.map(|name| objects().join(name).with_extension("o")))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg("-o")
        .arg(&library)
        .status();
    assert!(linked.unwrap().success());
    for name in ["libcuda.so.1", "libnccl.so.2"] {
        std::fs::hard_link(&library, folder.path().join(name)).unwrap();
    }
    folder
}

const SOURCES: [&str; 7] = [
    "between.cpp",
    "context.cpp",
    "cuda.cpp",
    "mapping.cpp",
    "nccl.cpp",
    "slots.cpp",
    "staged.cpp",
];

/// A folder with the compiled sources, which takes most of the time of a library.
fn objects() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let compile = || {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_gpu");
        let compiled = Command::new("c++")
            .current_dir(&folder)
            .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"])
            .args(["-ffp-contract=off", "-fPIC", "-c", "-I"])
            .arg(source.join("../../../gpu/tests"))
            .args(SOURCES.map(|name| source.join(name)))
            .status();
        assert!(compiled.unwrap().success());
        folder
    };
    MADE.get_or_init(compile).path()
}

/// Runs on four fake GPUs.
fn run(args: &str, failure: &str) -> Option<Run> {
    Some(run_with(libraries()?, args, failure))
}

fn run_with(libraries: &Path, args: &str, failure: &str) -> Run {
    run_in(libraries, args, &[("FAKE_NCCL", failure)])
}

/// Runs with some more variables.
fn run_in(libraries: &Path, args: &str, variables: &[(&str, &str)]) -> Run {
    let args: Vec<&str> = args.split_whitespace().collect();
    let out = command(&args)
        .env("LD_LIBRARY_PATH", libraries)
        .env_remove("SPARK_CCL_NCCL_LIBRARY")
        .env("FAKE_GPUS", "4")
        .envs(variables.iter().copied())
        .output();
    out.unwrap().into()
}

/// Runs without errors, and all results are right.
fn right(args: &str) -> Option<Run> {
    let run = run(args, "")?;
    assert_eq!(run.code, Some(0), "{args}\n{}\n{}", run.stdout, run.stderr);
    assert!(
        run.stdout.contains("# Out of bounds values : 0 OK"),
        "{}",
        run.stdout
    );
    Some(run)
}

#[test]
fn all_collectives_by_all_launches() {
    for collective in COLLECTIVES {
        for launch in ["-g 4", "-t 4", "-t 2 -g 2"] {
            let args = "--backend nccl -b 8 -e 512K -f 16 -n 3 -r 1";
            let Some(run) = right(&format!("{collective} {args} {launch}")) else {
                return;
            };
            assert_eq!(run.stdout.matches("#  Rank ").count(), 4);
            assert!(
                run.stdout.contains("device  3 [0000:1d:00] Fake 3"),
                "{}",
                run.stdout
            );
            assert!(run.stdout.contains("# NCCL version 2.28.9"));
        }
    }
}

#[test]
fn types_and_operations() {
    for dtype in [
        "float", "double", "int8", "uint8", "int32", "uint32", "int64", "uint64",
    ] {
        right(&format!(
            "all_reduce --backend nccl -g 3 -b 64 -e 512K -f 64 -n 1 -o all -d {dtype}"
        ));
    }
    for dtype in ["half", "bfloat16", "f8e4m3", "f8e5m2"] {
        right(&format!(
            "alltoall --backend nccl -g 3 -b 64 -e 512K -f 64 -n 1 -d {dtype}"
        ));
    }
    // These GPUs are too old for float8.
    if let Some(run) = right("alltoall --backend nccl -g 3 -b 64 -e 64 -n 1 -d all") {
        assert_eq!(run.rows().len(), 10);
    }
}

#[test]
fn ways_to_start_and_to_wait() {
    for flags in [
        "-z 1 -m 2",
        "-z 2",
        "-z 3 -I 1 -K 1",
        "-I 1 -m 2",
        "-y 1 -C 1",
        "-u 3",
        "-G 3 -m 2",
        "-w 0 -a 3 -N 2",
        "-r -1",
    ] {
        for collective in ["all_reduce", "reduce", "hypercube", "alltoallv"] {
            right(&format!(
                "{collective} --backend nccl -t 2 -g 2 -b 8 -e 64K -f 32 -n 4 {flags}"
            ));
        }
    }
}

#[test]
fn buffers_are_registered_as_a_whole() {
    for (flag, words) in [
        ("-R 1", "registered here: "),
        ("-R 2", "registered as window: "),
    ] {
        let Some(run) = right(&format!(
            "all_gather --backend nccl -g 2 -b 1M -e 3M -n 2 {flag}"
        )) else {
            return;
        };
        // Two buffers of two GPUs, each of 3 MiB, allocated in multiples of 2 MiB.
        let whole = format!("{words}{}", 4 << 20);
        assert_eq!(run.stderr.matches(&whole).count(), 4, "{}", run.stderr);
    }
}

#[test]
fn all_gpus_are_used_by_default() {
    if let Some(run) = right("all_reduce --backend nccl -b 8 -e 8") {
        assert_eq!(run.stdout.matches("#  Rank ").count(), 4);
        assert!(
            run.stdout.contains("# nThread 1 nGpus 4 "),
            "{}",
            run.stdout
        );
    }
}

#[test]
fn wrong_values_are_found() {
    let args = "all_reduce --backend nccl -g 4 -b 512K -e 512K -n 1";
    for (more, failure) in [("--plant 2:70000", ""), ("", "wrong"), ("-G 1", "wrong")] {
        if let Some(run) = run(&format!("{args} {more}"), failure) {
            assert_eq!(run.code, Some(7), "{}", run.stderr);
            assert_eq!(Run::wrong(&run.rows()[0]), [1, 1]);
        }
    }
}

#[test]
fn registrations_that_nccl_does_not_use_are_told() {
    for (how, is_told) in [("unregistered", true), ("", false)] {
        if let Some(run) = run("all_reduce --backend nccl -t 2 -b 8 -e 8 -R 2", how) {
            assert_eq!(run.code, Some(0), "{}", run.stderr);
            let told = "no use of the registration (-R 2) of ranks 0, 1";
            assert_eq!(run.stderr.contains(told), is_told, "{}", run.stderr);
        }
    }
}

#[test]
fn a_stuck_call_times_out() {
    if let Some(run) = run("all_reduce --backend nccl -t 2 -b 8 -e 8 -T 1", "stuck") {
        assert_eq!(run.code, Some(4), "{}", run.stderr);
    }
}

#[test]
fn more_than_the_gpus_hold() {
    // Each has 256 MiB; minus a sixteenth and what the library needs, two buffers of 64 MiB fit.
    if let Some(run) = right("all_reduce --backend nccl -g 2 -b 64M -e 512M -f 2 -n 1 -c 0") {
        assert!(run.stdout.contains("on the GPU"), "{}", run.stdout);
        assert_eq!(run.rows().len(), 1);
    }
    for (args, word) in [
        ("-b 1G -e 1G", "available on the GPU"),
        ("-g 5", "ranks 0 and 4 would share GPU 0000:1a:00.0"),
        ("-t 5", "4 GPUs are visible"),
    ] {
        if let Some(run) = run(&format!("all_reduce --backend nccl {args}"), "") {
            assert_eq!(run.code, Some(6), "{args}: {}", run.stderr);
            assert!(run.stderr.contains(word), "{args}: {}", run.stderr);
        }
    }
}

#[test]
fn an_old_driver_lacks_a_feature_and_not_the_program() {
    if !has(Need::CppCompiler) {
        return;
    }
    let args = "all_reduce --backend nccl -g 2 -b 8 -e 8 -n 1";
    let old = build("global: *; local: cuGraph*; cuMemPool*;");
    let run = run_with(old.path(), args, "");
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    let run = run_with(old.path(), &format!("{args} -G 1"), "");
    assert_ne!(run.code, Some(0));
    let said = "is for CUDA 12.4, has no function cuGraphInstantiateWithFlags";
    assert!(run.stderr.contains(said), "{}", run.stderr);
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);

    let older = build("global: *; local: cuMemAlloc_v2;");
    let run = run_with(older.path(), args, "");
    assert_ne!(run.code, Some(0));
    let said = "has no function cuMemAlloc_v2";
    assert!(run.stderr.contains(said), "{}", run.stderr);
}

#[test]
fn the_engine_asks_for_no_nccl() {
    let Some(libraries) = libraries() else {
        return;
    };
    for (backend, asks) in [("engine", false), ("engine,nccl", true)] {
        let args = format!("all_reduce --backend {backend} -g 2 -b 8 -e 8 -n 1");
        let nowhere = ("SPARK_CCL_NCCL_LIBRARY", "/nonexistent/libnccl.so.2");
        let run = run_in(libraries, &args, &[nowhere]);
        assert_eq!(run.code == Some(0), !asks, "{}", run.stdout);
        assert_eq!(run.stderr.contains("/nonexistent"), asks, "{}", run.stderr);
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    }
    let run = run_with(libraries, "all_reduce --backend engine -g 2 -R 1", "");
    assert_eq!(run.code, Some(5), "{}", run.stderr);
    assert!(run.stderr.contains("nothing to register"), "{}", run.stderr);
}

#[test]
fn only_the_engine_shares_gpus_and_only_in_tests() {
    let Some(libraries) = libraries() else {
        return;
    };
    for (backend, setting, is_refused) in [
        ("engine", "0", true),
        ("engine", "1", false),
        ("nccl", "1", true),
        ("engine,nccl", "1", true),
    ] {
        let args = format!("all_reduce --backend {backend} -g 5 -b 8 -e 8 -n 1");
        let run = run_in(libraries, &args, &[("SPARK_CCL_SHARE_GPU", setting)]);
        let said = "ranks 0 and 4 would share GPU 0000:1a:00.0";
        assert_eq!(run.stderr.contains(said), is_refused, "{}", run.stderr);
        assert_eq!(run.code == Some(6), is_refused, "{}", run.stderr);
    }
}

#[test]
fn the_path_of_each_size_is_explained() {
    let args = "all_reduce --backend engine -g 2 -b 8 -e 8K -f 1024 --explain";
    let Some(libraries) = libraries() else { return };
    let shared = [
        "pinned memory of the host",
        "# engine for 8 B: kernel one_shot_packets",
        "through the host",
    ];
    let staged = [
        "# engine for 8 B: staged by packets on 1 CTA, straight to all ranks",
        "# engine for 8 KiB: staged, 1 piece of up to 8192 bytes on 1 CTA",
        "not memory that ranks share: SPARK_CCL_GPU_PROTOCOL=proxy",
    ];
    for (protocol, parts) in [("auto", shared), ("proxy", staged)] {
        let variables = [
            ("SPARK_CCL_PATH", "safe"),
            ("SPARK_CCL_GPU_PROTOCOL", protocol),
        ];
        let run = run_in(libraries, args, &variables);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let parts = parts.into_iter();
        for part in parts.chain(["not the GPUs' memory: SPARK_CCL_PATH=safe"]) {
            assert!(run.stdout.contains(part), "{part}\n{}", run.stdout);
        }
    }
}

/// Ranks share a GPU, so that lines may be passed.
#[test]
fn the_fastest_kernels_are_measured_and_taken() {
    let Some(libraries) = libraries() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let run = |args: &str| {
        let variables = [
            ("FAKE_GPUS", "1"),
            ("FAKE_MEGABYTES", "1000"),
            ("SPARK_CCL_LOG", "warn"),
            ("SPARK_CCL_SHARE_GPU", "1"),
            ("SPARK_CCL_TUNING", file.to_str().unwrap()),
        ];
        let run = run_in(libraries, args, &variables);
        assert_eq!(run.code, Some(0), "{args}\n{}\n{}", run.stdout, run.stderr);
        run
    };
    let out = run("tune all_reduce all_gather --backend engine -g 2 -b 64 -e 64");
    for words in [
        "# Measured among 2 ranks on Fake 0, peers' memory, by lines, up to 1 CTAs; times in us",
        "one_shot_packets",
        "led_side_by_side",
        "# all_reduce: ",
        "Written to ",
    ] {
        assert!(out.stdout.contains(words), "{words}: {}", out.stdout);
    }
    let sizes: Vec<_> = out.rows().iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(sizes, ["64", "32"]);

    let explained = |args: &str| run(&format!("{args} --backend engine -b 64 -e 64 --explain"));
    let measured = "(measured by spark-perf tune on this machine)";
    for (args, is_measured) in [
        ("all_reduce -g 2", true),
        ("all_gather -g 2", true),
        ("broadcast -g 2", false),
        ("all_reduce -g 3", false),
    ] {
        let out = explained(args);
        assert_eq!(out.stdout.contains(measured), is_measured, "{}", out.stdout);
        let by_default = "(at most 64 KiB to all peers: fewest waits)";
        assert_eq!(
            out.stdout.contains(by_default),
            !is_measured,
            "{}",
            out.stdout
        );
    }
    let checked = run("all_reduce --backend engine -g 2 -b 64 -e 64K -f 32 -n 2");
    assert!(
        checked.stdout.contains("Out of bounds values : 0 OK"),
        "{}",
        checked.stdout
    );

    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"kernel\": \"", "\"kernel\": \"no_")).unwrap();
    let out = explained("all_reduce -g 2");
    assert!(!out.stdout.contains(measured), "{}", out.stdout);
    assert!(
        out.stderr
            .contains("measured kernels of all_reduce are not used: \"no_"),
        "{}",
        out.stderr
    );
}

#[test]
fn what_has_one_kernel_alone_is_not_tuned() {
    let Some(libraries) = libraries() else { return };
    // There is nothing to choose where the host carries the data, or between GPUs of several
    // models.
    for path in ["safe", "auto"] {
        let args = "tune all_reduce --backend engine -g 2 -b 64 -e 64";
        let run = run_in(libraries, args, &[("SPARK_CCL_PATH", path)]);
        assert_eq!(run.code, Some(5), "{}", run.stderr);
        assert!(
            run.stderr.contains("no kernels to choose from"),
            "{}",
            run.stderr
        );
    }
}
