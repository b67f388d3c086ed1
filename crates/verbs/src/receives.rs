//! Batches of receives, which take memory by address.

use std::ptr::null_mut;

use crate::pair::{CanReceive, Pair};
use crate::post::{PostError, check_id};
use crate::{Error, Piece, QueuePair, raw};

impl<S: CanReceive> QueuePair<S> {
    /// Starts a batch of receives.
    pub fn receives(&mut self) -> ReceiveBatch<'_> {
        self.pair.receives.clear();
        ReceiveBatch {
            pair: &mut self.pair,
        }
    }
}

/// Receives that [`ReceiveBatch::post`] posts together, in order. Dropping the batch posts none of
/// them.
#[must_use = "nothing is posted but by `post`"]
pub struct ReceiveBatch<'b> {
    pair: &'b mut Pair,
}

impl ReceiveBatch<'_> {
    /// Adds a receive, which takes one message of the peer, or the immediate value of a write; for
    /// the latter, `into` may be empty. The completion returns `id`, which must be less than 2^63.
    ///
    /// # Safety
    ///
    /// From the post on, the memory of `into` stays mapped, and nothing else accesses it. This ends
    /// when the completion of this very receive has been polled, the queue pair has been destroyed
    /// or reset, or the memory's region has been deregistered.
    ///
    /// # Errors
    ///
    /// The batch is full, or the receive has too many pieces. It is not added.
    #[inline]
    pub unsafe fn receive(&mut self, id: u64, into: &[Piece]) -> Result<(), Error> {
        check_id(id)?;
        self.push(id, into)
    }

    /// Adds a receive; the id may be one of those reserved for the crate.
    #[inline]
    pub(crate) fn push(&mut self, wr_id: u64, into: &[Piece]) -> Result<(), Error> {
        let num_sge = into.len() as i32;
        let receive = raw::ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge,
        };
        self.pair.receives.push(receive, into)
    }

    /// The number of receives.
    pub fn len(&self) -> usize {
        self.pair.receives.len()
    }

    /// Whether it has no receives.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is full: post it and start another.
    pub fn is_full(&self) -> bool {
        self.pair.receives.is_full()
    }

    /// Posts all of them in one call.
    ///
    /// # Errors
    ///
    /// The queue is full, or a receive is not valid. Those before it were posted.
    pub fn post(self) -> Result<(), PostError> {
        let (post, pair) = (self.pair.post_recv, self.pair.raw());
        // SAFETY: the batch borrows the queue pair, so it lives, and `post` is its function.
        // Callers of `receive` have promised that the memory stays valid; `Requests` owns the
        // buffers that it adds by `push`.
        let posted = unsafe { self.pair.receives.post(post, pair) };
        posted.map_err(|error| PostError::new("ibv_post_recv", error, &*self.pair))
    }
}
