//! Compiled kernels are checked in. This test needs neither a compiler nor a network:
//! `crates/cuda/kernels/build.sh --check` compiles the kernels again.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// The images and the sources from which they were compiled, by names and hashes.
#[derive(Debug, Deserialize)]
struct Manifest {
    sources: BTreeMap<String, String>,
    images: BTreeMap<String, String>,
    /// Headers of other folders that the sources include, by folder.
    #[serde(default)]
    beside: BTreeMap<String, BTreeMap<String, String>>,
}

#[test]
fn images_are_of_the_sources_that_are_here() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let crates = std::fs::read_dir(workspace.unwrap().join("crates")).unwrap();
    let folders = crates.map(|entry| entry.unwrap().path().join("kernels"));
    let with_kernels: Vec<_> = folders
        .filter(|folder| folder.exists() && !hashes(folder, &["cu"]).is_empty())
        .collect();
    assert!(!with_kernels.is_empty());
    for folder in with_kernels {
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Manifest = serde_json::from_str(&manifest).unwrap();
        let hint = format!("{}: run crates/cuda/kernels/build.sh", folder.display());
        assert_eq!(manifest.sources, hashes(&folder, &["cu", "h"]), "{hint}");
        assert_eq!(manifest.images, hashes(&folder, &["images"]), "{hint}");
        for (beside, expected) in manifest.beside {
            assert_eq!(expected, hashes(&folder.join(beside), &["h"]), "{hint}");
        }
    }
}

/// The hashes of a folder's files with these extensions.
fn hashes(folder: &Path, extensions: &[&str]) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let wanted = |file: &PathBuf| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    };
    files.filter(wanted).map(|file| hash(&file)).collect()
}

fn hash(file: &Path) -> (String, String) {
    let digest = Sha256::digest(std::fs::read(file).unwrap());
    let digits: Vec<_> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    (name, digits.concat())
}
