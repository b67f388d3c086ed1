//! Allocates what a link is about to use, on a thread of its own.
//!
//! Each message of a ring's first lap finds a body, or a slot, that the kernel has not allocated
//! yet. Allocating it may take longer than all the rest of a call. Most links of a large world
//! carry only a few messages, so each begins with what these need. After [several](Kind::several)
//! messages of a kind, a thread allocates all bodies, or the beginning of all slots, and enters
//! them into this end's page table. Messages go on meanwhile.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

use super::layout::{BODY_BYTES, Direction};
use super::segment::Segment;

/// The part of a slot that is allocated ahead. Longer messages take so long that the kernel's part
/// hardly counts.
const SLOT_BYTES_AHEAD: usize = 32 << 10;

/// The kinds of messages by where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bodies,
    Slots,
}

impl Kind {
    #[inline]
    fn of(len: usize) -> Self {
        if len <= BODY_BYTES {
            Self::Bodies
        } else {
            Self::Slots
        }
    }

    /// From this many messages on, more are expected. Links for collectives that only set up
    /// communicators carry fewer.
    #[inline]
    fn several(self) -> u8 {
        match self {
            Self::Bodies => 16,
            Self::Slots => 4,
        }
    }
}

/// The memory that one end of a direction allocates ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    bodies: Stock,
    slots: Stock,
}

/// The memory for messages of a kind.
#[derive(Debug, Default)]
struct Stock {
    messages: u8,
    /// Publishes nothing, so relaxed ordering is enough: what the kernel has allocated is there for
    /// all threads.
    is_there: Arc<AtomicBool>,
}

impl Ahead {
    /// Notes a message of `len` bytes in a body or slot; the last of several has the rest
    /// allocated.
    #[inline]
    pub(super) fn note(&mut self, segment: &Arc<Segment>, direction: Direction, len: usize) {
        let kind = Kind::of(len);
        let stock = self.stock(kind);
        if stock.messages < kind.several() && len <= SLOT_BYTES_AHEAD {
            stock.messages += 1;
            if stock.messages == kind.several() {
                stock.fill(segment, direction, kind);
            }
        }
    }

    /// Whether memory for every message of `len` bytes is allocated.
    pub(super) fn has(&mut self, len: usize) -> bool {
        let stock = self.stock(Kind::of(len));
        len <= SLOT_BYTES_AHEAD && stock.is_there.load(Ordering::Relaxed)
    }

    #[inline]
    fn stock(&mut self, kind: Kind) -> &mut Stock {
        match kind {
            Kind::Bodies => &mut self.bodies,
            Kind::Slots => &mut self.slots,
        }
    }
}

impl Stock {
    #[cold]
    fn fill(&self, segment: &Arc<Segment>, direction: Direction, kind: Kind) {
        let layout = segment.layout();
        let parts = match kind {
            Kind::Bodies => vec![layout.all_bodies(direction)],
            Kind::Slots => layout.heads_of_slots(direction, SLOT_BYTES_AHEAD).collect(),
        };
        request(Job {
            segment: Arc::downgrade(segment),
            parts,
            is_there: Arc::clone(&self.is_there),
        });
    }
}

/// Parts of a segment that are to be allocated.
#[derive(Debug)]
struct Job {
    segment: Weak<Segment>,
    parts: Vec<Range<usize>>,
    is_there: Arc<AtomicBool>,
}

impl Job {
    /// A lack of memory is no error here: it is one of the message that needs the memory.
    fn run(&self) {
        let Some(segment) = self.segment.upgrade() else {
            return;
        };
        let mut parts = self.parts.iter().cloned();
        if parts.all(|part| segment.set_aside(part).is_ok()) {
            self.is_there.store(true, Ordering::Relaxed);
        }
    }
}

static JOBS: PerProcess<Mutex<Jobs>> = PerProcess::new();

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// A thread does them.
    are_done: bool,
}

/// Has a thread of this process do the job. Where none can be started, messages allocate their
/// memory one by one.
fn request(job: Job) {
    let mut jobs = JOBS.get().lock();
    jobs.waiting.push_back(job);
    if !jobs.are_done {
        jobs.start();
    }
}

impl Jobs {
    fn start(&mut self) {
        self.are_done = spark_ccl_log::spawn("spark-pages", do_all).is_ok();
    }

    /// The next job. If there is none, notes that no thread does jobs any more.
    fn take(&mut self) -> Option<Job> {
        let job = self.waiting.pop_front();
        self.are_done = job.is_some();
        job
    }
}

/// Starts another thread for the remaining jobs if this one has panicked.
struct Doing;

impl Drop for Doing {
    fn drop(&mut self) {
        if thread::panicking() {
            JOBS.get().lock().start();
        }
    }
}

/// Ends when there is nothing more to do.
fn do_all() {
    let _doing = Doing;
    let next = || JOBS.get().lock().take();
    while let Some(job) = next() {
        job.run();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::layout::{Layout, Size};
    use super::*;
    use crate::memory::SharedMemory;

    #[test]
    fn a_job_that_panics_leaves_later_ones_to_another_thread() {
        let geometry = crate::Geometry {
            slot_bytes: 256,
            slots: 4,
        };
        let layout = Layout::new(Size::among(2, geometry)).unwrap();
        let (memory, _fd) = SharedMemory::create(layout.bytes(), layout.at_once()).unwrap();
        let segment = Arc::new(Segment::create(memory, layout));
        let done = Arc::new(AtomicBool::new(false));
        let job = |parts| Job {
            segment: Arc::downgrade(&segment),
            parts,
            is_there: Arc::clone(&done),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        request(job(std::iter::once(0..usize::MAX).collect()));
        request(job(vec![]));
        while !done.load(Ordering::Relaxed) {
            assert!(Instant::now() < deadline, "nobody does it");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
