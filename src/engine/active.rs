//! One operation in flight.

use super::exchange::Progress;
use super::exec::{Cursor, Run, Turn};
use super::pair_tag::PairTag;
use super::patrol::Stall;
use super::request::{POINT_TO_POINT, Program, Request};
use super::wires::{Obstacle, Wires};
use spark_ccl_sched::Kind;
use std::ops::Range;

/// An operation that is queued or running.
pub(super) struct Active {
    pub(super) request: Request,
    pub(super) sequence: u64,
    pub(super) tag: u64,
    /// The link channel of the operation's channel 0.
    base: usize,
    cursors: [Cursor; 2],
    finished: [bool; 2],
    started: bool,
    pub(super) stall: Stall,
}

/// What came of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    Complete,
    Moved,
    Blocked,
}

impl Active {
    pub(super) fn collective(request: Request, sequence: u64, tag: u64) -> Self {
        Self::new(request, sequence, tag, 0)
    }

    /// One half of a pair: a message to or from one peer.
    pub(super) fn pair(request: Request, sequence: u64) -> Self {
        let signature = request.signature;
        let tag = PairTag::new(sequence, signature.dtype, signature.count);
        Self::new(request, sequence, tag.bits(), POINT_TO_POINT)
    }

    fn new(request: Request, sequence: u64, tag: u64, base: usize) -> Self {
        Self {
            finished: [false, request.program.channels() < 2],
            request,
            sequence,
            tag,
            base,
            cursors: Default::default(),
            started: false,
            stall: Stall::default(),
        }
    }

    /// Goes on behind the first steps, which an exchange has done.
    pub(super) fn skip(&mut self, progress: Progress) {
        if let Progress::Steps(steps) = progress {
            self.cursors[0] = Cursor::at(steps);
        }
    }

    pub(super) fn is_pair(&self) -> bool {
        self.base == POINT_TO_POINT
    }

    /// A turn on each channel.
    pub(super) fn advance(&mut self, wires: &mut Wires) -> Advance {
        if !self.started {
            self.started = true;
            let elements = self.request.program.scratch() as usize;
            wires.provide_scratch(elements * self.request.signature.dtype.size());
        }
        let mut moved = false;
        self.stall.obstacle = None;
        for channel in 0..self.finished.len() {
            if self.finished[channel] {
                continue;
            }
            let mut run = Run {
                request: &self.request,
                tag: self.tag,
                base: self.base,
                wires,
            };
            match run.turn(channel as u32, &mut self.cursors[channel]) {
                Turn::Finished => {
                    self.finished[channel] = true;
                    moved = true;
                }
                Turn::Moved => moved = true,
                Turn::Blocked(obstacle) => self.stall.meet(obstacle),
            }
        }
        if self.finished == [true; 2] {
            // Its bytes must be with the kernel, too: nobody may call us for long.
            match wires.held_back(self.lanes()) {
                None => return Advance::Complete,
                Some(obstacle) => self.stall.meet(obstacle),
            }
        }
        if moved {
            self.stall.ease();
            Advance::Moved
        } else {
            Advance::Blocked
        }
    }

    /// Gives up, once nothing in this process touches the operation's memory any more. Peers are
    /// cut off from its registered memory, where they may write it.
    pub(super) fn give_up(&mut self, wires: &mut Wires) {
        for cursor in &mut self.cursors {
            cursor.drain(wires.compute.as_mut());
        }
        if self.request.signature.place != 0
            && let Some(home) = &self.request.output.home
        {
            home.segment.fence();
        }
    }

    /// Waits a moment for the message that it lacks, if that is what it lacks.
    pub(super) fn linger(&self, wires: &mut Wires, looks: u32) {
        if let Some(Obstacle::Message { peer, lane }) = self.stall.obstacle {
            wires.await_message(peer, lane, looks);
        }
    }

    /// The link channels on which it may have sent.
    fn lanes(&self) -> Range<usize> {
        match &self.request.program {
            Program::PointToPoint(step) if step.kind == Kind::Recv => 0..0,
            program => self.base..self.base + program.channels() as usize,
        }
    }
}
