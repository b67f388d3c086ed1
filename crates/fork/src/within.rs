//! A deadline for calls that have none of their own.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;

/// Does `work` on a thread of its own, and waits for it until the deadline. After that the thread goes on by itself,
/// and nobody gets its result.
///
/// # Errors
/// `TimedOut` at the deadline; the system's error if it refuses the thread.
pub fn within<T: Send + 'static>(
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("spark-ccl-call".to_owned())
        .spawn(move || {
            // Fails if the deadline has passed and the receiver is gone.
            let _ = sender.send(work());
        })?;
    let left = deadline.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).map_err(|error| match error {
        RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
        RecvTimeoutError::Disconnected => io::Error::other("the thread that did it panicked"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn work_that_takes_too_long_is_not_waited_for() {
        let begin = Instant::now();
        let (end, wait) = sync_channel::<()>(0);
        let late = within(begin + Duration::from_millis(50), move || wait.recv());
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(end);
        let long = Instant::now() + Duration::from_secs(30);
        assert_eq!(within(long, || 7).unwrap(), 7);
        let fails: fn() = || panic!("it fails");
        assert!(within(long, fails).is_err());
        assert!(begin.elapsed() < Duration::from_secs(15));
    }
}
