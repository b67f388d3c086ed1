//! The monitor thread, which polls the control streams, and its handle. What happens with the frames is in `state.rs`.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spark_ccl_fork::{Owned, Process};
use spark_ccl_log::{Held, Mutex};
use spark_ccl_seal::Stream;

use crate::neighbour::{Neighbour, PollTargets, Retry};
use crate::repair::{Redial, Unreached};
use crate::state::{Attempt, State};
use crate::view::View;

/// How long one attempt to reopen a stream may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The control streams of one process, and the thread that polls them.
///
/// [`leave_world`](Self::leave_world) says goodbye to the other ranks, and so does dropping it.
/// Each [`Watch`](crate::Watch) keeps it alive.
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Mutex<Option<Owned<JoinHandle<()>>>>,
}

/// Hands streams that other ranks have reopened to a monitor. It does not keep the monitor alive.
#[derive(Clone)]
pub struct Adopter(Weak<Shared>);

impl Adopter {
    /// Replaces the broken stream to `peer` by `stream`. `number` is the one that the peer's [`Dial`](crate::Dial) was
    /// called with. The caller must have authenticated `stream` as strictly as the first one.
    ///
    /// Returns whether the monitor still exists.
    pub fn adopt(&self, peer: u32, number: u32, stream: Stream) -> bool {
        let Some(shared) = self.0.upgrade() else {
            return false;
        };
        let by_higher = peer > shared.me;
        shared.with(|state| state.adopt(peer, number, by_higher, stream, Instant::now()));
        shared.wake_up();
        true
    }
}

struct Shared {
    me: u32,
    names: Arc<[Arc<str>]>,
    redial: Option<Redial>,
    process: Process,
    state: Mutex<State>,
    wake: OwnedFd,
    stop: AtomicBool,
}

