//! Files under a folder: `/`, or a recorded tree. What is missing is `None`, or nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use spark_ccl_verbs::Sysfs;

/// A folder with `sys`, `proc` and others.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Where a file of the tree really is. An absolute path is one within the tree.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is something at this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// The whole text of a file.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }

    /// The text of a file without blanks around it; `None` if nothing is left.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = self.file(path)?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The only number in a file.
    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The hexadecimal number in a file, such as `0x15b3`.
    pub(crate) fn hex(&self, path: &str) -> Option<u32> {
        let text = self.text(path)?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    }

    /// The names in a folder, sorted.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The path within the tree that links lead to.
    pub(crate) fn resolved(&self, path: &str) -> Option<PathBuf> {
        let root = fs::canonicalize(&self.root).ok()?;
        let target = fs::canonicalize(self.at(path)).ok()?;
        Some(target.strip_prefix(root).ok()?.to_owned())
    }

    /// The PCI address of the device that a link leads to.
    pub(crate) fn pci_address(&self, path: &str) -> Option<String> {
        let target = self.resolved(path)?;
        let name = target.file_name()?.to_str()?;
        Sysfs::is_pci_address(name).then(|| name.to_owned())
    }
}
