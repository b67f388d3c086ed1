//! Ties a process to the one that starts it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the system send the command's process a signal when the thread that starts it ends.
pub fn ends_with_this_thread(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have ended just before.
        if getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    };
    // SAFETY: between fork and exec, `tie` only makes two system calls. It allocates nothing, takes
    // no lock, and uses nothing that other threads may have been changing at the fork.
    unsafe { command.pre_exec(tie) };
}