impl Monitor {
    /// Starts to watch the ranks at the other ends of `streams`, for rank `me` of the world.
    ///
    /// `names` has the name of each rank of the world ("rank 3 (hostB, pid 17)"). `streams` are
    /// connected, authenticated streams, TCP or Unix, each with the rank at its other end: the
    /// [`neighbours`](crate::neighbours). On one with seals, a rank whose messages are changed on
    /// the way counts as lost. With `redial`, broken TCP streams are reopened. Without it, a rank
    /// whose stream ends counts as gone.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `me` or a stream's rank is not in the world, or has two streams. Otherwise the system's error
    /// when it refuses a socket option, a descriptor or the thread.
    pub fn start(
        me: u32,
        names: Vec<String>,
        streams: Vec<(u32, Stream)>,
        redial: Option<Redial>,
    ) -> io::Result<Arc<Self>> {
        check_ranks(me, names.len(), &streams)?;
        let names: Arc<[Arc<str>]> = names.into_iter().map(Arc::from).collect();
        let now = Instant::now();
        let neighbours: io::Result<Vec<Neighbour>> = streams
            .into_iter()
            .map(|(peer, socket)| Neighbour::new(peer, socket, redial.is_some(), now))
            .collect();
        let neighbours = neighbours?;
        let peers: Vec<u32> = neighbours.iter().map(|neighbour| neighbour.peer).collect();
        spark_ccl_log::info!(
            "{} watches ranks {peers:?} over its control streams",
            names[me as usize]
        );
        let shared = Arc::new(Shared {
            me,
            names: Arc::clone(&names),
            state: Mutex::new(State::new(me, names, neighbours, redial.clone())),
            redial,
            process: Process::here(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            spark_ccl_log::spawn("spark-monitor", move || shared.run())?
        };
        Ok(Arc::new(Self {
            shared,
            thread: Mutex::new(Some(Owned::new(thread))),
        }))
    }

    /// Says goodbye to the other ranks, so that they do not take this process for dead, and ends
    /// the monitor's thread. That takes 300 ms at most, or 2 s when streams are broken and no
    /// neighbour can be told. A process that ends must have called it: other threads may keep the
    /// monitor.
    ///
    /// In a forked child this does nothing: the child is no rank, and has no monitor thread to
    /// join.
    pub fn leave_world(&self) {
        if !self.shared.process.is_here() {
            return;
        }
        let thread = self.thread.lock().take().and_then(Owned::into_inner);
        let Some(thread) = thread else { return };
        // Relaxed: the flag publishes no other data, and the wake-up below makes the thread check
        // it.
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake_up();
        // The farewell has a deadline. If the thread panicked, nobody is left to report it to.
        let _ = thread.join();
    }

    /// The handle that takes the streams that other ranks reopen. It works even while the monitor is being dropped.
    pub fn adopter(&self) -> Adopter {
        Adopter(Arc::downgrade(&self.shared))
    }

    /// Starts to follow a communicator, as [`watch`](Self::watch) (`watch.rs`) documents.
    pub(crate) fn follow(
        &self,
        context: u64,
        members: Vec<u32>,
        describe: fn([u64; 2]) -> String,
    ) -> Arc<View> {
        let (names, me) = (Arc::clone(&self.shared.names), self.shared.me);
        let view = Arc::new(View::new(context, members, me, names, describe));
        self.with(|state| state.watch(&view, Instant::now()));
        view
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.shared.with(work)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.leave_world();
    }
}

fn check_ranks(me: u32, size: usize, streams: &[(u32, Stream)]) -> io::Result<()> {
    let mut ranks: Vec<u32> = streams.iter().map(|&(rank, _)| rank).collect();
    ranks.push(me);
    ranks.sort_unstable();
    let twice = ranks
        .windows(2)
        .find(|pair| pair[0] == pair[1])
        .map(|pair| pair[0]);
    let beyond = ranks.last().copied().filter(|&rank| rank as usize >= size);
    let text = match (twice, beyond) {
        (Some(rank), _) => format!("rank {rank} has two control streams, or one to itself"),
        (_, Some(rank)) => format!("rank {rank} is not in the world of {size} ranks"),
        (None, None) => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

impl Shared {
    /// Runs `work` on the state. Wakes the monitor thread if a socket was full or an earlier deadline is due.
    ///
    /// Returns `None` in a forked child: there the mutex may stay locked for good, and the streams are the parent's.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        if !self.process.is_here() {
            return None;
        }
        // What is said is emitted after the wake-up: the program's subscriber may block.
        let _held = Held::new();
        let mut state = self.state.lock();
        let result = work(&mut state);
        let now = Instant::now();
        let mut neighbours = state.neighbours.iter();
        let is_full = neighbours.any(|neighbour| neighbour.retry == Some(Retry::WhenWritable));
        let has_work = is_full || state.is_due_before_wakeup(now);
        drop(state);
        if has_work {
            self.wake_up();
        }
        Some(result)
    }

    fn wake_up(&self) {
        // Fails only if the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn run(self: &Arc<Self>) {
        // Relaxed: all data that the thread uses is behind the mutex.
        while !self.stop.load(Ordering::Relaxed) {
            for neighbour in self.sleep(None) {
                let mut state = self.state.lock();
                state.neighbours[neighbour].flush();
                state.serve(neighbour, Instant::now());
            }
            self.tick();
        }
        self.farewell();
    }

    /// Does what is due, and starts the redials that are due.
    fn tick(self: &Arc<Self>) {
        let attempts = self.state.lock().tick(Instant::now());
        for attempt in attempts {
            self.attempt(attempt);
        }
    }

    /// Reopens a stream, on a thread of its own because dialling blocks.
    fn attempt(self: &Arc<Self>, attempt: Attempt) {
        let Some(redial) = &self.redial else { return };
        let (shared, dial) = (Arc::clone(self), Arc::clone(&redial.dial));
        let work = move || {
            let Attempt { peer, number } = attempt;
            let dial = || dial.dial(peer, number, Instant::now() + ATTEMPT);
            // After an attempt without an outcome there would be no other one, and no verdict on the neighbour.
            let outcome = catch_unwind(AssertUnwindSafe(dial))
                .unwrap_or_else(|_| Err(Unreached::NoAnswer("the attempt panicked".to_owned())));
            let outcome = outcome.and_then(|stream| {
                stream.set_nonblocking(false)?;
                Ok(stream)
            });
            shared
                .state
                .lock()
                .attempt_ended(attempt, outcome, Instant::now());
            shared.wake_up();
        };
        if let Err(error) = spark_ccl_log::spawn("spark-redial", work) {
            let outcome = Err(Unreached::from(error));
            self.state
                .lock()
                .attempt_ended(attempt, outcome, Instant::now());
        }
    }

    /// Sleeps until a stream is ready, the next deadline is due, or `limit` has passed. Returns the ready neighbours.
    fn sleep(&self, limit: Option<Duration>) -> Vec<usize> {
        let now = Instant::now();
        let (polled, due) = {
            let mut state = self.state.lock();
            let neighbours = state.neighbours.iter().enumerate();
            let polled = neighbours
                .filter_map(|(index, neighbour)| Some((index, neighbour.poll_targets()?)));
            let polled: Vec<(usize, PollTargets)> = polled.collect();
            (polled, state.plan_sleep(now))
        };
        let mut waits = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let mut neighbours = Vec::new();
        for (index, polled) in &polled {
            waits.push(PollFd::new(&**polled.stream, polled.flags));
            neighbours.push(*index);
            if let Some(process) = &polled.process {
                waits.push(PollFd::new(process, PollFlags::IN));
                neighbours.push(*index);
            }
        }
        let due = due.map(|due| due.saturating_duration_since(now));
        let limit = [limit, due].into_iter().flatten().min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut waits, limit.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Vec::new(),
            Err(error) => {
                // Most likely out of memory. The pause keeps the thread from spinning.
                spark_ccl_log::warn!("the monitor cannot wait for its streams: {error}");
                std::thread::sleep(Duration::from_millis(100));
                return Vec::new();
            }
        }
        if !waits[0].revents().is_empty() {
            // Fails if an earlier read has consumed this wake-up, too.
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        let waits = waits[1..].iter().zip(neighbours);
        let ready = waits.filter(|(wait, _)| !wait.revents().is_empty());
        let mut ready: Vec<usize> = ready.map(|(_, neighbour)| neighbour).collect();
        ready.dedup();
        ready
    }

    /// Says goodbye, and keeps serving the streams until the neighbours have it or a deadline passes.
    fn farewell(self: &Arc<Self>) {
        let mut farewell = self.state.lock().say_goodbye(Instant::now());
        loop {
            let left = self
                .state
                .lock()
                .continue_farewell(&mut farewell, Instant::now());
            let Some(left) = left else { return };
            for neighbour in self.sleep(Some(left)) {
                let mut state = self.state.lock();
                state.neighbours[neighbour].flush();
                state.serve_leaving(neighbour, Instant::now());
            }
            self.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The subscriber may block, and the monitor thread has work.
    #[test]
    fn the_monitor_thread_is_woken_up_before_anything_is_said() {
        let names: Arc<[Arc<str>]> = ["rank 0".into(), "rank 1".into()].into();
        let mut full = Neighbour::without_stream(1, Instant::now());
        full.retry = Some(Retry::WhenWritable);
        let shared = Arc::new(Shared {
            me: 0,
            names: Arc::clone(&names),
            state: Mutex::new(State::new(0, names, vec![full], None)),
            redial: None,
            process: Process::here(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            stop: AtomicBool::new(false),
        });
        let seen = Arc::new(Mutex::new(Vec::new()));
        let writer = {
            let (shared, seen) = (Arc::clone(&shared), Arc::clone(&seen));
            move || {
                let is_woken = rustix::io::read(&shared.wake, &mut [0u8; 8]).is_ok();
                seen.lock().push(is_woken);
                std::io::sink()
            }
        };
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            shared.with(|_| spark_ccl_log::warn!("said under the lock"));
        });
        assert_eq!(*seen.lock(), [true]);
    }
}
