//! Runs the examples unchanged.

use std::path::Path;
use std::process::{Command, Output};

fn run(name: &str) -> String {
    let output = output(name);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn output(name: &str) -> Output {
    // This test is in target/profile/deps; cargo builds the examples beside that folder.
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let example = profile.join("examples").join(name);
    Command::new(&example)
        .env_clear()
        .output()
        .unwrap_or_else(|error| panic!("{} (built by `cargo test`): {error}", example.display()))
}

#[test]
fn all_reduce() {
    let text = run("all_reduce");
    for line in [
        "rank 0 of 2: [0.0, 1.0] became [1.0, 2.0]",
        "rank 1 of 2: [1.0, 1.0] became [1.0, 2.0]",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn recover() {
    let text = run("recover");
    for line in [
        "died: its process ended without a goodbye",
        "rank 0 of 2 learned 12540",
        "rank 1 of 2 learned 12540",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn overlap() {
    let text = run("overlap");
    for rank in 0..2 {
        let line = format!("rank {rank}: 8 layers averaged");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn tensor_parallel() {
    let text = run("tensor_parallel");
    for rank in 0..4 {
        let line =
            format!("rank {rank} of 4 has 8 of 32 hidden values, and the output of one rank");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
#[cfg(feature = "cuda")]
fn nccl_all_reduce() {
    if spark_ccl::cuda::devices().is_ok() {
        assert!(run("nccl_all_reduce").contains("rank 0 of 1 on device Some(0): [0.0, 1.0]"));
        return;
    }
    let output = output("nccl_all_reduce");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && !errors.contains("panicked"),
        "{errors}"
    );
    assert!(
        errors.contains("libcuda") || errors.contains("finds no GPU"),
        "{errors}"
    );
}

/// Pages are also read as plain text, where no tool hides lines or knows the language.
#[test]
fn the_programs_of_the_tutorial_are_whole() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorial");
    let mut programs = 0;
    for page in std::fs::read_dir(pages).unwrap() {
        let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
        for block in text.split("\n```").skip(1).step_by(2) {
            let (language, code) = block.split_once('\n').unwrap();
            let is_whole = match language {
                "rust" | "rust,no_run" => code.contains("fn main()"),
                "c" => code.starts_with("#include <spark_ccl.h>\n"),
                _ => language == "sh",
            };
            assert!(is_whole, "{language}: {code}");
            let is_hidden = |line: &str| line == "#" || line.starts_with("# ");
            assert!(!code.lines().any(is_hidden), "{code}");
            programs += usize::from(language != "sh");
        }
    }
    assert!(programs > 10, "{programs} programs");
}
