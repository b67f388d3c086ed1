//! Pieces that the host engine has.

use std::collections::VecDeque;

use spark_ccl_gpu::{Lane, Stage};

use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::host::Ids;

/// Pieces that the host engine has, in the order in which they were begun.
#[derive(Default)]
pub(super) struct PendingPieces(VecDeque<PendingPiece>);

pub(super) struct PendingPiece {
    pub(super) ids: Ids,
    pub(super) lane: Lane,
    pub(super) number: u64,
    /// Whether this is the last piece of an operation or a message.
    pub(super) is_last: bool,
}

impl PendingPieces {
    pub(super) fn push(&mut self, piece: PendingPiece) {
        self.0.push_back(piece);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers for the pieces that are done, and counts the last ones. Returns whether any were
    /// done.
    pub(super) fn complete(
        &mut self,
        stage: &Stage,
        carrier: &Communicator,
        done: &mut u64,
    ) -> Result<bool, Error> {
        let engine = carrier.inner.membership.engine();
        let mut completed = false;
        while let Some(piece) = self.0.front() {
            let Some(result) = piece.ids.take(engine) else {
                break;
            };
            result?;
            stage.answer(piece.lane, piece.number);
            *done += u64::from(piece.is_last);
            self.0.pop_front();
            completed = true;
        }
        Ok(completed)
    }

    /// Drops failed pieces that have ended. Returns whether there were any.
    pub(super) fn drop_failed(&mut self, carrier: &Communicator) -> bool {
        let engine = carrier.inner.membership.engine();
        let before = self.0.len();
        self.0.retain(|piece| piece.ids.take(engine).is_none());
        self.0.len() < before
    }
}
