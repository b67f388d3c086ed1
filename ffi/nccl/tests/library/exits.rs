//! Ends of C++ programs, whose destructors run among the library's handlers at exit.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use spark_ccl_testing::{Need, has};

use crate::{PACKAGE, library};

/// Compiles a program of C++, or the library that it unloads.
fn compile(directory: &Path, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let made = directory.join(name);
    let status = Command::new("c++")
        .args([
            "-std=c++17",
            "-O1",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(options)
        .arg(format!("{PACKAGE}/tests/{source}"))
        .arg("-o")
        .arg(&made)
        .arg(library())
        .arg("-ldl")
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .status()
        .unwrap();
    assert!(status.success(), "the compiler's complaints are above");
    made
}

/// What a program writes, on host memory. It must succeed.
fn run(program: &mut Command) -> [String; 2] {
    let alone = program.env_clear().env("SPARK_CCL_BACKEND", "host");
    let output = alone.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let status = output.status;
    assert!(status.success(), "{program:?}: {status:?} {said:?}");
    said
}

#[test]
fn programs_end_whoever_destroys_communicators() {
    if !has(Need::CppCompiler) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    symlink(library(), directory.path().join("libnccl.so.2")).unwrap();
    let program = compile(directory.path(), "exits.cpp", "exits", &[]);
    let plugin = ["-DPLUGIN", "-shared", "-fPIC", "-fno-gnu-unique"];
    let plugin = compile(directory.path(), "exits.cpp", "plugin.so", &plugin);
    for (how, said) in [
        ("earlier", "destroyed\n"),
        ("later", "destroyed\n"),
        ("thread", "destroyed\n"),
        ("calls", "refused\ndestroyed\n"),
        ("never", ""),
        ("busy", ""),
        ("unloaded", "destroyed\nunloaded\ndestroyed\n"),
        ("forgotten", "unloaded\ndestroyed\n"),
    ] {
        let seen = run(Command::new(&program).arg(how).arg(&plugin));
        assert_eq!(seen, [said, ""], "{how}");
    }
}

/// After the library's handlers at exit, when destructors of static objects run, every function
/// returns.
#[test]
fn static_destructors_may_call_every_function() {
    if !has(Need::CppCompiler) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    symlink(library(), directory.path().join("libnccl.so.2")).unwrap();
    let program = compile(directory.path(), "late.cpp", "late", &[]);
    let [stdout, _] = run(&mut Command::new(program));
    assert!(stdout.ends_with("\nall\n"), "{stdout}");
    let called: BTreeSet<_> = stdout.lines().collect();
    let record = include_str!("../../symbols.txt").lines();
    let missing: Vec<_> = record
        .filter(|name| name.starts_with("nccl") && !called.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
