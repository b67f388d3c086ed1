//! Finds, signals and waits for the descendants of this process. Knows no ranks.

use std::collections::HashSet;
use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
};

/// A process, as the system describes it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    id: i32,
    parent: i32,
    /// When it started, in ticks since boot: distinguishes it from a later process with the same
    /// id.
    start: u64,
}

/// Sends a signal to every descendant. A process that starts meanwhile may miss it.
pub(super) fn signal_all(signal: Signal) {
    for process in descendants() {
        let Some(id) = Pid::from_raw(process.id) else {
            continue;
        };
        let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) else {
            continue;
        };
        // If it still exists, the handle refers to it and not to a later process with its id.
        if read(process.id).is_some_and(|now| now.start == process.start) {
            // It may end just now.
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

/// Reaps children that have ended; returns whether there are others.
pub(super) fn reap() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn descendants() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<Process> = entries
        .filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut known = HashSet::from([getpid().as_raw_pid()]);
    let mut found = Vec::new();
    loop {
        let before = found.len();
        for process in &all {
            if known.contains(&process.parent) && known.insert(process.id) {
                found.push(*process);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn read(id: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, in parentheses, may hold anything. The state follows, then the parent; the start is
    // the 22nd field.
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(1);
    Some(Process {
        id,
        parent: fields.next()?.parse().ok()?,
        start: fields.nth(17)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_of_children_are_descendants() {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut sleeper = String::new();
        let mut out = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut sleeper).unwrap();
        let sleeper: i32 = sleeper.trim().parse().unwrap();
        let found = descendants();
        let of = |id| found.iter().find(|process| process.id == id).unwrap();
        let id = shell.id().cast_signed();
        assert_eq!(of(sleeper).parent, id);
        assert_eq!(of(id).parent, getpid().as_raw_pid());
        assert!(found.iter().all(|process| process.id != 1));
        // Other tests have children, too, so these are ended by themselves.
        let kill = |id| rustix::process::kill_process(Pid::from_raw(id).unwrap(), Signal::KILL);
        kill(sleeper).unwrap();
        kill(id).unwrap();
        shell.wait().unwrap();
    }
}
