//! Files that settings name. They are often in folders such as `/tmp`, where other users may write,
//! too: their links are not followed. A file to read may be a pipe without a writer, or a device
//! without an end: reads have a greatest length and a deadline.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The user whose links lead to devices, such as `/dev/stdout`.
const ROOT: u32 = 0;

/// The longest wait for a file that may also be missing, out of a `limit` for everything.
pub(crate) fn patience(limit: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_secs(5);
    (limit / 4).min(LONGEST)
}

/// Reads a file of at most `most` bytes to its end. A pipe may deliver until the deadline.
///
/// The deadline holds for pipes and devices. A file on a network that hangs blocks the caller, as
/// it blocks any program.
///
/// # Errors
/// If the system refuses it; `InvalidData` for a longer file; `TimedOut` if its end has not come by
/// the deadline.
pub fn read(path: &Path, most: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    read_open(&open_to_read(path)?, most, deadline)
}

/// Opens a file for [`read_open`]: a pipe without a writer does not hold it up.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nonblocking.bits() as i32);
    options.open(path)
}

/// Reads an open file as [`read`] does.
pub(crate) fn read_open(mut file: &File, most: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; (most + 1).min(64 * 1024)]);
    while bytes.len() <= most {
        // A pipe that has had no writer yet reads as if it had ended.
        await_bytes(file, deadline)?;
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let what = format!("larger than {most} bytes");
    Err(io::Error::new(ErrorKind::InvalidData, what))
}

/// Waits until a file can be read, or has ended.
fn await_bytes(file: &File, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut wait = [PollFd::new(file, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut wait, Some(&limit)) {
            Ok(0) if left.is_zero() => {
                let what = "it is a pipe or a device, and has not delivered all in time";
                return Err(io::Error::new(ErrorKind::TimedOut, what));
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Creates a file, or truncates an existing one.
///
/// # Errors
/// If the system refuses it, or the path is a link of another user.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    open(path, &mut options, OFlags::empty())
}

/// As [`create`], for a log, which must not wait for readers: opening a pipe without a reader
/// fails, and a write to a full pipe fails with `WouldBlock`.
///
/// # Errors
/// As for [`create`].
pub fn create_log(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    open(path, &mut options, OFlags::NONBLOCK)
}

/// Appends to a file, and creates it if it does not exist.
///
/// # Errors
/// As for [`create`]; and if it is no regular file: a pipe would block until it is read.
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

/// Replaces a file atomically, by a draft in the same folder, since a program may be reading it. A
/// link at either path is replaced, not followed.
///
/// # Errors
/// If the system refuses it. The file is then unchanged.
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

/// Opens a file, also through a link of this user or of root. In a folder like `/tmp`, nobody else
/// can remove that link between the check of its owner and the second attempt.
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
    use std::os::unix::fs::{lchown, symlink};
    use std::path::PathBuf;

    use spark_ccl_testing::{Need, has};

    use super::*;

    fn pipe(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        path
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!(read(&path, 4, soon()).unwrap(), b"text");
        for (path, most) in [(&*path, 3), (Path::new("/dev/zero"), 100_000)] {
            let error = read(path, most, late()).unwrap_err();
            assert_eq!(error.to_string(), format!("larger than {most} bytes"));
        }
        assert_eq!(read(Path::new("/dev/null"), 3, late()).unwrap(), b"");
        let missing = read(&folder.path().join("none"), 3, late()).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(read(folder.path(), 3, late()).is_err());
    }

    #[test]
    fn a_pipe_is_waited_for_until_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let path = pipe(&folder);
        let error = read(&path, 10, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
                for part in ["te", "xt"] {
                    std::thread::sleep(Duration::from_millis(50));
                    writer.write_all(part.as_bytes()).unwrap();
                }
            });
            assert_eq!(read(&path, 10, late()).unwrap(), b"text");
            writer.join().unwrap();
        });
        // A writer that never closes the pipe.
        let mut both = OpenOptions::new();
        let mut writer = both.read(true).write(true).open(&path).unwrap();
        writer.write_all(b"text").unwrap();
        let error = read(&path, 10, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

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
        // A replacement that fails leaves no draft.
        let directory = folder.path().join("directory");
        fs::create_dir(&directory).unwrap();
        assert!(replace(&directory, &draft, b"new").is_err() && !draft.exists());
    }

    #[test]
    fn a_pipe_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = pipe(&folder);
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
