//! The monitor thread, and the ranks that it serves: it polls their control streams, and delivers
//! what they post on a board. `state.rs` handles the frames.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spark_ccl_fork::{Owned, Process};
use spark_ccl_log::{Held, Mutex};

use crate::board::Board;
use crate::neighbour::{PollTargets, Retry};
use crate::repair::{Redial, Unreached};
use crate::state::{Attempt, ControlState};

/// How long one attempt to reopen a stream may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The ranks that one monitor thread serves: one with streams, or all ranks of a world within this
/// process.
pub(crate) struct Service {
    process: Process,
    ranks: BTreeMap<u32, Mutex<ControlState>>,
    redial: Option<Redial>,
    /// The board on which the ranks of this process post, if they have no streams.
    board: Option<Arc<Board>>,
    wake: OwnedFd,
    stop: AtomicBool,
}

/// The monitor thread of a service. Dropping it ends the thread, which says goodbye first.
pub(crate) struct Thread {
    service: Arc<Service>,
    handle: Option<Owned<JoinHandle<()>>>,
}

impl Thread {
    pub(crate) fn start(service: &Arc<Service>) -> io::Result<Self> {
        let own = Arc::clone(service);
        let handle = spark_ccl_log::spawn("spark-monitor", move || own.run())?;
        Ok(Self {
            service: Arc::clone(service),
            handle: Some(Owned::new(handle)),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take().and_then(Owned::into_inner) else {
            return;
        };
        // Relaxed, as its load in `run`: the flag publishes no other data, and the wake-up below
        // makes the thread check it.
        self.service.stop.store(true, Ordering::Relaxed);
        self.service.wake_up();
        // The farewell has a deadline. If the thread panicked, nobody is left to report it to.
        let _ = handle.join();
    }
}

impl Service {
    pub(crate) fn new(
        states: impl IntoIterator<Item = ControlState>,
        redial: Option<Redial>,
        board: Option<Arc<Board>>,
    ) -> io::Result<Arc<Self>> {
        let ranks = states
            .into_iter()
            .map(|state| (state.me, Mutex::new(state)));
        Ok(Arc::new(Self {
            process: Process::here(),
            ranks: ranks.collect(),
            redial,
            board,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
        }))
    }

    /// Whether this is not a forked child: there mutexes may stay locked for good, and the streams
    /// are the parent's.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Whether frames are delivered by a board, without streams.
    pub(crate) fn has_board(&self) -> bool {
        self.board.is_some()
    }

    /// Runs `work` on a rank's state. Wakes the monitor thread if a socket was full, something was
    /// posted, or an earlier deadline is due.
    ///
    /// Returns `None` in a forked child.
    pub(crate) fn with<T>(
        &self,
        rank: u32,
        work: impl FnOnce(&mut ControlState) -> T,
    ) -> Option<T> {
        let state = self.ranks.get(&rank).filter(|_| self.is_here())?;
        // Log events are emitted after the wake-up: the program's subscriber may block.
        let _held = Held::new();
        let mut state = state.lock();
        let result = work(&mut state);
        let now = Instant::now();
        let mut neighbours = state.neighbours.iter();
        let is_full = neighbours.any(|neighbour| neighbour.retry == Some(Retry::WhenWritable));
        let has_work = is_full || state.is_due_before_wakeup(now);
        drop(state);
        if has_work || self.has_posts() {
            self.wake_up();
        }
        Some(result)
    }

    fn has_posts(&self) -> bool {
        self.board.as_ref().is_some_and(|board| !board.is_empty())
    }

    pub(crate) fn wake_up(&self) {
        // Fails only if the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn run(self: &Arc<Self>) {
        // Relaxed, as the store in `Thread::drop`: all data that the thread uses is behind mutexes.
        while !self.stop.load(Ordering::Relaxed) {
            for (rank, neighbour) in self.sleep(None) {
                let mut state = self.ranks[&rank].lock();
                state.neighbours[neighbour].flush();
                state.serve(neighbour, Instant::now());
            }
            self.tick();
            self.deliver();
        }
        self.farewell();
    }

    /// Does what is due, and starts the redials that are due.
    fn tick(self: &Arc<Self>) {
        for (&rank, state) in &self.ranks {
            let attempts = state.lock().tick(Instant::now());
            for attempt in attempts {
                self.attempt(rank, attempt);
            }
        }
    }

    /// Delivers posted frames to the ranks of this process, until they post nothing more.
    fn deliver(&self) {
        let Some(board) = &self.board else { return };
        loop {
            let frames = board.take();
            if frames.is_empty() {
                return;
            }
            for state in self.ranks.values() {
                state.lock().handle_posts(&frames, Instant::now());
            }
        }
    }

    /// Reopens a stream, on a thread of its own because dialling blocks.
    fn attempt(self: &Arc<Self>, rank: u32, attempt: Attempt) {
        let Some(redial) = &self.redial else { return };
        let (service, dial) = (Arc::clone(self), Arc::clone(&redial.dial));
        let work = move || {
            let Attempt { peer, number } = attempt;
            let dial = || dial.dial(peer, number, Instant::now() + ATTEMPT);
            // A dial that panics needs an outcome, too: else the attempts would end, and the
            // neighbour's fate would stay open.
            let outcome = catch_unwind(AssertUnwindSafe(dial))
                .unwrap_or_else(|_| Err(Unreached::NoAnswer("the attempt panicked".to_owned())));
            let outcome = outcome.and_then(|stream| {
                stream.set_nonblocking(false)?;
                Ok(stream)
            });
            let mut state = service.ranks[&rank].lock();
            state.attempt_ended(attempt, outcome, Instant::now());
            drop(state);
            service.wake_up();
        };
        if let Err(error) = spark_ccl_log::spawn("spark-redial", work) {
            let outcome = Err(Unreached::from(error));
            let mut state = self.ranks[&rank].lock();
            state.attempt_ended(attempt, outcome, Instant::now());
        }
    }

    /// Sleeps until a stream is ready, something is posted, the next deadline is due, or `limit`
    /// has passed. Returns the ready neighbours, each with the rank that has it.
    fn sleep(&self, limit: Option<Duration>) -> Vec<(u32, usize)> {
        let now = Instant::now();
        let mut due = None;
        let mut polled: Vec<(u32, usize, PollTargets)> = Vec::new();
        for (&rank, state) in &self.ranks {
            let mut state = state.lock();
            for (index, neighbour) in state.neighbours.iter().enumerate() {
                polled.extend(
                    neighbour
                        .poll_targets()
                        .map(|targets| (rank, index, targets)),
                );
            }
            due = [due, state.plan_sleep(now)].into_iter().flatten().min();
        }
        let mut waits = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let mut neighbours = Vec::new();
        for (rank, index, polled) in &polled {
            waits.push(PollFd::new(&**polled.stream, polled.flags));
            neighbours.push((*rank, *index));
            if let Some(process) = &polled.process {
                waits.push(PollFd::new(process, PollFlags::IN));
                neighbours.push((*rank, *index));
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
        let mut ready: Vec<(u32, usize)> = ready.map(|(_, neighbour)| neighbour).collect();
        ready.dedup();
        ready
    }

    /// Says goodbye, and keeps serving the streams until the neighbours have it or a deadline
    /// passes.
    fn farewell(self: &Arc<Self>) {
        let goodbye = |state: &Mutex<ControlState>| state.lock().say_goodbye(Instant::now());
        let mut farewells: Vec<_> = self.ranks.values().map(goodbye).collect();
        loop {
            let ranks = self.ranks.values().zip(&mut farewells);
            let left = ranks.filter_map(|(state, farewell)| {
                state.lock().continue_farewell(farewell, Instant::now())
            });
            let Some(left) = left.max() else { return };
            for (rank, neighbour) in self.sleep(Some(left)) {
                let mut state = self.ranks[&rank].lock();
                state.neighbours[neighbour].flush();
                state.serve_leaving(neighbour, Instant::now());
            }
            self.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_testing::hearing;

    use super::*;
    use crate::neighbour::Neighbour;

    /// The subscriber may block, and the monitor thread has work.
    #[test]
    fn the_monitor_thread_is_woken_up_before_anything_is_said() {
        let names: Arc<[Arc<str>]> = ["rank 0".into(), "rank 1".into()].into();
        let mut full = Neighbour::without_stream(1, Instant::now());
        full.retry = Some(Retry::WhenWritable);
        let state = ControlState::new(0, names, vec![full], None);
        let service = Service::new([state], None, None).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let hear = {
            let (service, seen) = (Arc::clone(&service), Arc::clone(&seen));
            move |_: &str| {
                let is_woken = rustix::io::read(&service.wake, &mut [0u8; 8]).is_ok();
                seen.lock().push(is_woken);
            }
        };
        hearing(hear, || {
            service.with(0, |_| spark_ccl_log::warn!("said under the lock"));
        });
        assert_eq!(*seen.lock(), [true]);
    }
}
