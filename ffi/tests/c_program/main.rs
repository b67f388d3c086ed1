//! C programs, compiled against the header and linked with the library.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod compile;
mod launch;
mod symbols;

use std::process::Command;

use compile::{C11, CPP17, compile};
use launch::{launch, lines, verify};

#[test]
fn ranks_in_c_reduce() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/ranks.c", C11);
    let output = Command::new(&program).env_clear().output().unwrap();
    assert_eq!(lines(&output), ["rank 0 of 2: right", "rank 1 of 2: right"]);
    verify(&program, &["env"], 2);
}

#[test]
fn all_collectives_work_in_c_and_cpp() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/collectives.c", C11);
    for ranks in 1..=8 {
        verify(&program, &[], ranks);
    }
    let program = compile(directory.path(), "tests/collectives.c", CPP17);
    verify(&program, &[], 2);
}

#[test]
fn memory_is_shared_where_calls_ask_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/registered.c", C11);
    for ranks in [1, 2, 3] {
        verify(&program, &[], ranks);
        verify(&program, &["zero-copy"], ranks);
    }
}

#[test]
fn what_is_missing_for_device_memory_is_said() {
    let directory = tempfile::tempdir().unwrap();
    for language in [C11, CPP17] {
        let program = compile(directory.path(), "tests/missing.c", language);
        verify(&program, &[], 2);
    }
}

#[test]
fn requests_stand_for_calls_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/requests.c", C11);
    for ranks in [1, 3] {
        verify(&program, &[], ranks);
    }
}

#[test]
fn forked_children_have_no_handles() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/fork.c", C11);
    verify(&program, &[], 2);
}

#[test]
fn communicators_are_destroyed_while_they_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/threads.c", C11);
    verify(&program, &[], 2);
}

#[test]
fn groups_end_whatever_happens_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/groups.c", C11);
    verify(&program, &[], 2);
}

#[test]
fn the_examples_do_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    for language in [C11, CPP17] {
        let program = |name| {
            let source = format!("../examples/c/{name}.c");
            compile(directory.path(), &source, language)
        };
        assert_eq!(
            launch(&program("all_reduce"), &[], 3),
            [0, 1, 2].map(|rank| [format!("rank {rank} of 3: 3, 3")])
        );
        assert_eq!(
            launch(&program("overlap"), &[], 2),
            [0, 1].map(|rank| [format!(
                "rank {rank} of 2: 8 layers averaged; the last begins with 7.5"
            )])
        );
        let said = launch(&program("recover"), &[], 3);
        assert!(said[2].is_empty(), "{said:?}");
        for rank in 0..2 {
            // Sorted: the rank's error, and then whether it goes on.
            let [goes_on, heard] = &said[rank][..] else {
                panic!("{said:?}");
            };
            assert_eq!(*goes_on, format!("rank {rank} of 2 goes on"));
            assert!(heard.contains("rank 2"), "{said:?}");
        }
    }
}
