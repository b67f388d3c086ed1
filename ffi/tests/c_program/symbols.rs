//! The symbols of the shared library.

use std::process::Command;

use crate::compile::{PACKAGE, SONAME, library};

/// The output of a tool of binutils about the library.
fn tell(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .arg(library().join("libspark_ccl.so"))
        .output()
        .expect("nm and readelf are needed: install binutils");
    assert!(output.status.success(), "{tool}");
    String::from_utf8(output.stdout).unwrap()
}

fn exported() -> Vec<String> {
    let symbols = tell("nm", &["-D", "--defined-only", "--format=posix"]);
    let names = symbols.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// The shared library has the functions of the header, and nothing else.
#[test]
fn only_the_header_is_exported() {
    let header = std::fs::read_to_string(format!("{PACKAGE}/include/spark_ccl.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| {
            line.starts_with("spark_ccl_")
                || line.starts_with("int ")
                || line.starts_with("const char *")
        })
        .filter_map(|line| line.split('(').next())
        .filter_map(|start| start.rsplit([' ', '*']).next())
        .collect();
    declared.sort_unstable();
    assert_eq!(exported(), declared);
}

/// A function that is gone breaks programs which were linked before: then the number in the
/// library's name changes, too.
#[test]
fn what_is_exported_is_on_record() {
    let record = include_str!("../../symbols.txt");
    assert_eq!(exported(), record.lines().collect::<Vec<_>>());
}

/// Each function is among those that leave the current context of CUDA alone, which
/// `tests/fake-gpus.sh` runs.
#[test]
fn every_function_is_called_beside_another_context() {
    let program = include_str!("../context.c");
    let is_called = |name: &&str| program.contains(&format!("{name}("));
    let record = include_str!("../../symbols.txt");
    let missing: Vec<_> = record.lines().filter(|name| !is_called(name)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "not in tests/context.c");
}

#[test]
fn programs_look_for_the_version_of_the_abi() {
    let dynamic = tell("readelf", &["--dynamic", "--wide"]);
    assert!(dynamic.contains(&format!("[{SONAME}]")), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}
