//! The pieces of messages, in order for each peer and direction.

use spark_ccl_gpu::{Cut, Lane, MessageDirection, Rung, Stage};
use spark_ccl_types::{Operation, Signature};

use super::pending_pieces::{PendingPiece, PendingPieces};
use super::piece_memory::PieceMemory;
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::host::Direction;
use crate::memory::buffer::Region;
use crate::task::{Spec, Task};

/// The messages of a communicator.
pub(super) struct Messages {
    pairs: Vec<Pair>,
    /// How many messages have been passed.
    done: u64,
}

/// The messages to one rank, or from one rank.
struct Pair {
    peer: usize,
    direction: Direction,
    lane: Lane,
    /// How many pieces have been begun.
    begun: u64,
    message: Option<Message>,
    pending: PendingPieces,
}

/// A message with pieces that have not begun.
struct Message {
    /// The signature of the whole message.
    signature: Signature,
    /// Where the message is cut into pieces, in bytes.
    cut: Cut,
    next: u64,
}

impl Messages {
    pub(super) fn new(ranks: usize) -> Self {
        let pairs = (0..ranks).flat_map(|peer| {
            let ways = [
                (MessageDirection::Send, Direction::Out),
                (MessageDirection::Receive, Direction::In),
            ];
            ways.map(|(way, direction)| Pair {
                peer,
                direction,
                lane: Lane::of_messages(way, peer),
                begun: 0,
                message: None,
                pending: PendingPieces::default(),
            })
        });
        Self {
            pairs: pairs.collect(),
            done: 0,
        }
    }

    /// How many messages have been passed.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// How many pieces have begun.
    pub(super) fn pieces(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.begun).sum()
    }

    /// Whether the host engine has pieces of any.
    pub(super) fn are_in_flight(&self) -> bool {
        self.pairs.iter().any(|pair| !pair.pending.is_empty())
    }

    /// Answers for the pieces that are done, and begins those for which the kernel has rung, if
    /// calls before them `are_sound`. Returns whether there were any.
    pub(super) fn advance(
        &mut self,
        stage: &Stage,
        carrier: &Communicator,
        memory: &PieceMemory,
        are_sound: &dyn Fn() -> bool,
    ) -> Result<bool, Error> {
        let mut moved = false;
        for pair in &mut self.pairs {
            moved |= pair.pending.complete(stage, carrier, &mut self.done)?;
            moved |= pair.begin(stage, carrier, memory, are_sound)?;
        }
        Ok(moved)
    }

    /// Drops failed pieces that have ended. Returns whether there were any.
    pub(super) fn drop_failed(&mut self, carrier: &Communicator) -> bool {
        let mut completed = false;
        for pair in &mut self.pairs {
            completed |= pair.pending.drop_failed(carrier);
        }
        completed
    }
}

impl Pair {
    /// Begins the next piece, if the kernel has rung for it. It has rung for no more than there are
    /// slots.
    fn begin(
        &mut self,
        stage: &Stage,
        carrier: &Communicator,
        memory: &PieceMemory,
        are_sound: &dyn Fn() -> bool,
    ) -> Result<bool, Error> {
        let number = self.begun + 1;
        let Some(rung) = stage.rung(self.lane, number).filter(|_| are_sound()) else {
            return Ok(false);
        };
        self.begun = number;
        let message = match &mut self.message {
            Some(message) => message,
            none => none.insert(Message::of(rung, stage.ranks())?),
        };
        let (piece, pieces) = (message.next, message.cut.pieces());
        message.next += 1;
        let slot = stage.slot(self.lane, number);
        let held = memory.slot(slot, message.elements(piece));
        let task = message.task((self.peer, self.direction), held);
        let is_last = piece + 1 == pieces;
        if is_last {
            self.message = None;
        }
        let engine = carrier.inner.membership.engine();
        self.pending.push(PendingPiece {
            ids: engine.begin_part(task, self.direction, piece == 0)?,
            lane: self.lane,
            number,
            is_last,
        });
        Ok(true)
    }
}

impl Message {
    /// The message for whose first piece a kernel has rung.
    fn of(rung: Rung, ranks: usize) -> Result<Self, Error> {
        let signature = Signature::from_words(rung.words).ok_or_else(|| Error::Invalid {
            operation: "device memory",
            problem: format!("a kernel rings for what is no message: {:x?}", rung.words),
        })?;
        let bytes = signature
            .count
            .saturating_mul(signature.dtype.size() as u64);
        Ok(Self {
            signature,
            cut: Cut::of_message(bytes, ranks),
            next: 0,
        })
    }

    /// How many elements a piece has.
    fn elements(&self, piece: u64) -> usize {
        let bytes = self.cut.elements(piece);
        (bytes.end - bytes.start) as usize / self.signature.dtype.size()
    }

    /// A piece, as a task on the memory of its slot.
    fn task(&self, (peer, direction): (usize, Direction), held: Region) -> Task {
        let Signature {
            operation, dtype, ..
        } = self.signature;
        let operation = match (operation, direction) {
            (Operation::Send, Direction::In) => Operation::Recv,
            (operation, _) => operation,
        };
        let regions = match direction {
            Direction::Out => (held, Region::empty()),
            Direction::In => (Region::empty(), held),
        };
        let mut task = Spec::new(operation, dtype)
            .to(peer)
            .from(peer)
            .task(regions);
        task.signature.count = self.signature.count;
        task
    }
}
