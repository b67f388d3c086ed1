//! The pieces of one communicator, from the stage to the host engine and back: a kernel rings for a
//! piece, which becomes a task of the host engine. When the task is done, the kernel gets an
//! answer.

mod messages;
mod operations;
mod pending_pieces;
mod piece_memory;

use std::sync::Arc;
use std::time::Instant;

use messages::Messages;
use operations::{Operations, are_sound};
use piece_memory::PieceMemory;
use spark_ccl_control::{DEVICE_MARK, Fault, POINT_TO_POINT_MARK, Watch};
use spark_ccl_gpu::{Slots, Stage};

use super::exchange::{Exchange, Others};
use super::proxy_queue::{ProxyQueue, Use};
use super::stall::Stall;
use crate::api::communicator::Communicator;
use crate::error::Error;

/// The pieces of one communicator.
pub(super) struct ProxyWork {
    memory: PieceMemory,
    stage: Arc<Stage>,
    /// The twin communicator, which does only the pieces. All ranks call its collectives in the
    /// order of the pieces; each pair passes its messages in their order.
    carrier: Communicator,
    /// The watch of the communicator that the user holds.
    parent: Arc<Watch>,
    operations: Operations,
    messages: Messages,
    /// The slots, with which the host engine has nothing to do.
    exchange: Option<Exchange>,
    slots: Option<Arc<Slots>>,
    /// How long pieces have not progressed.
    stall: Stall,
    has_failed: bool,
    /// The last field, so that it is dropped last.
    queue: QueueUse,
}

/// The thread's use of a queue. When this is dropped, the thread uses nothing of the communicator
/// any more.
struct QueueUse(Arc<ProxyQueue>);

impl Drop for QueueUse {
    fn drop(&mut self) {
        self.0.end_use(Use::Over);
    }
}

impl ProxyWork {
    pub(super) fn new(
        stage: Arc<Stage>,
        by_slots: Option<(Arc<Slots>, Exchange)>,
        queue: Arc<ProxyQueue>,
        carrier: Communicator,
        parent: Arc<Watch>,
    ) -> Self {
        let (slots, exchange) = by_slots.unzip();
        Self {
            exchange,
            slots,
            memory: PieceMemory::new(&stage, &carrier),
            operations: Operations::new(&stage),
            messages: Messages::new(stage.ranks()),
            stage,
            carrier,
            parent,
            stall: Stall::new(),
            has_failed: false,
            queue: QueueUse(queue),
        }
    }

    /// Whether pieces stay in their slots until a device of a receiver reads them.
    pub(super) fn lends(&self) -> bool {
        self.memory.are_registered()
    }

    /// Moves pieces on. Returns whether there was anything to do.
    pub(super) fn advance(&mut self) -> bool {
        if !self.has_failed {
            return self.move_on().unwrap_or_else(|fault| {
                self.fail(fault);
                true
            });
        }
        let completed = self.drop_failed();
        self.let_go();
        completed
    }

    /// Tells the other ranks of calls and messages that wait.
    pub(super) fn announce(&mut self, now: Instant) {
        if self.has_failed {
            return;
        }
        let others = self.operations.begun();
        if let Some(exchange) = &mut self.exchange {
            exchange.announce(now, &others, &self.parent);
        }
        self.announce_pieces(now, &others);
    }

    /// Announces waits for pieces as those of `parent`: the engine announces the carrier's only.
    fn announce_pieces(&mut self, now: Instant, others: &Others) {
        let begun = [self.operations.pieces(), self.messages.pieces()];
        if !self.are_in_flight() || !self.stall.is_to_be_told(begun, now) {
            return;
        }
        let carrier = &self.carrier.inner.watch;
        let since = self.stall.since();
        let is_told = self
            .parent
            .announce_part(carrier, since, |sequence, words| {
                match sequence & POINT_TO_POINT_MARK {
                    0 => {
                        let words = others.last.map_or(words, |last| last.words);
                        (DEVICE_MARK | others.number(), words)
                    }
                    _ => (DEVICE_MARK | sequence, words),
                }
            });
        if is_told {
            self.stall.note_told(now);
        }
    }

    /// Whether it is over: the thread uses nothing of the stage any more.
    pub(super) fn is_over(&mut self) -> bool {
        if !self.queue.0.is_closed() {
            return false;
        }
        if self.are_in_flight() && !self.carrier.inner.watch.failed() {
            let fault = self.parent.fault();
            let fault = fault.map_or_else(|| self.left(), |fault| (*fault).clone());
            self.carrier.inner.watch.raise(fault);
        }
        if self.still_passes_slots() {
            return false;
        }
        self.has_failed = true;
        self.drop_failed();
        self.let_go();
        let is_over = !self.are_in_flight();
        if is_over && let Some(mut exchange) = self.exchange.take() {
            if self.parent.failed() {
                exchange.withdraw();
            }
            // Not dropped in this thread: the end of a link may wait for the peer's host.
            self.queue.0.leave(Box::new(exchange));
        }
        is_over
    }

