//! Writes and removes small files atomically.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

/// The text of a file, if there is one.
pub(super) fn read(path: impl AsRef<Path>) -> io::Result<Option<String>> {
    match fs::read_to_string(path.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => named(path, outcome).map(Some),
    }
}

/// Writes a file with this content; with `None`, removes it. A power cut afterwards undoes neither.
pub(super) fn set(path: impl AsRef<Path>, wanted: Option<&str>) -> io::Result<()> {
    let path = path.as_ref();
    if read(path)?.as_deref() == wanted {
        return Ok(());
    }
    match wanted {
        Some(text) => write(path, text),
        None => named(path, fs::remove_file(path).and_then(|()| sync_folder(path))),
    }
}

/// Writes a file that only root may read, whole or not at all.
pub(super) fn write(path: impl AsRef<Path>, text: &str) -> io::Result<()> {
    let path = path.as_ref();
    // Under a name that no file has: nothing of the user's is lost.
    let written = NamedTempFile::new_in(folder(path)).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        sync_folder(path)
    });
    named(path, written)
}

/// Has the names in a file's folder on the disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(folder(path))?.sync_all()
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or(path);
    if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    }
}

/// Names the file in an error.
pub(super) fn named<T>(path: impl AsRef<Path>, outcome: io::Result<T>) -> io::Result<T> {
    outcome.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{}: {error}", path.as_ref().display()),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn nothing_beside_a_file_is_lost_or_left() {
        let folder = tempfile::tempdir().unwrap();
        let [path, own] = ["plan.yaml", "plan.new"].map(|name| folder.path().join(name));
        fs::write(&own, "the user's").unwrap();
        for text in ["first", "second"] {
            write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap().as_deref(), Some(text));
        }
        assert_eq!(read(&own).unwrap().as_deref(), Some("the user's"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
