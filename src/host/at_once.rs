//! Fast path for a collective of small messages: executes one step after the other, as long as each
//! can complete at once.
//!
//! It sends exactly the messages of the schedule's steps, so a rank may take it while others do
//! not. A step that cannot be done at once, or is wrong, is left to `run.rs`, which keeps a step's
//! state.

use std::ptr;

use spark_ccl_sched::{Kind, Step};

use super::exchange::arrived;
use super::run::{ASK_SLOTLESS_BYTES, Cursor, Run};
use super::transfer::Transfer;

/// The channel of a schedule that has only one, and its lane.
const CHANNEL: u32 = 0;
const LANE: usize = 0;

impl Run<'_> {
    /// Continues from the cursor, and looks for each message at most `polls` times. Returns whether
    /// everything is done.
    pub(super) fn run_at_once(&mut self, cursor: &mut Cursor, polls: u32) -> bool {
        let few = self.program.few_steps();
        if few.is_none() && self.program.channels() != 1 {
            return false;
        }
        self.provide_scratch();
        loop {
            let made;
            let step = if let Some(steps) = few {
                steps.get(cursor.index as usize)
            } else {
                made = self.program.step(CHANNEL, cursor.index);
                made.as_ref()
            };
            let Some(step) = step else { break };
            if !step.is_empty() && !self.do_at_once(step, cursor, polls) {
                return false;
            }
            cursor.advance();
        }
        // Otherwise the kernel has yet to take bytes.
        self.wires.unflushed.is_empty()
    }

    fn do_at_once(&mut self, step: &Step, cursor: &mut Cursor, polls: u32) -> bool {
        match step.kind {
            Kind::Send
            | Kind::Recv
            | Kind::RecvReduce
            | Kind::RecvReduceSend
            | Kind::RecvReduceCopySend
            | Kind::RecvCopySend
            | Kind::Copy => self.move_at_once(&Transfer::of(step), polls),
            Kind::SendRecv => {
                let sending = Transfer::sending(step);
                if !self.move_at_once(&sending, polls) {
                    return false;
                }
                cursor.halves[0].elements = sending.elements;
                self.move_at_once(&Transfer::receiving(step), polls)
            }
            Kind::Signal => self.signal(CHANNEL, step.send_to).is_ok(),
            Kind::Wait => {
                self.wires.await_message(step.recv_from, LANE, polls);
                self.await_signal(CHANNEL, step.recv_from).is_ok()
            }
            Kind::ReduceLocal => {
                matches!(self.reduce_local(step, &mut cursor.halves[0]), Ok(true))
            }
            Kind::Get | Kind::GetReduce | Kind::GetReducePut => {
                matches!(self.one_sided(step, &mut cursor.halves[0]), Ok(true))
            }
        }
    }

    /// All of a transfer, if it is one message that is short enough to go through a slot over any
    /// link.
    fn move_at_once(&mut self, transfer: &Transfer, polls: u32) -> bool {
        let count = transfer.elements as usize;
        let bytes = count * self.task.signature.dtype.size();
        if bytes == 0 {
            return true;
        }
        if bytes >= ASK_SLOTLESS_BYTES || bytes > self.wires.slot_bytes {
            return false;
        }
        let incoming = match transfer.from {
            None => Some(ptr::null()),
            Some(peer) => arrived(peer, self.tag, bytes, self.wires, polls),
        };
        let Some(incoming) = incoming else {
            return false;
        };
        let Ok(outgoing) = self.outgoing(LANE, transfer, bytes) else {
            return false;
        };
        if let Some(ticket) = self.combine(LANE, transfer, 0, count, incoming, outgoing) {
            self.wires.finish(ticket);
        }
        self.finish(LANE, transfer, bytes).is_ok()
    }
}
