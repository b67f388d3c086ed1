//! The signals that end this process.

use crate::error::Error;

/// Passes on each signal that asks this process to end, by its number, from a thread of its own,
/// until `pass` says that nobody listens. Signals that this process was started to ignore, as by
/// nohup, stay ignored.
///
/// # Errors
///
/// If handlers cannot be installed.
pub fn forward(pass: impl FnMut(i32) -> bool + Send + 'static) -> Result<(), Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    // Without /proc, none is known to be ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status).unwrap_or(0);
    let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
    let heard = all
        .into_iter()
        .filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = signal_hook::iterator::Signals::new(heard)
        .map_err(Error::system("installing signal handlers"))?;
    std::thread::spawn(move || signals.forever().all(pass));
    Ok(())
}

/// The signals that a process ignores, from its status: signal 1 is the lowest bit.
fn ignored(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(line?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored(status), Some(1 << 12 | 1));
        for status in ["", "SigIgn:\tx\n"] {
            assert_eq!(ignored(status), None, "{status}");
        }
    }
}
