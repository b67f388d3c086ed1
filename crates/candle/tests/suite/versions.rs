//! Checks that candle has the same cudarc as spark-ccl: buffers of GPUs go from one to the other.

use std::path::Path;

#[test]
fn cudarc_is_of_one_version() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = versions(&folder.join("Cargo.lock"));
    let there = versions(&folder.join("../../Cargo.lock"));
    assert_eq!(here.len(), 1, "{here:?}");
    assert_eq!(
        here, there,
        "update cudarc in both, or candle to one that has it"
    );
}

/// cudarc's versions in a lock file.
fn versions(lock: &Path) -> Vec<String> {
    let text =
        std::fs::read_to_string(lock).unwrap_or_else(|it| panic!("{}: {it}", lock.display()));
    let mut lines = text.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line == "name = \"cudarc\"" {
            found.push(lines.next().unwrap().to_owned());
        }
    }
    found
}
