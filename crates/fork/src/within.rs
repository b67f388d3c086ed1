//! A deadline for calls that have none of their own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;

use crate::PerProcess;

/// The most calls under way at once: a program that retries a call that never returns must not
/// grow.
const MOST: usize = 64;

/// Calls of [`within`] that are under way, including those abandoned at their deadline.
static UNDER_WAY: PerProcess<AtomicUsize> = PerProcess::new();

/// Looks up a host name with the system's resolver, which has no deadline of its own.
///
/// # Errors
/// Those of [`within`], and the resolver's.
pub fn lookup(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    let target = (host.to_owned(), port);
    within(deadline, move || {
        target.to_socket_addrs().map(Iterator::collect)
    })?
}

/// Runs `work` on a thread of its own, and waits for it until the deadline. After that the thread
/// runs on, and its result is dropped.
///
/// # Errors
/// `TimedOut` at the deadline; `ResourceBusy` where 64 earlier calls have not ended; the system's
/// error if it refuses the thread.
pub fn within<T: Send + 'static>(
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let turn = Turn::begin()?;
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("spark-ccl-call".to_owned())
        .spawn(move || {
            let result = work();
            drop(turn);
            // Fails if the deadline has passed and the receiver is gone.
            let _ = sender.send(result);
        })?;
    let left = deadline.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).map_err(|error| match error {
        RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
        RecvTimeoutError::Disconnected => io::Error::other("the thread that did it panicked"),
    })
}

/// Counts a call as under way while it exists.
struct Turn;

impl Turn {
    fn begin() -> io::Result<Self> {
        // Relaxed, here and below: only the number counts, and no other data is read because of it.
        let before = UNDER_WAY.get().fetch_add(1, Ordering::Relaxed);
        let turn = Self;
        if before < MOST {
            return Ok(turn);
        }
        let text = format!("{MOST} earlier calls to the system have not returned yet");
        Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        UNDER_WAY.get().fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

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

    /// Runs in a process of its own, because it uses up all calls that other tests need.
    #[test]
    fn work_that_never_ends_is_not_begun_without_end() {
        const ALONE: &str = "SPARK_CCL_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "within::tests::work_that_never_ends_is_not_begun_without_end";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let alone = alone.args(["--exact", name]).env(ALONE, "1").output();
            let output = alone.unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                output.status.success() && text.contains("1 passed"),
                "{text}"
            );
            return;
        }
        let (end, wait) = sync_channel::<()>(0);
        let wait = Arc::new(Mutex::new(wait));
        let hang = || {
            let wait = Arc::clone(&wait);
            within(Instant::now(), move || wait.lock().unwrap().recv())
        };
        for _ in 0..MOST {
            assert_eq!(hang().unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(hang().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(end);
        let until = Instant::now() + Duration::from_secs(60);
        while within(until, || ()).is_err() {
            assert!(Instant::now() < until, "none of them ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
