//! The operations of an engine, by name: with its name, a handle asks whether its operation has
//! ended, and takes the result. Knows no steps: an operation's work is in `running_op.rs`.

use std::any::Any;
#[cfg(feature = "future")]
use std::task::Waker;
#[cfg(feature = "cuda")]
use std::time::Duration;

use super::running_op::RunningOp;
use super::wires::Wires;
use crate::error::Error;

/// Names an operation in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpId {
    index: usize,
    generation: u64,
}

/// Buffers whose handle was dropped.
pub(super) type Buffers = Box<dyn Any + Send>;

/// Operations that are queued, running, or done and not yet asked for.
#[derive(Default)]
pub(super) struct OpTable {
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    /// Buffers of ended operations that nobody waits for. Users' code runs when they are dropped,
    /// so that happens where the engine is not locked.
    discarded: Vec<Buffers>,
}

/// A place for an operation; the generation distinguishes its successive operations.
#[derive(Default)]
struct Slot {
    generation: u64,
    state: State,
    /// Nobody will ask for the result; the buffers are kept until nothing touches them any more.
    detached: Option<Buffers>,
    /// The task that awaits the result.
    #[cfg(feature = "future")]
    waker: Option<Waker>,
}

/// Wakes a task when it is dropped. That runs an executor's code, so it is dropped with the
/// discarded buffers, once the engine is unlocked.
#[cfg(feature = "future")]
struct WakeOnDrop(Waker);

#[cfg(feature = "future")]
impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

#[derive(Default)]
enum State {
    #[default]
    Vacant,
    Running(Box<RunningOp>),
    Done(Result<(), Error>),
}

impl OpTable {
    pub(super) fn insert(&mut self, running: RunningOp) -> OpId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.state = State::Running(Box::new(running));
        OpId {
            index,
            generation: slot.generation,
        }
    }

    /// The operation, unless it has ended.
    pub(super) fn running(&mut self, id: OpId) -> Option<&mut RunningOp> {
        let slot = &mut self.slots[id.index];
        match &mut slot.state {
            State::Running(running) if slot.generation == id.generation => Some(running),
            _ => None,
        }
    }

    /// Notes that the operation has succeeded.
    pub(super) fn succeed(&mut self, id: OpId) {
        self.end(id.index, Ok(()));
    }

    /// Ends all operations with an error.
    pub(super) fn fail(&mut self, wires: &mut Wires, error: &Error) {
        for index in 0..self.slots.len() {
            if let State::Running(running) = &mut self.slots[index].state {
                running.give_up(wires);
                self.end(index, Err(error.clone()));
            }
        }
    }

    /// Lets no operation take longer than this.
    #[cfg(feature = "cuda")]
    pub(super) fn cut_short(&mut self, limit: Duration) {
        for slot in &mut self.slots {
            if let State::Running(running) = &mut slot.state {
                running.limit = running.limit.min(limit);
            }
        }
    }

    /// Takes the result of an operation that is done, and forgets the operation. Success if it was
    /// taken before.
    pub(super) fn take(&mut self, id: OpId) -> Option<Result<(), Error>> {
        if !self.is_done(id) {
            return None;
        }
        let slot = &mut self.slots[id.index];
        match std::mem::take(&mut slot.state) {
            State::Done(result) if slot.generation == id.generation => {
                self.forget(id.index);
                Some(result)
            }
            tenant => {
                slot.state = tenant;
                Some(Ok(()))
            }
        }
    }

    /// Whether the operation has ended.
    pub(super) fn is_done(&self, id: OpId) -> bool {
        let slot = &self.slots[id.index];
        slot.generation != id.generation || matches!(slot.state, State::Done(_))
    }

    /// Keeps the buffers of an operation that nobody waits for until it is done.
    pub(super) fn detach(&mut self, id: OpId, buffers: Buffers) {
        if self.running(id).is_some() {
            let slot = &mut self.slots[id.index];
            slot.detached = Some(buffers);
            #[cfg(feature = "future")]
            if let Some(waker) = slot.waker.take() {
                self.discarded.push(Box::new(waker));
            }
        } else {
            self.discarded.push(buffers);
            self.take(id);
        }
    }

    /// Wakes the task that asks last when the operation, which is under way, ends. Returns the
    /// waker that is not needed, to be dropped once the engine is unlocked, since that runs an
    /// executor's code.
    #[cfg(feature = "future")]
    pub(super) fn wake_at_end(&mut self, id: OpId, waker: Waker) -> Option<Waker> {
        match &mut self.slots[id.index].waker {
            Some(known) if known.will_wake(&waker) => Some(waker),
            known => known.replace(waker),
        }
    }

    /// Whether there are buffers to drop when the engine is unlocked.
    #[inline]
    pub(super) fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Buffers to drop when the engine is unlocked.
    pub(super) fn discarded(&mut self) -> Vec<Buffers> {
        std::mem::take(&mut self.discarded)
    }

    fn end(&mut self, index: usize, result: Result<(), Error>) {
        let slot = &mut self.slots[index];
        slot.state = State::Done(result);
        #[cfg(feature = "future")]
        if let Some(waker) = slot.waker.take() {
            self.discarded.push(Box::new(WakeOnDrop(waker)));
        }
        if let Some(buffers) = slot.detached.take() {
            self.discarded.push(buffers);
            self.forget(index);
        }
    }

    fn forget(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = State::Vacant;
        slot.generation += 1;
        self.vacant.push(index);
    }
}