    /// Whether peers may still need slots of this rank's calls, done or under way.
    fn still_passes_slots(&self) -> bool {
        let Some(exchange) = self.exchange.as_ref().filter(|_| !self.has_failed) else {
            return false;
        };
        if self.parent.failed() {
            exchange.report(&self.parent);
            return false;
        }
        if !exchange.serves() {
            return false;
        }
        if exchange.has_given_up() {
            self.parent.raise(self.left());
            return false;
        }
        true
    }

    /// The fault of a rank that leaves while calls need it.
    fn left(&self) -> Fault {
        Fault::Aborted {
            by: self.parent.member(self.stage.rank() as u32),
            reason: "it left the communicator while calls of device memory were in a stream"
                .to_owned(),
        }
    }

    /// Releases kernels that wait for operations on the user's memory, once the host engine uses
    /// none of it.
    fn let_go(&self) {
        if !self.are_in_flight() {
            self.stage.release();
        }
    }

    /// Leaves everything as it is, for a process that exits.
    pub(super) fn abandon(self) {
        self.queue.0.end_use(Use::Abandoned);
        std::mem::forget(self);
    }

    /// Whether pieces may be there soon.
    pub(super) fn expects(&self) -> bool {
        let slots = self.exchange.as_ref();
        let by_slots = slots.map_or(0, Exchange::done);
        let done = self.operations.done() + self.messages.done() + by_slots;
        let may_come = self.operations.are_under_way() || self.queue.0.expects(done);
        let are_passed = slots.is_none_or(|slots| slots.is_met() && !slots.is_joining());
        self.are_in_flight() || !self.has_failed && (may_come || !are_passed)
    }

    fn are_in_flight(&self) -> bool {
        self.operations.are_in_flight() || self.messages.are_in_flight()
    }

    /// Moves slots on, and pieces.
    fn move_on(&mut self) -> Result<bool, Fault> {
        let mut moved = false;
        if let Some(exchange) = &mut self.exchange {
            let others = self.operations.begun();
            moved = exchange.advance(&others, &self.carrier, &self.parent);
            let is_closed = self.queue.0.is_closed();
            let fault = exchange.fault(&others, &self.parent);
            // A rank that leaves needs nobody any more.
            fault.filter(|_| !is_closed).map_or(Ok(()), Err)?;
        }
        let pieces = self.move_pieces();
        Ok(moved | pieces.map_err(|error| self.fault_of(error))?)
    }

    /// Answers for the pieces that are done, and begins the next ones.
    fn move_pieces(&mut self) -> Result<bool, Error> {
        let (stage, carrier, memory) = (&self.stage, &self.carrier, &self.memory);
        let slots = self.slots.as_deref();
        let mut moved = self.operations.complete(stage, carrier)?;
        if self.queue.0.has_messages() {
            moved |= self
                .messages
                .advance(stage, carrier, memory, &|| are_sound(slots))?;
        }
        if !self.are_in_flight()
            && let Some(fault) = carrier.inner.watch.fault()
        {
            return Err(Error::Failed(fault));
        }
        Ok(moved | self.operations.begin(stage, carrier, memory, slots)?)
    }

    /// Ends the kernels' waits, and tells all ranks. Results that come later are not used.
    fn fail(&mut self, fault: Fault) {
        self.has_failed = true;
        self.parent.raise(fault);
        self.stage.abort();
        if let (Some(exchange), Some(slots)) = (&self.exchange, &self.slots) {
            exchange.report(&self.parent);
            slots.abort();
        }
    }

    /// An error of pieces, as the fault of their operation.
    fn fault_of(&self, error: Error) -> Fault {
        match error {
            Error::Failed(fault) => self.of_device((*fault).clone()),
            error => Fault::Aborted {
                by: self.parent.member(self.stage.rank() as u32),
                reason: error.to_string(),
            },
        }
    }

    /// The carrier's fault, as the fault of the operation that the pieces belong to.
    fn of_device(&self, mut fault: Fault) -> Fault {
        let by_slots = self.exchange.as_ref().map_or(0, Exchange::begun);
        let own = |sequence: u64| match sequence & POINT_TO_POINT_MARK {
            0 => DEVICE_MARK | (self.operations.current() + by_slots),
            // The carrier counts a message once, at its first piece, so its number is right
            // already.
            _ => sequence,
        };
        match &mut fault {
            Fault::Left {
                sequence,
                last_sequence,
                ..
            } => {
                *sequence = own(*sequence);
                *last_sequence = match self.operations.operations_in(*last_sequence) {
                    0 => 0,
                    last => DEVICE_MARK | (last + by_slots),
                };
            }
            Fault::Mismatch { sequence, .. } | Fault::TimedOut { sequence, .. } => {
                *sequence = own(*sequence);
            }
            _ => {}
        }
        fault
    }

    /// Drops failed pieces that have ended. Returns whether there were any.
    fn drop_failed(&mut self) -> bool {
        self.operations.drop_failed(&self.carrier) | self.messages.drop_failed(&self.carrier)
    }
}
