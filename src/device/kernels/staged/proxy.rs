//! The thread that passes the pieces of all communicators of this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spark_ccl_fork::PerProcess;
use spark_ccl_log::{Condvar, Mutex};

use super::proxy_work::ProxyWork;
use crate::error::Error;
use crate::host::or_abort;
use crate::memory::device::helper_thread;

/// How long after the last piece the thread spins, and how long after the last piece it still
/// yields its core between looks.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(20);
/// The shortest sleep between two looks after that, while pieces may come. A sleep is a thousandth
/// of the time without pieces, within these limits.
const NAP: Duration = Duration::from_micros(50);
/// The longest of these sleeps. They grow since a captured graph may never be launched again.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// How often it checks for calls that wait, to tell other ranks of them.
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
    /// Communicators that the thread has not taken yet.
    added: Vec<ProxyWork>,
    is_running: bool,
    /// Whether something has changed since the thread's last look.
    has_news: bool,
    is_exiting: bool,
}

/// Passes a communicator's pieces from now on, until its queue is closed.
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

/// Wakes the thread, if it sleeps.
pub(super) fn wake() {
    let proxy = PROXY.get();
    proxy.state.lock().has_news = true;
    proxy.news.notify_one();
}

/// Has an exiting process wait for the thread to end: the driver is taken down with the memory that
/// the thread reads.
fn stop_at_exit() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag orders no other memory, and registering twice does no harm.
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // Functions are called in the reverse order of their registration. `thread::spawn` has
        // registered the one that waits for the thread, so `stop` is called before it.
        //
        // SAFETY: `stop` has the type that atexit takes. It only sets a flag of a static under a
        // lock and wakes the thread: so it may be called at any time, and does not unwind.
        unsafe { libc::atexit(stop) };
    }
}

extern "C" fn stop() {
    PROXY.get().state.lock().is_exiting = true;
    wake();
}

impl Proxy {
    /// Runs until there are no communicators any more, or the process exits.
    fn run(&self) {
        let mut works = Vec::new();
        let mut last = Instant::now();
        let mut watched = last;
        while self.take_news(&mut works) {
            // In turns with the other tasks below, since one communicator alone can always have
            // something to move.
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

    /// Takes the communicators that have been added. Returns whether there are any at all.
    fn take_news(&self, works: &mut Vec<ProxyWork>) -> bool {
        let mut state = self.state.lock();
        works.append(&mut state.added);
        if state.is_exiting {
            works.drain(..).for_each(ProxyWork::abandon);
        }
        state.is_running = !works.is_empty();
        state.is_running
    }

    /// Sleeps until there is news, or for this long.
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

/// Looks a few times at all communicators. Returns whether any had something to do.
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
