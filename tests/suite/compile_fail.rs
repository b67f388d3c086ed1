//! Programs that must not compile: most of them touch a buffer in use by an operation. For use by
//! the package that includes it.
//!
//! Each program of `tests/compile_fail` marks its wrong lines by `//~` and a part of the compiler's
//! message or its notes: an error code, or words of ours. Unlike whole messages, these stay from
//! compiler to compiler.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use spark_ccl_testing::{Need, has};

#[test]
fn wrong_programs_do_not_compile() {
    if !has(Need::Rustc) {
        return;
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut checked = 0;
    for program in std::fs::read_dir(programs).unwrap() {
        let program = program.unwrap().path();
        compare(&program, &compile(&rustc, &program));
        checked += 1;
    }
    assert!(checked > 10, "only {checked} programs");
}

/// The compiler's messages.
fn compile(rustc: &OsStr, program: &Path) -> String {
    let deps = dependencies();
    let mut attempts = 20;
    loop {
        let output = Command::new(rustc)
            .args(["--edition=2024", "--emit=metadata", "-o", "/dev/null"])
            .arg("-L")
            .arg(format!("dependency={}", deps.display()))
            .arg("--extern")
            .arg(format!("{}={}", library(), newest_library(&deps).display()))
            .arg(program)
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        attempts -= 1;
        // A build beside this test may be replacing the library or its dependencies.
        if !messages.contains("E0463") || attempts == 0 {
            return messages;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The folder where cargo puts this test and its dependencies.
fn dependencies() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().to_owned()
}

/// The package's name, as programs write it.
fn library() -> String {
    env!("CARGO_PKG_NAME").replace('-', "_")
}

/// The library built last, with which this test was built.
fn newest_library(deps: &Path) -> PathBuf {
    let files = std::fs::read_dir(deps).unwrap().map(|entry| entry.unwrap());
    let libraries = files.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(&format!("lib{}-", library())) && name.ends_with(".rlib")
    });
    let newest =
        libraries.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.unwrap().path()
}

/// Checks that every error is at a marked line, and that every mark has its error.
fn compare(program: &Path, messages: &str) {
    let name = program.file_name().unwrap().to_string_lossy();
    let text = std::fs::read_to_string(program).unwrap();
    let marks: Vec<_> = (1..)
        .zip(text.lines())
        .filter_map(|(number, line)| Some((number, line.split_once("//~ ")?.1)))
        .collect();
    assert!(!marks.is_empty(), "{name} marks no line");
    // Only warnings come before the first error.
    let messages = format!("\n{messages}");
    let seen: Vec<_> = messages
        .split("\nerror")
        .skip(1)
        .filter_map(error)
        .collect();
    assert!(!seen.is_empty(), "{name} compiles");
    for (line, message) in &seen {
        let known = marks.iter().any(|(number, _)| number == line);
        assert!(known, "{name}: an unmarked error in line {line}: {message}");
    }
    for (number, part) in marks {
        let met = seen
            .iter()
            .any(|(line, message)| *line == number && message.contains(part));
        assert!(met, "{name}: no {part} in line {number}, but\n{messages}");
    }
}

/// The line and text of an error, without the program's own lines that it quotes.
fn error(message: &str) -> Option<(u32, String)> {
    let place = message
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("--> "))?;
    let line = place.rsplit(':').nth(1)?.parse().ok()?;
    let said = message.lines().filter(|line| !line.contains("//~ "));
    Some((line, said.collect::<Vec<_>>().join("\n")))
}
