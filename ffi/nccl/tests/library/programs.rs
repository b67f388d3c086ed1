//! C programs on host memory, as ranks.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::{PACKAGE, library};

/// Compiles a program of this folder, and links it with the library under NCCL's name.
fn compile(directory: &Path, name: &str) -> PathBuf {
    symlink(library(), directory.join("libnccl.so.2")).unwrap();
    let program = directory.join(name);
    let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-pthread"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("{PACKAGE}/tests/{name}.c"))
        .arg("-o")
        .arg(&program)
        .arg(library())
        .arg("-lm")
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .status()
        .expect("a compiler is needed: install gcc, or set CC");
    assert!(status.success(), "the compiler's complaints are above");
    program
}

/// Compiles a library that stands in for NVIDIA's.
fn compile_fallback(directory: &Path, name: &str, options: &[&str]) -> PathBuf {
    compile_library(directory, "fallback", name, options)
}

/// Compiles a library of a source of the tests.
fn compile_library(directory: &Path, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let library = directory.join(name);
    let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args([
            "-std=c11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
        ])
        .args(options)
        .arg(format!("{PACKAGE}/tests/{source}.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a compiler is needed: install gcc, or set CC");
    assert!(status.success(), "the compiler's complaints are above");
    library
}

/// Runs a program as this number of ranks.
fn launch(program: &Path, size: usize) -> Vec<Output> {
    launch_with(program, size, &[])
}

/// As [`launch`], with variables.
fn launch_with(program: &Path, size: usize, variables: &[(&str, &Path)]) -> Vec<Output> {
    let id = program.with_extension(size.to_string());
    let start = |rank: usize| {
        Command::new(program)
            .arg(&id)
            .args([rank, size].map(|number| number.to_string()))
            .env_clear()
            .env("SPARK_CCL_BACKEND", "host")
            // A rank that waits for another one in vain reports that.
            .env("SPARK_CCL_TIMEOUT", "120")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    let ended = ranks.into_iter().map(Child::wait_with_output);
    let ended: Vec<_> = ended.map(Result::unwrap).collect();
    // The first rank that fails may only say that another one has failed.
    for output in &ended {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    ended
}

/// Ranks find everything right.
fn verify(ranks: &[Output], size: usize) {
    for (rank, output) in ranks.iter().enumerate() {
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("rank {rank} of {size}: right\n"));
        assert!(output.status.success(), "{:?}", output.status);
    }
}

#[test]
fn all_operations_work_on_host_memory() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "host");
    for size in [2, 3, 4] {
        verify(&launch(&program, size), size);
    }
}

#[test]
fn what_callers_do_wrong_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(compile(directory.path(), "wrong"))
        .env_clear()
        .env("SPARK_CCL_BACKEND", "host")
        .env("SPARK_CCL_TIMEOUT", "60")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"right\n", "{said}");
}

#[test]
fn ranks_go_on_after_a_death_and_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "ends");
    let ranks = launch(&program, 3);
    verify(&ranks[..2], 3);
    assert_eq!(ranks[2].status.code(), None, "it was to be killed");
}

/// The record of a communicator that fails has the limit.
#[test]
fn calls_have_no_deadline_unless_a_variable_sets_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "limits");
    let forty_days = 40 * 24 * 3600 * 1000_u64;
    for (set, milliseconds) in [(None, forty_days), (Some("7"), 7000)] {
        let records = directory.path().join(milliseconds.to_string());
        let output = Command::new(&program)
            .env_clear()
            .env("SPARK_CCL_BACKEND", "host")
            .env("SPARK_CCL_RECORD", &records)
            .envs(set.map(|seconds| ("SPARK_CCL_TIMEOUT", seconds)))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"right\n", "{said}");
        for rank in 0..2 {
            let record = records.join(format!("rank_{rank}.json"));
            let record = std::fs::read_to_string(record).unwrap();
            let limit = format!("\"timeout_ms\":{milliseconds},");
            assert!(record.replace(' ', "").contains(&limit), "{record}");
        }
    }
}

