//! Files in folders where others may write, too, such as `/tmp`: a link that somebody has put there is not followed.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Replaces a file at once, by way of a draft in the same folder: somebody may be reading it.
pub(super) fn replace(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(draft)?;
    file.write_all(bytes)?;
    fs::rename(draft, path)
}

/// Appends to a file, and makes it if it is not there.
pub(super) fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options.open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_of_others_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, draft, mine, log] =
            ["path", "draft", "mine", "log"].map(|name| folder.path().join(name));
        fs::write(&mine, "mine").unwrap();
        for link in [&path, &draft, &log] {
            symlink(&mine, link).unwrap();
        }
        replace(&path, &draft, b"new").unwrap();
        assert!(append(&log, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        append(&path, b"er").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }
}
