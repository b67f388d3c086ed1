//! A deadline for calls that have none of their own.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::PerProcess;

/// The most calls under way at once: a program that retries a call that never returns must not
/// grow.
const MOST: usize = 64;

/// Calls of [`within`] that are under way, including those abandoned at their deadline.
static UNDER_WAY: PerProcess<AtomicUsize> = PerProcess::new();

/// How often a wait asks whether it is to go on.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Looks up a host name with the system's resolver, which has no deadline of its own.
///
/// # Errors
/// Those of [`within`], and the resolver's.
pub fn lookup(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    within(deadline, resolver(host, port))?
}

/// Does what [`lookup`] does, but waits only while `check` succeeds.
///
/// # Errors
/// The outer error is that of `check`. The inner ones are those of [`lookup`].
pub fn lookup_while<E>(
    host: &str,
    port: u16,
    deadline: Instant,
    check: impl FnMut() -> Result<(), E>,
) -> Result<io::Result<Vec<SocketAddr>>, E> {
    within_while(deadline, check, resolver(host, port)).map(Result::flatten)
}

fn resolver(
    host: &str,
    port: u16,
) -> impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static {
    let target = (host.to_owned(), port);
    move || target.to_socket_addrs().map(Iterator::collect)
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
    let Ok(done) = within_while(deadline, || Ok::<_, Infallible>(()), work);
    done
}

/// Does what [`within`] does, but waits only while `check` succeeds, which it calls often.
///
/// # Errors
/// The outer error is that of `check`; the thread then runs on. The inner ones are those of
/// [`within`].
pub fn within_while<T: Send + 'static, E>(
    deadline: Instant,
    mut check: impl FnMut() -> Result<(), E>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<io::Result<T>, E> {
    let receiver = match begin(work) {
        Ok(receiver) => receiver,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(ASK_EVERY)) {
            Ok(result) => return Ok(Ok(result)),
            Err(RecvTimeoutError::Timeout) if left <= ASK_EVERY => {
                return Ok(Err(io::ErrorKind::TimedOut.into()));
            }
            Err(RecvTimeoutError::Timeout) => check()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(io::Error::other("the thread that did it panicked")));
            }
        }
    }
}

/// Begins `work` on a thread of its own. Returns where its result will be.
fn begin<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Receiver<T>> {
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
    Ok(receiver)
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

    #[test]
    fn a_wait_ends_when_its_check_fails() {
        let (end, wait) = sync_channel::<()>(0);
        let long = Instant::now() + Duration::from_secs(300);
        let mut left = 3;
        let check = || {
            left -= 1;
            if left == 0 { Err("cancelled") } else { Ok(()) }
        };
        let ended = within_while(long, check, move || wait.recv());
        assert!(matches!(ended, Err("cancelled")), "{ended:?}");
        drop(end);
        let done = within_while(long, || Ok::<_, ()>(()), || 7);
        assert_eq!(done.unwrap().unwrap(), 7);
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
