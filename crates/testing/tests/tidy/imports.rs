//! Reads the modules of a crate, and finds circles of modules that import each other. Code that two
//! modules need belongs in a module of its own, so each can be read without its users. Only a
//! module and its own children may name each other.
//!
//! Every crate's `src` is read, except for tests. A name counts as a dependency on the file that
//! defines it, wherever it is re-exported: a facade neither hides a circle nor makes one.

mod circles;
mod examples;
mod names;
mod source;
mod tree;

use std::path::{Path, PathBuf};

use circles::circles;
pub(crate) use circles::{edges, reached};
pub(crate) use tree::{Meaning, Tree};

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let trees = trees(&crate::files::workspace());
    let found: Vec<_> = trees.iter().flat_map(circles).collect();
    let text: Vec<_> = found.iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    assert!(
        found.is_empty(),
        "modules import each other in circles:\n{text}"
    );
}

/// The modules of every library and program of the workspace.
pub(crate) fn trees(workspace: &Path) -> Vec<Tree> {
    let roots = roots(workspace);
    assert!(roots.len() > 10, "the crates were not found: {roots:?}");
    let read = |path: &Path| std::fs::read_to_string(workspace.join(path)).ok();
    roots.iter().map(|root| Tree::read(root, &read)).collect()
}

/// The root file of every library and program of the workspace.
fn roots(workspace: &Path) -> Vec<PathBuf> {
    let crates = std::fs::read_dir(workspace.join("crates")).unwrap();
    let crates = crates.map(|entry| Path::new("crates").join(entry.unwrap().file_name()));
    let others = ["", "ffi", "ffi/nccl"].map(PathBuf::from);
    let mut folders: Vec<_> = crates.chain(others).collect();
    folders.sort();
    let roots = folders
        .iter()
        .flat_map(|folder| ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)));
    roots.filter(|root| workspace.join(root).exists()).collect()
}
