//! The engine of one communicator: its operations in flight, and what makes them progress.

mod exec;
mod patrol;
mod request;
mod shared;

pub(crate) use exec::Wires;
pub(crate) use request::{CHANNELS, POINT_TO_POINT, Program, Request};
pub(crate) use shared::{OpId, Shared};

use crate::error::Error;
use exec::{Cursor, Obstacle, Run, Turn};
use patrol::Stall;
use spark_ccl_control::Watch;
use spark_ccl_sched::{Kind, Rank};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Operations in flight and the links they share. Collectives run one after the other, in the order
/// of their calls; point-to-point operations run beside them, in order per peer and direction.
pub(crate) struct Engine {
    wires: Wires,
    watch: Arc<Watch>,
    pub(crate) timeout: Duration,
    ops: Vec<Slot>,
    vacant: Vec<usize>,
    collectives: VecDeque<usize>,
    /// Queues of point-to-point operations by direction and peer; only the used ones.
    streams: Vec<Stream>,
    /// Point-to-point operations that are queued or running.
    pairs: usize,
    sequence: u64,
    broken: Option<Error>,
    /// Buffers of ended operations that nobody waits for. Users' code runs when they are dropped, so
    /// that happens where the engine is not locked.
    discarded: Vec<Box<dyn Any + Send>>,
}

/// A place for an operation; the generation tells its successive tenants apart.
#[derive(Default)]
struct Slot {
    generation: u64,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Vacant,
    Active(Box<Active>),
    Done(Result<(), Error>),
}

/// An operation that is queued or running.
pub(crate) struct Active {
    request: Request,
    sequence: u64,
    tag: u64,
    base: usize,
    cursors: [Cursor; 2],
    finished: [bool; 2],
    started: bool,
    stall: Stall,
    /// Buffers whose handle was dropped: kept until nothing touches them any more.
    keep: Option<Box<dyn Any + Send>>,
    /// Nobody will ask for the result.
    detached: bool,
}

/// Point-to-point operations in one direction with one peer.
struct Stream {
    peer: Rank,
    sends: bool,
    queue: VecDeque<usize>,
    sequence: u64,
}

impl Engine {
    pub(crate) fn new(wires: Wires, watch: Arc<Watch>, timeout: Duration) -> Self {
        Self {
            wires,
            watch,
            timeout,
            ops: Vec::new(),
            vacant: Vec::new(),
            collectives: VecDeque::new(),
            streams: Vec::new(),
            pairs: 0,
            sequence: 0,
            broken: None,
            discarded: Vec::new(),
        }
    }

