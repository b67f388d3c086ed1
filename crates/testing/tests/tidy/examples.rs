//! Tests of the rules themselves, each on a few lines that break it.

use std::path::Path;

use crate::exceptions::{compare, list};
use crate::files::Source;
use crate::{Finding, broken};

/// The findings of the rules in these files, as rule and subject.
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
    let found = findings(files).into_iter();
    found
        .map(|finding| (finding.rule, finding.subject))
        .collect()
}

fn findings(files: &[(&str, &str)]) -> Vec<Finding> {
    let files = files
        .iter()
        .map(|(path, text)| Source::new(Path::new(path), (*text).to_owned()));
    broken(&files.collect::<Vec<_>>())
}

/// The findings in the only file of a crate.
fn found_in(text: &str) -> Vec<(&'static str, String)> {
    found(&[("src/lib.rs", text)])
}

fn one(rule: &'static str, subject: &str) -> Vec<(&'static str, String)> {
    vec![(rule, subject.to_owned())]
}

#[test]
fn long_lines_are_found() {
    assert_eq!(found_in(&format!("// {}", "é".repeat(97))), []);
    let long = format!("// {}", "é".repeat(98));
    assert_eq!(found_in(&long), one("columns", "src/lib.rs"));
    assert_eq!(
        found_in(&format!("// Made by a script. Do not edit.\n{long}")),
        []
    );
}

#[test]
fn long_functions_and_files_are_found() {
    let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
    assert_eq!(found_in(&function(60)), []);
    assert_eq!(found_in(&function(61)), one("functions", "src/lib.rs:f"));
    let method = format!("impl S {{\n{}}}\n", function(61));
    assert_eq!(found_in(&method), one("functions", "src/lib.rs:f"));
    assert_eq!(found_in(&"\n".repeat(500)), []);
    assert_eq!(found_in(&"\n".repeat(501)), one("lines", "src/lib.rs"));
}

#[test]
fn imports_have_one_order() {
    let right = "use std::fmt;\n\nuse libc::c_int;\n\nuse crate::a;\nuse super::b;\n";
    assert_eq!(found_in(right), []);
    let wrong = [
        "use crate::a;\n\nuse std::fmt;\n",
        "use std::fmt;\nuse crate::a;\n",
        "use std::fmt;\n\nuse std::io;\n",
        "mod m {\n    use libc::c_int;\n    use std::io;\n}\n",
    ];
    for text in wrong {
        assert_eq!(found_in(text), one("order", "src/lib.rs"), "{text}");
    }
}

#[test]
fn modules_are_in_the_file_beside_their_folder() {
    let files = |path| {
        found(&[
            ("src/lib.rs", "mod a;"),
            (path, ""),
            ("tests/it.rs", "mod common;"),
        ])
    };
    assert_eq!(files("src/a/mod.rs"), one("modules", "src/a/mod.rs"));
    assert_eq!(files("tests/common/mod.rs"), []);
}

#[test]
fn files_that_nothing_names_are_found() {
    let root = (
        "src/lib.rs",
        "mod a { mod b; } #[path = \"../c/d.rs\"] mod d;",
    );
    assert_eq!(found(&[root, ("src/a/b.rs", ""), ("c/d.rs", "")]), []);
    assert_eq!(found(&[root, ("src/b.rs", "")]), one("dead", "src/b.rs"));
    assert_eq!(
        found(&[root, ("tests/it.sh", "")]),
        one("dead", "tests/it.sh")
    );
    assert_eq!(
        found(&[("README.md", "tests/it.sh"), ("tests/it.sh", "")]),
        []
    );
}

#[test]
fn what_is_unfinished_or_of_one_machine_is_found() {
    let unfinished = concat!("// TO", "DO: more\n");
    assert_eq!(found_in(unfinished), one("unfinished", "src/lib.rs"));
    let machine = concat!("// See /ho", "me/somebody/notes.\n");
    assert_eq!(found_in(machine), one("machines", "src/lib.rs"));
}

#[test]
fn exceptions_only_shrink() {
    let long = |lines| {
        findings(&[(
            "src/lib.rs",
            &format!("// {}\n", "x".repeat(98)).repeat(lines),
        )])
    };
    let listed = list(&long(2));
    assert_eq!(listed.lines().last(), Some("columns 2 src/lib.rs"));
    assert!(compare(&long(2), &listed).is_empty());
    for lines in [0, 1, 3] {
        assert!(!compare(&long(lines), &listed).is_empty(), "{lines}");
    }
}
