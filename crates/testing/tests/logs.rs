//! Checks that no library crate logs or prints past `crates/log`, and that a crate that logs takes
//! only that crate's locks. Under any other lock, a blocked subscriber would hold up all threads
//! that wait for the lock.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

/// The programs print; `log` is what the others use.
const EXEMPT: [&str; 5] = ["cluster", "console", "perf", "testing", "log"];
/// Tests, models and stand-ins have their own locks, and print.
const TESTS: [&str; 5] = ["tests", "tests.rs", "model.rs", "testing", "link/cost.rs"];

#[test]
fn nothing_is_logged_past_the_crate_that_keeps_it_from_locks() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = manifest.ancestors().nth(2).unwrap();
    let crates = std::fs::read_dir(workspace.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap());
    let crates = crates.filter(|it| EXEMPT.iter().all(|exempt| it.file_name() != *exempt));
    let folders = crates.map(|it| it.path());
    let folders = folders.chain([workspace.to_owned(), workspace.join("ffi")]);
    let (mut found, mut logging) = (Vec::new(), 0);
    for folder in folders {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let logs = manifest.contains("\nspark-ccl-log.workspace");
        logging += usize::from(logs);
        for file in sources(&folder.join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let wrong = wrong_lines(&text, logs);
            found.extend(wrong.map(|line| format!("{}: {line}", file.display())));
        }
    }
    assert!(logging > 8, "the crates that log were not found");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_wrong_is_found() {
    let wrong = [
        "tracing::warn!(\"text\");",
        "eprintln!(\"text\");",
        "use std::sync::{Arc, Mutex};",
        "use parking_lot::Condvar;",
        "std::sync::RwLock::new(1)",
        "std::thread::Builder::new()",
    ];
    let right = [
        "spark_ccl_log::warn!(\"text\");",
        "// eprintln!",
        "use std::sync::Arc;",
        "use spark_ccl_log::Mutex;",
        "use loom::sync::Mutex;",
        "loom::thread::spawn(work)",
    ];
    let all = |lines: &[&str]| lines.join("\n");
    let found = |text: &str| wrong_lines(text, true).count();
    assert_eq!((found(&all(&wrong)), found(&all(&right))), (wrong.len(), 0));
    // In a crate that never logs, locks do not matter; nor do those of tests.
    assert_eq!(wrong_lines(&all(&wrong), false).count(), 2);
    let test = format!("#[cfg(test)]\nmod tests {{\n{}", all(&wrong));
    assert_eq!(found(&test), 0);
}

/// The lines that log or print, or, in a crate that logs, name another lock or start a thread.
fn wrong_lines(text: &str, logs: bool) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let code = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.filter(move |line| is_event(line) || logs && (is_lock(line) || is_thread(line)))
}

fn is_event(line: &str) -> bool {
    let macros = ["error", "warn", "info", "debug", "trace", "event"];
    let events = macros
        .iter()
        .any(|name| line.contains(&format!("tracing::{name}!")));
    let prints = ["print!", "println!", "dbg!"];
    events || prints.iter().any(|print| line.contains(print))
}

fn is_lock(line: &str) -> bool {
    let names = ["Mutex", "RwLock", "Condvar", "LazyLock"];
    line.contains("parking_lot::")
        || line.contains("std::sync::") && names.iter().any(|name| line.contains(name))
}

fn is_thread(line: &str) -> bool {
    let names = ["thread::Builder", "thread::spawn"];
    let is_other = line.contains("loom::") || line.contains("helper_thread");
    !is_other && names.iter().any(|name| line.contains(name))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap());
    let entries = entries.filter(|it| TESTS.iter().all(|test| !it.path().ends_with(test)));
    entries
        .flat_map(|it| match it.path() {
            path if path.is_dir() => sources(&path),
            path => vec![path],
        })
        .collect()
}
