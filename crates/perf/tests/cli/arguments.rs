//! Which arguments are refused or accepted, and with which exit code.

use crate::program::{COMMANDS, Run, command, run, succeed};

/// Invalid arguments, each with a word from its error message.
const BAD: [(&str, &str); 38] = [
    ("", "COLLECTIVE"),
    ("all_to_none", "all_to_none"),
    ("all_reduce -b 0", "-b 0"),
    ("all_reduce -b x", "not a size"),
    ("all_reduce -e 1KB", "not a size"),
    ("all_reduce -b -8", "size"),
    ("all_reduce -b 9000T", "8192T"),
    ("all_reduce -b 2M -e 1M", "larger than the last"),
    ("all_reduce -f 1.5", "whole number"),
    ("check", "check measures between hosts"),
    ("all_reduce -f 0", "-f 0"),
    ("all_reduce -b 8 -e 16 -i 0", "-i 0"),
    ("all_reduce -n 0", "-n 0"),
    ("all_reduce -m 0", "-m 0"),
    ("all_reduce -o median", "median"),
    ("all_reduce -d float128", "float128"),
    ("all_reduce --buffers warm", "warm"),
    ("all_reduce -z 4", "4"),
    ("all_reduce -u 9999999", "-u"),
    ("all_reduce -I 1 -n 2 -K 2", "-K 2"),
    ("all_reduce --procs 0", "--procs 0"),
    ("all_reduce -t 0", "-t 0"),
    ("all_reduce -g 0", "-g 0"),
    ("all_reduce --procs 5000", "4096"),
    ("broadcast -r 2", "-r 2"),
    ("broadcast -r -2", "-r -2"),
    ("hypercube --procs 3", "power of two"),
    ("all_reduce --plant 2:0", "--plant"),
    ("all_reduce --plot a.pdf", ".svg or .png"),
    ("all_reduce -J a.txt", ".json"),
    ("all_reduce --compare /nonexistent.json", "nonexistent"),
    ("all_reduce --frobnicate", "frobnicate"),
    ("all_reduce --backend gpu", "gpu"),
    ("all_reduce --backend nccl --algo ring", "--algo"),
    ("all_reduce --backend nccl --memory registered", "--memory"),
    ("all_reduce --backend engine --path safe", "--path"),
    (
        "all_reduce --backend engine,nccl --buffers hot",
        "--buffers",
    ),
    ("all_reduce --backend host,nccl", "host,nccl"),
];

#[test]
fn nonsense_is_refused_with_exit_code_6() {
    for (args, word) in BAD {
        let run = run(args);
        assert_eq!(run.code, Some(6), "{args}: {}", run.stderr);
        assert!(run.stderr.contains(word), "{args}: {}", run.stderr);
        assert_eq!(run.stdout, "", "{args}");
    }
}

#[test]
fn settings_that_the_library_refuses_exit_with_6_too() {
    let out = run("all_reduce --algo frobnicate -b 8 -e 8");
    assert_eq!(out.code, Some(6), "{}", out.stderr);
    let flag = "invalid value 'frobnicate' for '--algo <NAME>': expected known algorithms: auto, ";
    assert!(out.stderr.contains(flag), "{}", out.stderr);

    let out = command(&["all_reduce", "-b", "8", "-e", "8"])
        .env("NCCL_SOCKET_IFNAME", "=nonesuch0")
        .output()
        .unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(6), "{text}");
    assert!(text.contains("nonesuch0"), "{text}");
}

#[test]
fn zero_copy_of_ordinary_memory_names_the_flag_for_registered() {
    let mut run = command(&["all_reduce", "-b", "8", "-e", "8", "-n", "1"]);
    let output = run.env("SPARK_CCL_PATH", "zero-copy").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("spark-perf: --memory registered"), "{text}");
}

#[test]
fn sizes_beyond_the_memory() {
    let out = run("all_reduce -b 1000T -e 1000T");
    assert_eq!(out.code, Some(6), "{}", out.stderr);
    assert!(out.stderr.contains("available"), "{}", out.stderr);

    // The second size would be 8e12 bytes.
    let out = succeed("all_reduce -t 2 -b 8 -e 100T -f 1000000000000 -n 1");
    let line = "# Reducing the last size from 100 TiB to 8 B: ";
    assert!(out.stdout.contains(line), "{}", out.stdout);
    assert_eq!(out.rows().len(), 1);
}

#[test]
fn help_and_version() {
    let help = run("--help");
    assert_eq!(help.code, Some(0));
    for part in [
        "Exit codes",
        "all_reduce",
        "--stepfactor",
        "busbw",
        "mulsum",
    ] {
        assert!(help.stdout.contains(part), "{part}");
    }
    let version = run("--version");
    assert_eq!(version.code, Some(0));
    assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn usage_lines_can_be_typed() {
    for name in COMMANDS {
        let help: Run = command(&[name, "--help"]).output().unwrap().into();
        let usage = format!("Usage: spark-perf {name} ");
        assert!(help.stdout.contains(&usage), "{}", help.stdout);
    }
}

#[test]
fn flags_for_gpus_are_accepted_with_a_note() {
    let out = succeed("all_reduce -t 2 -b 8 -e 8 -n 1 -G 1 -x 0 -D 1 -V 16 -y 1 -p 1");
    for flag in ["-G", "-x", "-D", "-V", "-y", "-p"] {
        let note = format!("# {flag}");
        assert!(out.stdout.contains(&note), "{flag}: {}", out.stdout);
    }
}

#[test]
fn timing_flags_change_the_table() {
    let row = |args: &str| {
        let out = succeed(&format!("all_reduce -t 2 -b 64 -e 64 -n 3 {args}"));
        let rows: Vec<Vec<String>> = out
            .rows()
            .iter()
            .map(|row| row.iter().map(ToString::to_string).collect())
            .collect();
        (out.stdout, rows)
    };
    assert_eq!(row("-I 1 -K 1").1[0].len(), 21);
    assert_eq!(row("-c 0").1[0][8], "N/A");
    assert!(row("-C 1").0.contains("cputime"));
    assert!(
        row("--buffers hot")
            .0
            .contains("buffers: hot, the same in every call")
    );
    assert!(
        row("--buffers 16K")
            .0
            .contains("buffers: 16 KiB each, used in turn")
    );
    assert!(row("-S 1").0.contains("timestamp"));
    assert!(row("-M 1").0.contains("# Memory usage"));
    assert_eq!(row("-N 3").1.len(), 3);
    for args in [
        "-z 1",
        "-z 2",
        "-z 3",
        "-a 0",
        "-a 2",
        "-a 3",
        "-m 4",
        "-u 3",
        "--buffers hot",
        "--buffers 8",
        "--buffers 70000 -u 5",
    ] {
        assert_eq!(row(args).1[0][8], "0", "{args}");
    }
}