/// Runs the program that makes the library log, and returns the output of both.
fn listen(program: &Path, variables: &[(&str, &str)]) -> [String; 2] {
    let output = Command::new(program)
        .env_clear()
        .env("SPARK_CCL_BACKEND", "host")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said:?}");
    said
}

#[test]
fn it_says_what_it_is_and_what_it_makes() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "says");
    let [said, logged] = listen(&program, &[]);
    assert!(said.starts_with("version 23203\n"), "{said}");
    assert!(said.contains("\nNCCL_BUFFSIZE=65536\n"), "{said}");
    assert!(said.ends_with("right\n"), "{said}");
    assert_eq!(logged, "");

    // The revision of the sources may follow the version.
    let own = concat!("(spark-ccl ", env!("CARGO_PKG_VERSION"));
    for level in ["VERSION", "WARN"] {
        let [_, logged] = listen(&program, &[("NCCL_DEBUG", level)]);
        assert_eq!(logged.matches("NCCL version").count(), 1, "{logged}");
        assert!(
            logged.contains(&format!("NCCL version 2.32.3 {own}")),
            "{logged}"
        );
        assert!(!logged.contains("Init COMPLETE"), "{logged}");
    }

    let file = directory.path().join("log");
    let variables = [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_FILE", file.to_str().unwrap()),
        ("SPARK_CCL_NCCL_VERSION", "22703"),
    ];
    let [said, _] = listen(&program, &variables);
    assert!(said.starts_with("version 22703\n"), "{said}");
    let logged = std::fs::read_to_string(file).unwrap();
    assert!(
        logged.contains(&format!("NCCL version 2.27.3 {own}")),
        "{logged}"
    );
    let made: Vec<_> = logged
        .lines()
        .filter(|line| line.contains("Init COMPLETE"))
        .collect();
    assert_eq!(made.len(), 2, "{logged}");
    for (line, has_name) in made.into_iter().zip([false, true]) {
        assert!(line.contains(" comm 0x"), "{line}");
        let end = " commName blue - Init COMPLETE";
        assert_eq!(line.ends_with(end), has_name, "{line}");
        let rest = " rank 0 nranks 1 cudaDev -1 busId 0 commId 0x";
        assert!(line.contains(rest), "{line}");
    }
}

#[test]
fn what_is_not_done_here_goes_to_the_library_that_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "forward");
    let fallback = compile_fallback(directory.path(), "fallback.so", &[]);
    let ranks = launch_with(&program, 2, &[("SPARK_CCL_NCCL_FALLBACK", &fallback)]);
    verify(&ranks, 2);
    for (rank, output) in ranks.iter().enumerate() {
        let said = String::from_utf8_lossy(&output.stderr);
        let told: Vec<_> = said.lines().collect();
        let made = format!("fallback: rank {rank} of 2 with the id of the fallback");
        let expected = [
            "fallback: rank 0 of 1 with a program's own",
            "fallback: a group begins",
            "fallback: a group ends",
            &made,
            "fallback: a group begins",
            "fallback: broadcast",
            "fallback: a group ends",
            "fallback: a group begins",
            "fallback: broadcast",
            "fallback: a group ends",
            &made,
            "fallback: aborted",
            "fallback: destroyed",
        ];
        assert_eq!(told[..expected.len()], expected);
        // A thread destroys the last communicator. The end of the process waits for it, but not for
        // longer than a second.
        let rest = &told[expected.len()..];
        assert!(
            rest.is_empty() || rest == ["fallback: destroyed"],
            "{rest:?}"
        );
    }
}

