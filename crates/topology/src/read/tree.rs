//! Reads files below a root: `/`, or a recorded tree. Missing files are `None`; missing folders are
//! empty.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use spark_ccl_verbs::Sysfs;

/// The longest file, in bytes: `/proc/cpuinfo` of a large machine has some hundred KiB.
const LONGEST: u64 = 8 << 20;

/// A folder with `sys`, `proc` and others.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The real path of a file of the tree. An absolute path is taken within the tree.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether anything is at this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.inside(path).is_some()
    }

    /// The whole text of a file; `None` if it is no file, is outside the tree, or is longer than
    /// any that is read here.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        let file = fs::File::open(self.regular(path)?).ok()?;
        let mut text = String::new();
        file.take(LONGEST + 1).read_to_string(&mut text).ok()?;
        (text.len() as u64 <= LONGEST).then_some(text)
    }

    /// The real path of a regular file of the tree. Opening a pipe would block, and a device may
    /// have no end.
    pub(crate) fn regular(&self, path: &str) -> Option<PathBuf> {
        self.inside(path).filter(|file| file.is_file())
    }

    /// The text of a file, trimmed; `None` if nothing is left.
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
        let entries = self
            .inside(path)
            .and_then(|folder| fs::read_dir(folder).ok());
        let entries = entries.into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The path within the tree that links resolve to.
    pub(crate) fn resolved(&self, path: &str) -> Option<PathBuf> {
        let target = self.inside(path)?;
        Some(target.strip_prefix(&self.root).ok()?.to_owned())
    }

    /// The path that links resolve to, unless it is outside the tree.
    fn inside(&self, path: &str) -> Option<PathBuf> {
        let target = fs::canonicalize(self.at(path)).ok()?;
        target.starts_with(&self.root).then_some(target)
    }

    /// The PCI address of the device that a link leads to.
    pub(crate) fn pci_address(&self, path: &str) -> Option<String> {
        let target = self.resolved(path)?;
        let name = target.file_name()?.to_str()?;
        Sysfs::is_pci_address(name).then(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_files_of_the_tree_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::new(folder.path());
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/etc/hostname", at("outside")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        symlink("/", at("root")).unwrap();
        let pipe = nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU);
        pipe.unwrap();
        fs::File::create(at("long"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        assert_eq!(tree.file("link").as_deref(), Some("text"));
        for name in ["outside", "device", "pipe", "long", "root/etc/passwd"] {
            assert_eq!(tree.file(name), None, "{name}");
        }
        assert!(tree.names("root/etc").is_empty());
        assert_eq!(Tree::new(Path::new("/dev")).file("zero"), None);
    }
}
