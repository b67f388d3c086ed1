//! Checks that the modules of a crate do not import each other in cycles: what two of them need is in a module of its
//! own, and each can be read without its users. Only a module and its own children may name each other.
//!
//! The check reads every crate's `src`, except for tests. A name counts as a dependency on the file that defines it,
//! wherever it is re-exported: a facade neither hides a cycle nor makes one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod circles;
mod examples;
mod names;
mod source;
mod tree;

use std::path::{Path, PathBuf};

use circles::circles;
use tree::Tree;

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = manifest.ancestors().nth(2).unwrap();
    let roots = roots(workspace);
    assert!(roots.len() > 10, "the crates were not found: {roots:?}");

    let read = |path: &Path| std::fs::read_to_string(workspace.join(path)).ok();
    let trees = roots.iter().map(|root| Tree::read(root, &read));
    let found: Vec<_> = trees.flat_map(|tree| circles(&tree)).collect();
    let text: Vec<_> = found.iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    assert!(
        found.is_empty(),
        "modules import each other in circles:\n{text}"
    );
}

/// The root file of every library and program of the workspace.
fn roots(workspace: &Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(workspace.join("crates")).unwrap();
    let crates = crates.map(|entry| Path::new("crates").join(entry.unwrap().file_name()));
    let mut folders: Vec<_> = crates.chain(["".into(), "ffi".into()]).collect();
    folders.sort();
    let roots = folders
        .iter()
        .flat_map(|folder| ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)));
    roots.filter(|root| workspace.join(root).exists()).collect()
}