#[test]
fn a_wait_in_the_library_that_is_named_ends() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "hangs");
    let posix = "-D_POSIX_C_SOURCE=200809L";
    let hangs = compile_fallback(directory.path(), "hangs.so", &[posix, "-DHANGS=-1"]);
    let fails = compile_fallback(directory.path(), "fails.so", &[posix, "-DHANGS=2"]);
    let stays = compile_fallback(directory.path(), "stays.so", &[posix, "-DSTAYS"]);
    let works = compile_fallback(directory.path(), "works.so", &[]);
    let slow = compile_fallback(
        directory.path(),
        "slow.so",
        &["-D_DEFAULT_SOURCE", "-DSLOW"],
    );
    for (how, fallback, timeout) in [
        ("abort", &hangs, "120"),
        ("deadline", &hangs, "3"),
        ("death", &hangs, "120"),
        ("leave", &hangs, "120"),
        ("failure", &fails, "120"),
        ("later", &works, "120"),
        ("finalized", &works, "120"),
        ("end", &stays, "120"),
        ("exit", &works, "120"),
        ("use", &works, "120"),
        ("quit", &slow, "120"),
        ("quit", &stays, "120"),
    ] {
        let variables = [
            ("HOW", Path::new(how)),
            ("SPARK_CCL_NCCL_FALLBACK", fallback),
            ("SPARK_CCL_TIMEOUT", Path::new(timeout)),
        ];
        let _ = std::fs::remove_file(program.with_extension("3"));
        let ranks = launch_with(&program, 3, &variables);
        let survivors = match how {
            "death" | "later" | "finalized" => 2,
            _ => 3,
        };
        verify(&ranks[..survivors], 3);
        let last = match how {
            // An orderly end would wait for other ranks.
            "later" | "finalized" | "use" | "quit" => "fallback: aborted\n",
            "exit" => "fallback: destroyed\n",
            _ => continue,
        };
        for output in &ranks[..survivors] {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.ends_with(last), "{how}: {said}");
        }
    }
}

#[test]
fn libraries_that_cannot_be_used_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "unusable");
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("text"), "no library").unwrap();
    compile_fallback(directory.path(), "old.so", &["-DVERSION=2708"]);
    compile_fallback(directory.path(), "other.so", &["-DncclGetVersion=other"]);
    for (path, words) in [
        (at("missing"), "No such file"),
        (at(""), "is a folder"),
        (at("text"), "cannot be opened"),
        (at("other.so"), "is not NCCL"),
        (at("old.so"), "is NCCL 2.7.8, and too old"),
        (library().to_owned(), "is this library itself"),
        (PathBuf::from("libnccl.so.2"), "is no absolute path"),
    ] {
        let output = Command::new(&program)
            .arg(words)
            .env_clear()
            .env("SPARK_CCL_BACKEND", "host")
            .env("SPARK_CCL_NCCL_FALLBACK", &path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout, b"right\n", "{path:?}: {said}");
    }
}

/// The loader's words are those that users find in the document.
#[test]
fn a_library_that_cannot_be_preloaded_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("libspark_nccl.so");
    let mut bytes = std::fs::read(library()).unwrap();
    // The processor that the file is for: none has this number.
    bytes[18..20].fill(0xff);
    std::fs::write(&other, bytes).unwrap();
    let mut program = Command::new("true");
    let output = program.env("LD_PRELOAD", &other).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let explained = include_str!("../../../../docs/troubleshooting.md");
    for words in [
        "ERROR: ld.so: object '",
        "' from LD_PRELOAD cannot be preloaded (",
    ] {
        assert!(said.contains(words) && explained.contains(words), "{said}");
    }
}

#[test]
fn no_library_is_opened_beside_another_allocator() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "unusable");
    let fallback = compile_fallback(directory.path(), "fallback.so", &[]);
    let allocator = compile_library(directory.path(), "allocator", "allocator.so", &[]);
    let output = Command::new(&program)
        .arg("allocator.so: run it without that")
        .env_clear()
        .env("SPARK_CCL_BACKEND", "host")
        .env("SPARK_CCL_NCCL_FALLBACK", &fallback)
        .env("LD_PRELOAD", &allocator)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"right\n", "{said}");
}

#[test]
fn a_driver_that_fails_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "driver");
    for name in ["libcuda.so", "libcuda.so.1"] {
        let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-x", "c", "/dev/null", "-o"])
            .arg(directory.path().join(name))
            .status()
            .unwrap();
        assert!(status.success(), "an empty library");
    }
    let output = Command::new(program)
        .env_clear()
        .env("LD_LIBRARY_PATH", directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"right\n", "{said}");
}