    /// The number of the last collective that was issued.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.collectives.is_empty() && self.pairs == 0 && self.wires.unflushed.is_empty()
    }

    /// Queues an operation.
    fn issue(&mut self, request: Request) -> OpId {
        let words = request.signature.words();
        let stream = match &request.program {
            Program::PointToPoint(step) if step.kind == Kind::Send => {
                Some(self.stream(step.send_to, true))
            }
            Program::PointToPoint(step) => Some(self.stream(step.recv_from, false)),
            Program::Schedule(_) | Program::List(_) => None,
        };
        let (sequence, tag, base) = if let Some(index) = stream {
            let stream = &mut self.streams[index];
            stream.sequence += 1;
            let tag = pair_tag(stream.sequence, &request);
            (stream.sequence, tag, POINT_TO_POINT)
        } else {
            self.sequence += 1;
            self.watch.enter(self.sequence, words);
            let tag = self.sequence << 32 | u64::from(request.signature.digest());
            (self.sequence, tag, 0)
        };
        let id = self.place(Active {
            finished: [false, request.program.channels() < 2],
            request,
            sequence,
            tag,
            base,
            cursors: Default::default(),
            started: false,
            stall: Stall::default(),
            keep: None,
            detached: false,
        });
        match stream {
            Some(index) => {
                self.streams[index].queue.push_back(id.index);
                self.pairs += 1;
            }
            None => self.collectives.push_back(id.index),
        }
        id
    }

    /// Moves everything on that can move; `true` when something did.
    pub(crate) fn progress(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        if self.watch.failed() {
            self.fail();
            return true;
        }
        let mut moved = false;
        self.wires.flush();
        while let Some(&index) = self.collectives.front() {
            match self.advance(index) {
                Advance::Complete => {
                    self.collectives.pop_front();
                    moved = true;
                }
                Advance::Moved => {
                    moved = true;
                    break;
                }
                Advance::Blocked => break,
            }
        }
        if self.pairs == 0 {
            return moved;
        }
        for stream in 0..self.streams.len() {
            while let Some(&index) = self.streams[stream].queue.front() {
                match self.advance(index) {
                    Advance::Complete => {
                        self.streams[stream].queue.pop_front();
                        self.pairs -= 1;
                        moved = true;
                    }
                    Advance::Moved => {
                        moved = true;
                        break;
                    }
                    Advance::Blocked => break,
                }
            }
        }
        moved
    }

    /// The result of an operation that is done; forgets it then. Success, where it was taken before.
    fn take(&mut self, id: OpId) -> Option<Result<(), Error>> {
        if !self.is_done(id) {
            return None;
        }
        let slot = &mut self.ops[id.index];
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
    fn is_done(&self, id: OpId) -> bool {
        let slot = &self.ops[id.index];
        slot.generation != id.generation || matches!(slot.state, State::Done(_))
    }

    /// Nobody waits for the operation any more: its buffers stay with the engine until it is done.
    fn detach(&mut self, id: OpId, buffers: Box<dyn Any + Send>) {
        let slot = &mut self.ops[id.index];
        match &mut slot.state {
            State::Active(active) if slot.generation == id.generation => {
                active.detached = true;
                active.keep = Some(buffers);
            }
            _ => {
                self.discarded.push(buffers);
                self.take(id);
            }
        }
    }

    /// The error that ended this communicator, if one did.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if self.broken.is_none() && self.watch.failed() {
            self.fail();
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Ends every operation with the fault. Their registered memory is cut off from the peers
    /// before anyone gets it back.
    fn fail(&mut self) {
        let Some(fault) = self.watch.fault() else {
            return;
        };
        let error = Error::Failed(fault);
        self.broken = Some(error.clone());
        self.collectives.clear();
        self.streams.clear();
        self.pairs = 0;
        self.wires.unflushed.clear();
        for index in 0..self.ops.len() {
            let slot = &mut self.ops[index];
            if let State::Active(active) = &mut slot.state {
                for cursor in &mut active.cursors {
                    cursor.drain(self.wires.compute.as_mut());
                }
                fence(&active.request);
                self.discarded.extend(active.keep.take());
                let detached = active.detached;
                slot.state = State::Done(Err(error.clone()));
                if detached {
                    self.forget(index);
                }
            }
        }
    }

    fn forget(&mut self, index: usize) {
        let slot = &mut self.ops[index];
        slot.state = State::Vacant;
        slot.generation += 1;
        self.vacant.push(index);
    }

    fn place(&mut self, active: Active) -> OpId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.ops.push(Slot::default());
            self.ops.len() - 1
        });
        let slot = &mut self.ops[index];
        slot.state = State::Active(Box::new(active));
        OpId {
            index,
            generation: slot.generation,
        }
    }

    fn stream(&mut self, peer: Rank, sends: bool) -> usize {
        let same = |stream: &Stream| stream.peer == peer && stream.sends == sends;
        self.streams.iter().position(same).unwrap_or_else(|| {
            self.streams.push(Stream {
                peer,
                sends,
                queue: VecDeque::new(),
                sequence: 0,
            });
            self.streams.len() - 1
        })
    }

    /// Buffers to drop when the engine is unlocked.
    fn discarded(&mut self) -> Vec<Box<dyn Any + Send>> {
        std::mem::take(&mut self.discarded)
    }

    /// Gives one operation a turn on each of its channels.
    fn advance(&mut self, index: usize) -> Advance {
        let State::Active(active) = &mut self.ops[index].state else {
            return Advance::Complete;
        };
        if !active.started {
            active.started = true;
            let elements = active.request.program.scratch() as usize;
            let size = active.request.signature.dtype.size();
            self.wires.provide_scratch(elements * size);
        }
        let mut moved = false;
        active.stall.obstacle = None;
        for channel in 0..active.finished.len() {
            if active.finished[channel] {
                continue;
            }
            let mut run = Run {
                request: &active.request,
                tag: active.tag,
                base: active.base,
                wires: &mut self.wires,
            };
            match run.turn(channel as u32, &mut active.cursors[channel]) {
                Turn::Finished => {
                    active.finished[channel] = true;
                    moved = true;
                }
                Turn::Moved => moved = true,
                Turn::Blocked(obstacle) => active.stall.meet(obstacle),
            }
        }
        if active.finished == [true; 2] {
            // Its bytes must be with the kernel, too: nobody may call us for long.
            match self.wires.held_back(active.lanes()) {
                Ok(None) => {
                    self.complete(index);
                    return Advance::Complete;
                }
                Ok(peer) => active.stall.meet(Obstacle::Waiting(peer)),
                Err(obstacle) => active.stall.meet(obstacle),
            }
        }
        if moved {
            active.stall.ease();
        }
        if moved {
            Advance::Moved
        } else {
            Advance::Blocked
        }
    }

    fn complete(&mut self, index: usize) {
        let State::Active(active) = &mut self.ops[index].state else {
            return;
        };
        self.discarded.extend(active.keep.take());
        let request = &active.request;
        if let Some(divisor) = request.reduction.divisor {
            let output = &request.output;
            // SAFETY: the output region is writable until the operation is done, which is now.
            unsafe {
                spark_ccl_compute::divide(request.signature.dtype, output.ptr, output.len, divisor);
            }
        }
        if active.base != POINT_TO_POINT {
            self.watch.finish(active.sequence);
        }
        if active.detached {
            self.forget(index);
        } else {
            self.ops[index].state = State::Done(Ok(()));
        }
    }
}

impl Active {
    /// The link channels on which it may have sent.
    fn lanes(&self) -> std::ops::Range<usize> {
        match &self.request.program {
            Program::PointToPoint(step) if step.kind == Kind::Recv => 0..0,
            program => self.base..self.base + program.channels() as usize,
        }
    }
}

enum Advance {
    Complete,
    Moved,
    Blocked,
}

/// Point-to-point messages are matched by order, type and count, which the tag spells out.
fn pair_tag(sequence: u64, request: &Request) -> u64 {
    let count = request.signature.count & ((1 << 40) - 1);
    (sequence & 0xffff) << 48 | u64::from(request.signature.dtype as u8) << 40 | count
}

/// The parts of a point-to-point tag, in words.
fn pair_words(tag: u64) -> String {
    let dtype = spark_ccl_compute::DType::from_code((tag >> 40) as u8);
    format!(
        "message {} of {} {} elements",
        tag >> 48,
        tag & ((1 << 40) - 1),
        dtype.map_or("unknown", spark_ccl_compute::DType::name)
    )
}

/// Cuts the registered memory of a failed operation off from its peers, where they may write it.
fn fence(request: &Request) {
    if request.signature.place != 0
        && let Some(home) = &request.output.home
    {
        home.segment.fence();
    }
}
