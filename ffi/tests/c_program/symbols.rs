//! What the shared library exports.

use crate::compile::{PACKAGE, library};
use std::process::Command;

/// The shared library has the functions of the header, and nothing else.
#[test]
fn only_the_header_is_exported() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library().join("libspark_ccl.so"))
        .output()
        .expect("nm is needed: install binutils");
    assert!(output.status.success());
    let symbols = String::from_utf8(output.stdout).unwrap();
    let mut exported: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    exported.sort_unstable();
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
    assert_eq!(exported, declared);
}
