//! Measured choices of algorithms.

use std::path::Path;

use crate::program::{Run, command, run, succeed};

/// Runs the program with a file of measured choices.
fn with_file(file: &Path, args: &str) -> Run {
    let args: Vec<&str> = args.split_whitespace().collect();
    let output = command(&args).env("SPARK_CCL_TUNING", file).output();
    let run = Run::from(output.unwrap());
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    run
}

#[test]
fn measured_choices_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/tuning.json");
    let out = with_file(&file, "tune all_reduce all_gather -b 64 -e 1K");
    let sizes: Vec<_> = out.rows().iter().map(|row| row[0].to_owned()).collect();
    // For an all_gather, the size is that of a rank's share.
    assert_eq!(sizes[..5], ["64", "128", "256", "512", "1024"]);
    assert_eq!(sizes[5..], ["32", "64", "128", "256", "512"]);
    for row in out.rows() {
        let marked = row.iter().filter(|cell| cell.starts_with('*'));
        assert!(marked.count() >= 1, "{row:?}");
    }
    assert!(out.stdout.contains("among 2 ranks on 1 host, shm"));
    assert!(out.stdout.contains("Written to "), "{}", out.stdout);

    let explained = |args: &str| with_file(&file, &format!("{args} -b 64 -e 1K -f 4 --explain"));
    let measured = |out: &Run| out.stdout.matches("measured by spark-perf tune").count();
    for collective in ["all_reduce", "all_gather"] {
        let out = explained(collective);
        assert_eq!(measured(&out), 3, "{}", out.stdout);
        assert!(out.rows().is_empty(), "{}", out.stdout);
    }
    assert_eq!(measured(&explained("broadcast")), 0);
    assert_eq!(measured(&explained("all_reduce -t 3")), 0);
    assert_eq!(measured(&explained("all_reduce -t 2")), 3);

    // Other entries are kept.
    with_file(&file, "tune all_reduce -b 64 -e 64 -t 3");
    assert_eq!(measured(&explained("all_reduce -t 3")), 3);
    assert_eq!(measured(&explained("all_gather")), 3);
}

#[test]
fn a_file_that_makes_no_sense_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    std::fs::write(&file, "nonsense").unwrap();
    let out = with_file(&file, "tune reduce -b 64 -e 64 -t 2");
    assert!(out.stderr.contains("begins anew"), "{}", out.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"reduce\""), "{text}");
}

#[test]
fn nothing_is_written_if_tuning_is_off() {
    let out = with_file(Path::new("off"), "tune broadcast -b 64 -e 128 -t 2");
    assert!(out.stdout.contains("Not written"), "{}", out.stdout);
    let out = succeed("all_reduce -b 8 -e 8M -f 1024 -t 2 --explain");
    for words in [
        "8 B: direct (small",
        "8 KiB: direct",
        "8 MiB: ring (large",
        "; modelled: ",
    ] {
        assert!(out.stdout.contains(words), "{words}: {}", out.stdout);
    }
}

#[test]
fn what_cannot_be_tuned_is_refused() {
    for args in [
        "tune gather",
        "tune -b 0",
        "tune -b 2K -e 1K",
        "tune --procs 0",
    ] {
        assert_eq!(run(args).code, Some(6), "{args}");
    }
}
