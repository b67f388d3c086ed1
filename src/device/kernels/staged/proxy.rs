//! The thread that passes the pieces of all communicators of this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spark_ccl_fork::PerProcess;
use spark_ccl_log::{Condvar, Mutex};

use super::proxy_work::ProxyWork;
use crate::error::Error;
use crate::host::or_abort;
use crate::memory::device::helper_thread;

/// How long after the last piece it spins, and until when after that it yields its core between
/// looks.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(20);
/// How long it then sleeps at least between two looks, as long as pieces may come: a thousandth of
/// the time without any.
const NAP: Duration = Duration::from_micros(50);
/// The longest of these sleeps, which grow: a graph that was captured may never be launched again.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How often it looks for calls that wait, of which others are to be told.
const WATCH: Duration = Duration::from_millis(50);
/// How many times it looks at everything before it reads the clock.
const LOOKS: u32 = 16;

static PROXY: PerProcess<Proxy> = PerProcess::new();

#[derive(Default)]
struct Proxy {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that the thread has not got yet.
    added: Vec<ProxyWork>,
    is_running: bool,
    /// Something has changed since the thread has looked.
    has_news: bool,
    is_exiting: bool,
}

/// Passes a communicator's pieces from now on, until its channel is closed.
pub(super) fn add(work: ProxyWork) -> Result<(), Error> {
    let proxy = PROXY.get();
    let mut state = proxy.state.lock();
    if !state.is_running {
        helper_thread::spawn("spark-proxy", || or_abort(|| proxy.run()))?;
        stop_at_exit();
        state.is_running = true;
    }
    state.added.push(work);
    state.has_news = true;
    proxy.news.notify_one();
    Ok(())
}

/// Has the thread look, if it sleeps.
pub(super) fn wake() {
    let proxy = PROXY.get();
    proxy.state.lock().has_news = true;
    proxy.news.notify_one();
}

/// An exiting process waits for the thread, which then ends first: the driver is taken down with
/// the memory that it reads.
fn stop_at_exit() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag orders no other memory, and registering twice does no harm.
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // Functions are called in the reverse of this order: this one before that which waits for
        // the thread, which starting the thread has registered.
        // SAFETY: the function may be called at any time, and does not unwind.
        unsafe { libc::atexit(stop) };
    }
}

extern "C" fn stop() {
    PROXY.get().state.lock().is_exiting = true;
    wake();
}

impl Proxy {
    /// Ends when there are no communicators any more, or the process exits.
    fn run(&self) {
        let mut works = Vec::new();
        let mut last = Instant::now();
        let mut watched = last;
        while self.take_news(&mut works) {
            // In turns with what else there is to do, since one communicator alone can move all the
            // time.
            if look_at_all(&mut works) {
                last = Instant::now();
            }
            works.retain_mut(|work| !work.is_over());
            if works.is_empty() {
                continue;
            }
            let now = Instant::now();
            if now.saturating_duration_since(watched) >= WATCH {
                watched = now;
                for work in &mut works {
                    work.announce(now);
                }
            }
            let idle = now.saturating_duration_since(last);
            if !works.iter().any(ProxyWork::expects) {
                self.sleep(None);
            } else if idle > YIELD {
                self.sleep(Some((idle / 1000).clamp(NAP, LONGEST_NAP)));
            } else if idle > SPIN {
                std::thread::yield_now();
            }
        }
    }

    /// Takes the communicators that have been added; whether there are any at all.
    fn take_news(&self, works: &mut Vec<ProxyWork>) -> bool {
        let mut state = self.state.lock();
        works.append(&mut state.added);
        if state.is_exiting {
            works.drain(..).for_each(ProxyWork::abandon);
        }
        state.is_running = !works.is_empty();
        state.is_running
    }

    /// Until there is news, or for this long.
    fn sleep(&self, limit: Option<Duration>) {
        let state = self.state.lock();
        let has_none = |state: &mut State| !state.has_news;
        let mut state = match limit {
            Some(limit) => self.news.wait_while_for(state, has_none, limit),
            None => self.news.wait_while(state, has_none),
        };
        state.has_news = false;
    }
}

/// Whether any had something to do in a few looks.
fn look_at_all(works: &mut [ProxyWork]) -> bool {
    (0..LOOKS).any(|_| {
        let mut moved = false;
        for work in works.iter_mut() {
            moved |= work.advance();
        }
        std::hint::spin_loop();
        moved
    })
}
