//! The progress of an operation, and what it waits for. Knows cursors and obstacles; knows neither
//! other operations nor deadlines.

use std::ops::Range;

use spark_ccl_sched::{Kind, Rank};

use super::exchange::{self, Progress};
use super::run::{Cursor, Run};
use super::spin_budget::SpinBudget;
use super::stall::Stall;
use super::wires::{Obstacle, Wires};
use crate::plan::Program;

/// How far an operation is in its steps.
#[derive(Debug, Default)]
pub(super) struct Execution {
    cursors: [Cursor; 2],
    finished: [bool; 2],
    started: bool,
    /// All links that it needs are asked for.
    has_asked: bool,
    pub(super) stall: Stall,
}

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    Complete,
    Moved,
    Blocked,
}

impl Execution {
    /// A turn on each channel.
    pub(super) fn advance(&mut self, run: &mut Run<'_>) -> Advance {
        if !self.started {
            self.started = true;
            run.provide_scratch();
        }
        let mut moved = false;
        // A peer may lack what a link holds back, and this rank a message of that peer. So no step
        // uses the link, nor meets its error.
        let lanes = lanes(run.program, run.first_lane);
        self.stall.obstacle = run.wires.failed(lanes.clone(), receiver(run.program));
        let channels = run.program.channels();
        for channel in 0..channels {
            let index = channel as usize;
            if self.finished[index] {
                continue;
            }
            match run.turn(channel, &mut self.cursors[index]) {
                Ok(is_finished) => {
                    self.finished[index] = is_finished;
                    moved = true;
                }
                Err(obstacle) => {
                    if matches!(obstacle, Obstacle::Forming { .. }) && !self.has_asked {
                        self.has_asked = true;
                        run.ask();
                    }
                    self.stall.meet(obstacle);
                }
            }
        }
        if self.finished[..channels as usize].iter().all(|&done| done) {
            // The kernel must have its bytes, too: the application may not call this library again
            // for a long time.
            let held_back = run.wires.held_back(lanes);
            match held_back.or_else(|| run.loans.outstanding(run.wires)) {
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

    /// Runs until the operation is complete or the budget is spent. Returns how far it is, or
    /// `None` if it is complete.
    #[inline]
    pub(super) fn run_inline(mut run: Run<'_>, spin_budget: SpinBudget) -> Option<Self> {
        let mut cursor = Cursor::default();
        let polls = spin_budget.polls();
        if run.program.is_exchange() {
            match exchange::run(&mut run, polls) {
                Progress::Complete => return None,
                Progress::Steps(steps) => cursor.skip(steps),
            }
        } else if run.run_at_once(&mut cursor, polls) {
            return None;
        }
        Self::run_from(cursor, run, spin_budget)
    }

    /// The same, for what could not be done at once from the cursor on.
    #[inline(never)]
    fn run_from(cursor: Cursor, mut run: Run<'_>, spin_budget: SpinBudget) -> Option<Self> {
        let mut own = Self {
            cursors: [cursor, Cursor::default()],
            ..Self::default()
        };
        for _ in 0..spin_budget.rounds() {
            match own.advance(&mut run) {
                Advance::Complete => return None,
                Advance::Moved => {}
                // Another thread makes the link, and may need this core.
                Advance::Blocked if own.lacks_link() => break,
                Advance::Blocked => own.spin(run.wires, spin_budget.polls_per_round()),
            }
        }
        Some(own)
    }

    /// Whether it waits for a link to be made.
    pub(super) fn lacks_link(&self) -> bool {
        matches!(self.stall.obstacle, Some(Obstacle::Forming { .. }))
    }

    /// Waits until nothing in this process touches the operation's memory any more.
    pub(super) fn drain(&mut self, wires: &mut Wires) {
        for cursor in &mut self.cursors {
            cursor.drain(wires.compute.as_mut());
        }
    }

    /// Polls the link of the message that it lacks for a moment. Does not look at the link while a
    /// peer has yet to finish something instead: each look slows the peer down.
    pub(super) fn spin(&self, wires: &mut Wires, polls: u32) {
        if let Some(Obstacle::Message { peer, lane }) = self.stall.obstacle {
            wires.await_message(peer, lane, polls);
        } else {
            (0..polls).for_each(|_| std::hint::spin_loop());
        }
    }
}

/// The lanes on which the program may send.
fn lanes(program: &Program, first_lane: usize) -> Range<usize> {
    match program {
        Program::PointToPoint(step) if step.kind == Kind::Recv => 0..0,
        program => first_lane..first_lane + program.channels() as usize,
    }
}

/// The receiver of a program that sends to only one.
fn receiver(program: &Program) -> Option<Rank> {
    match program {
        Program::PointToPoint(step) => Some(step.send_to),
        Program::Schedule(_) | Program::Blocks(_) => None,
    }
}
