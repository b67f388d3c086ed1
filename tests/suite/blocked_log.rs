//! Blocks standard error: a full pipe that nobody reads. A rank's answers bypass it.

use std::fs::File;
use std::io::{PipeReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::processes::MARK;

/// The former standard error of this process, and the pipe that replaced it.
static BLOCKED: OnceLock<(File, PipeReader)> = OnceLock::new();

/// From now on, writes to this process's standard error block.
pub(crate) fn block() {
    let (reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    let before = std::io::stderr().as_fd().try_clone_to_owned().unwrap();
    assert!(BLOCKED.set((before.into(), reader)).is_ok());
    // SAFETY: `writer` and standard error are open, and no `OwnedFd` of this process owns standard
    // error, so `dup2` closes nothing that another part relies on.
    assert!(unsafe { libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO) } >= 0);
}

/// Prints one line in a single write: other threads may print, too.
pub(crate) fn answer(text: &str) {
    let line = format!("{MARK}{text}\n");
    match BLOCKED.get() {
        Some((before, _)) => (&*before).write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    }
    .unwrap();
}

/// Writes until nothing more fits.
pub(crate) fn fill(pipe: &impl AsFd) {
    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    for bytes in [4096, 1] {
        while rustix::io::write(pipe, &vec![b'x'; bytes]).is_ok() {}
    }
    fcntl_setfl(pipe, flags).unwrap();
}
