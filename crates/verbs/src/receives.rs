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

/// Receives that are posted together, in their order, by [`ReceiveBatch::post`]. Dropping it posts
/// none of them.
#[must_use = "nothing is posted but by `post`"]
pub struct ReceiveBatch<'b> {
    pair: &'b mut Pair,
}

impl ReceiveBatch<'_> {
    /// Takes one message of the peer into memory here, or the number of a write with one, for which
    /// `into` may be empty. `id` comes back with its completion; it is less than 2^63.
    ///
    /// # Safety
    ///
    /// As for [`crate::Batch`], with regard to the completion of this very receive.
    ///
    /// # Errors
    ///
    /// The batch is full, or the receive has too many pieces; it is left out then.
    #[inline]
    pub unsafe fn receive(&mut self, id: u64, into: &[Piece]) -> Result<(), Error> {
        check_id(id)?;
        self.push(id, into)
    }

    /// As `receive`, with numbers of the crate, too.
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

    /// How many receives it has.
    pub fn len(&self) -> usize {
        self.pair.receives.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it takes no more: post it, and start another.
    pub fn is_full(&self) -> bool {
        self.pair.receives.is_full()
    }

    /// Posts them all, in one call.
    ///
    /// # Errors
    ///
    /// The queue is full, or a receive is not valid. Those before it were posted.
    pub fn post(self) -> Result<(), PostError> {
        let (post, pair) = (self.pair.post_recv, self.pair.raw());
        // SAFETY: the queue pair lives, and whoever added a receive promised that its memory is
        // there.
        let posted = unsafe { self.pair.receives.post(post, pair) };
        posted.map_err(|error| PostError::new("ibv_post_recv", error, &*self.pair))
    }
}
