//! Writes and removes small files atomically.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
    let new = path.with_extension("new");
    // A leftover that was only partly written.
    let _ = fs::remove_file(&new);
    let mut options = fs::File::options();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&new, path));
    named(path, renamed.and_then(|()| sync_folder(path)))
}

/// Has the names in a file's folder on the disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        fs::File::open(folder)?.sync_all()
    })
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
