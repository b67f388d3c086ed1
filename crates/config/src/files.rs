//! Files that settings have the library write, often in folders where others may write, too, such as `/tmp`: a link that
//! another user has put there is not followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The user whose links lead to devices, such as `/dev/stdout`.
const ROOT: u32 = 0;

/// Makes a file, or empties the one that is there.
///
/// # Errors
/// If the system refuses it, or the path is a link of another user.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    open(path, &mut options, OFlags::empty())
}

/// Appends to a file, and makes it if it is not there.
///
/// # Errors
/// As for [`create`]; and if it is no regular file: a pipe would keep this waiting until somebody reads it.
pub fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    let mut file = open(path, &mut options, OFlags::NONBLOCK)?;
    if !file.metadata()?.is_file() {
        let what = format!("{} is no regular file", path.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, what));
    }
    file.write_all(bytes)
}

/// Replaces a file at once, by way of a draft in the same folder: somebody may be reading it. A link at either path is
/// replaced, not followed.
///
/// # Errors
/// If the system refuses it; the file is as it was then.
pub fn replace(path: &Path, draft: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(draft)?;
    let replaced = file.write_all(bytes).and_then(|()| fs::rename(draft, path));
    if replaced.is_err() {
        // If this fails, too, the draft stays behind.
        let _ = fs::remove_file(draft);
    }
    replaced
}

/// Opens a file, also through a link of this user or of root. In a folder like `/tmp`, nobody else can take such a link
/// away between the look at its owner and the second attempt.
fn open(path: &Path, options: &mut OpenOptions, flags: OFlags) -> io::Result<File> {
    let without_links = (flags | OFlags::NOFOLLOW).bits() as i32;
    let opened = options.clone().custom_flags(without_links).open(path);
    let is_link = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::LOOP);
    if !opened.as_ref().is_err_and(is_link) {
        return opened;
    }
    let owner = fs::symlink_metadata(path)?.uid();
    if owner == ROOT || owner == rustix::process::geteuid().as_raw() {
        return options.custom_flags(flags.bits() as i32).open(path);
    }
    let refused = format!("it is a link of another user ({owner}): remove it, or write elsewhere");
    Err(io::Error::new(ErrorKind::PermissionDenied, refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spark_ccl_testing::{Need, has};
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn a_draft_is_not_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [path, draft, mine] = ["path", "draft", "mine"].map(|name| folder.path().join(name));
        fs::write(&mine, "mine").unwrap();
        for link in [&path, &draft] {
            symlink(&mine, link).unwrap();
        }
        replace(&path, &draft, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert!(!draft.exists());
        // What cannot be replaced leaves no draft.
        let directory = folder.path().join("directory");
        fs::create_dir(&directory).unwrap();
        assert!(replace(&directory, &draft, b"new").is_err() && !draft.exists());
    }

    #[test]
    fn a_pipe_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(append(&path, b"text").is_err());
        // It can be opened while there is a reader.
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let mut options = OpenOptions::new();
        let _reader = options.read(true).custom_flags(nonblocking).open(&path);
        let error = append(&path, b"text").unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
    }

    #[test]
    fn links_of_this_user_and_of_root_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [link, mine] = ["link", "mine"].map(|name| folder.path().join(name));
        symlink(&mine, &link).unwrap();
        create(&link).unwrap().write_all(b"new").unwrap();
        append(&link, b"er").unwrap();
        assert_eq!(fs::read(&mine).unwrap(), b"newer");
        create(&mine).unwrap();
        assert_eq!(fs::read(&mine).unwrap(), b"");
    }

    #[test]
    fn links_of_another_user_are_not_followed() {
        if !has(Need::Chown) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [link, mine, absent] = ["link", "mine", "absent"].map(|name| folder.path().join(name));
        fs::write(&mine, "mine").unwrap();
        for target in [&mine, &absent] {
            symlink(target, &link).unwrap();
            lchown(&link, Some(65534), None).unwrap();
            let refused = create(&link).map(drop);
            for refused in [refused, append(&link, b"new")] {
                let why = refused.unwrap_err().to_string();
                assert!(why.contains("link of another user (65534)"), "{why}");
            }
            fs::remove_file(&link).unwrap();
        }
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert!(!absent.exists());
    }
}
