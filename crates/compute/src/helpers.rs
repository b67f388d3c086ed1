//! Threads that do parts of a rank's copies and reductions. Knows neither jobs nor links.
//!
//! They start with the first work, sleep when there has been none for a moment, and end with their
//! owner. No work outlives the call that shares it: what a helper has not begun, the caller does
//! itself, and what a helper has begun, the caller waits for.

mod mailbox;
mod scheduling;

use std::hint::spin_loop;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
#[cfg(feature = "testing")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io, ptr};

use mailbox::Mailbox;
use spark_ccl_fork::Owned;
use spark_ccl_log::Mutex;

/// The name of the threads.
const NAME: &str = "spark-helper";
/// How long a helper looks for work without yielding its core.
const LOOKS: Duration = Duration::from_micros(20);
/// How long a helper is idle before it sleeps, and how long a caller yields before it does.
const YIELDS: Duration = Duration::from_micros(100);
/// How long a caller then sleeps between two looks: a helper of a lower priority on the same core
/// runs meanwhile.
const PAUSE: Duration = Duration::from_micros(10);
/// Looks between two looks at the clock, or two yields.
const ROUND: usize = 32;
const PAGE: usize = 4096;

/// Work of several parts: called once with the number of each part, on any thread.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Shared by the caller and the helpers while they work.
struct Shared<'a> {
    work: &'a Work<'a>,
    has_panicked: AtomicBool,
}

/// The helpers of a rank, shared by its communicators: one of them uses them at a time.
pub struct Helpers {
    count: usize,
    /// A forked child has the threads' handles, but no threads.
    pool: Owned<Mutex<Pool>>,
    /// How many parts of work helpers were offered.
    #[cfg(feature = "testing")]
    offered: AtomicUsize,
}

/// The first work of each helper.
type Begin = Arc<dyn Fn() + Send + Sync>;

struct Pool {
    begin: Begin,
    helpers: Vec<Helper>,
    /// The system has refused a thread, and is not asked again.
    is_refused: bool,
}

struct Helper {
    mailbox: Arc<Mailbox<Shared<'static>>>,
    /// `None` once it is joined.
    thread: Option<JoinHandle<()>>,
}

impl Helpers {
    /// `count` threads, each of which starts when it is first needed. It then calls `begin`, which
    /// may change the affinity mask inherited from its starter. It never has a real-time priority,
    /// even where its starter has one.
    pub fn new(count: usize, begin: impl Fn() + Send + Sync + 'static) -> Self {
        let pool = Pool {
            begin: Arc::new(begin),
            helpers: Vec::new(),
            is_refused: false,
        };
        Self {
            count,
            pool: Owned::new(Mutex::new(pool)),
            #[cfg(feature = "testing")]
            offered: AtomicUsize::new(0),
        }
    }

    /// How many parts of work helpers were offered since the last call.
    #[cfg(feature = "testing")]
    pub fn take_offered(&self) -> usize {
        // Pairs with nothing: it is counted by the thread that shares work.
        self.offered.swap(0, Ordering::Relaxed)
    }

    /// The most threads that help.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `work` once for each number below `parts`, and returns when all calls have. Where
    /// helpers are missing (another communicator uses them, the system refuses threads, this is a
    /// forked child), this thread makes their calls, too.
    ///
    /// # Panics
    /// If one of the calls does.
    pub fn share(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        if parts == 0 {
            return;
        }
        let is_here = self.pool.process().is_here();
        let mut pool = (parts > 1 && is_here)
            .then(|| self.pool.try_lock())
            .flatten();
        let helpers = match &mut pool {
            Some(pool) => pool.helpers(self.count.min(parts - 1)),
            None => &[],
        };
        // Pairs with nothing: only the number counts.
        #[cfg(feature = "testing")]
        self.offered.fetch_add(helpers.len(), Ordering::Relaxed);
        let has_panicked = AtomicBool::new(false);
        let shared = Shared { work, has_panicked };
        let offered = Offered::new(helpers, &shared);
        work(0);
        (helpers.len() + 1..parts).for_each(work);
        offered.do_rest(work);
        drop(offered);
        // Relaxed: helpers write it before they put the work back, and the drop has seen that
        // with Acquire.
        let has_panicked = shared.has_panicked.load(Ordering::Relaxed);
        assert!(!has_panicked, "a helper has panicked");
    }

    /// Has `work` fill all of `room`: calls it with each part, and the number of its first byte. No
    /// part but the last is shorter than `least` bytes.
    ///
    /// # Errors
    /// An error that a call of `work` has returned.
    pub fn fill<E: Send>(
        &self,
        room: &mut [u8],
        least: usize,
        work: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let each = self.part(room.len(), least);
        let failure = Mutex::new(None);
        let parts: Vec<_> = room.chunks_mut(each).map(Mutex::new).collect();
        self.share(parts.len(), &|number| {
            if let Err(error) = work(number * each, &mut parts[number].lock()) {
                *failure.lock() = Some(error);
            }
        });
        let failure = failure.lock().take();
        failure.map_or(Ok(()), Err)
    }

