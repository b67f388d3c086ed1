//! The signals that end this process.

use crate::error::Error;

/// Passes on each signal that asks this process to end, by its number, from a thread of its own, until `pass` says that
/// nobody listens.
pub(crate) fn forward(pass: impl Fn(i32) -> bool + Send + 'static) -> Result<(), Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .map_err(Error::system("installing signal handlers"))?;
    std::thread::spawn(move || signals.forever().all(pass));
    Ok(())
}