    /// How many threads there are by now.
    #[cfg(test)]
    pub(crate) fn started(&self) -> usize {
        self.pool.lock().helpers.len()
    }

    /// The length of each part but the last, if all helpers and the caller share these bytes. It is
    /// whole pages, so that no two parts of aligned memory have a line in common.
    pub(crate) fn part(&self, bytes: usize, least: usize) -> usize {
        bytes
            .div_ceil(self.count + 1)
            .max(least)
            .next_multiple_of(PAGE)
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helpers")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// Work offered to some helpers. Dropping this, also by a panic, waits until no helper has it.
struct Offered<'a>(&'a [Helper]);

impl<'a> Offered<'a> {
    fn new(helpers: &'a [Helper], shared: &'a Shared<'_>) -> Self {
        for helper in helpers {
            if helper
                .mailbox
                .offer(ptr::from_ref(shared).cast_mut().cast())
            {
                helper.wake();
            }
        }
        Self(helpers)
    }

    /// Does the parts that no helper has begun. The last ones were offered last.
    fn do_rest(&self, work: &Work<'_>) {
        for (number, helper) in self.0.iter().enumerate().rev() {
            if helper.mailbox.take_back() {
                work(number + 1);
            }
        }
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        for helper in self.0 {
            let mailbox = &helper.mailbox;
            let (mut looks, mut since) = (0_usize, None);
            while !mailbox.is_back() && !mailbox.take_back() {
                looks += 1;
                if !looks.is_multiple_of(ROUND) {
                    pause(false);
                } else if since.get_or_insert_with(Instant::now).elapsed() < YIELDS {
                    pause(true);
                } else {
                    thread::sleep(PAUSE);
                    // One look between two sleeps.
                    looks = ROUND - 1;
                }
            }
        }
    }
}

impl Pool {
    /// The first `count` helpers, or fewer where the system refuses threads.
    fn helpers(&mut self, count: usize) -> &[Helper] {
        while self.helpers.len() < count && !self.is_refused {
            match Helper::start(self.helpers.len() + 1, Arc::clone(&self.begin)) {
                Ok(helper) => self.helpers.push(helper),
                Err(error) => {
                    spark_ccl_log::warn!(
                        "{} threads help to copy and reduce: the system refuses another one: \
                         {error}",
                        self.helpers.len()
                    );
                    self.is_refused = true;
                }
            }
        }
        &self.helpers[..count.min(self.helpers.len())]
    }
}

impl Helper {
    /// The one that does this part of all work.
    fn start(part: usize, begin: Begin) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new());
        let thread = spark_ccl_log::spawn(NAME, {
            let mailbox = Arc::clone(&mailbox);
            move || {
                scheduling::leave_real_time();
                begin();
                help(&mailbox, part);
            }
        })?;
        let thread = Some(thread);
        Ok(Self { mailbox, thread })
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for helper in &self.helpers {
            helper.mailbox.stop();
            helper.wake();
        }
        for helper in &mut self.helpers {
            // `share` has reported panics of the work. If `begin` panicked, callers did it all.
            let _ = helper.thread.take().map(JoinHandle::join);
        }
    }
}

/// Does a helper's work until it is stopped.
fn help(mailbox: &Mailbox<Shared<'static>>, part: usize) {
    let mut since = Instant::now();
    loop {
        if let Some(shared) = mailbox.take() {
            // SAFETY: the pointer was made from a reference in `Offered::new`. The value outlives
            // `Offered`, whose drop waits until the work is put back below. It is only shared, and
            // any thread may use it: `Work` and the flag are `Sync`.
            let shared = unsafe { &*shared };
            let done = panic::catch_unwind(AssertUnwindSafe(|| (shared.work)(part)));
            if done.is_err() {
                // Read by `share` once the work is back, which orders it.
                shared.has_panicked.store(true, Ordering::Relaxed);
            }
            mailbox.put_back();
            since = Instant::now();
        } else if mailbox.is_stopped() {
            return;
        } else {
            wait(mailbox, since);
        }
    }
}

/// Waits a moment for work; sleeps until there is some if the last was too long ago.
fn wait(mailbox: &Mailbox<Shared<'static>>, since: Instant) {
    let idle = since.elapsed();
    if idle > YIELDS && mailbox.fall_asleep() {
        while mailbox.is_asleep() {
            thread::park();
        }
        return;
    }
    for _ in 0..ROUND {
        if !mailbox.is_empty() {
            return;
        }
        pause(false);
    }
    pause(idle > LOOKS);
}

/// Lets a moment pass, or another thread of this core run.
fn pause(yields: bool) {
    if yields {
        thread::yield_now();
    } else {
        spin_loop();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
