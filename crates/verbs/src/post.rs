//! Lists of work requests, and how they are handed to the device.

use std::ptr::null_mut;

use crate::error::failed_as;
use crate::{Error, Piece, hints, raw};

/// The most work requests of one list.
const MOST: u32 = 64;

/// Work request numbers from here on are the crate's own: who gives buffers back upon a completion
/// must know that nobody else had it posted.
pub(crate) const OWN_IDS: u64 = 1 << 63;

/// Work requests of one kind, with room that is used again and again, so that posting allocates
/// nothing.
pub(crate) struct List<W> {
    requests: Vec<W>,
    pieces: Vec<raw::ibv_sge>,
    most_pieces: u32,
}

/// A function that posts a list: it says which request was bad, and gives an error number.
type Post<W> = unsafe extern "C" fn(*mut raw::ibv_qp, *mut W, *mut *mut W) -> i32;

impl<W: WorkRequest> List<W> {
    /// For a queue that holds `depth` requests of `most_pieces` pieces.
    pub(crate) fn new(depth: u32, most_pieces: u32) -> Self {
        let most = depth.clamp(1, MOST) as usize;
        Self {
            requests: Vec::with_capacity(most),
            pieces: Vec::with_capacity(most * most_pieces as usize),
            most_pieces,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() == self.requests.capacity()
    }

    /// Adds a request on these pieces, within the room there is.
    #[inline]
    pub(crate) fn push(&mut self, request: W, pieces: &[Piece]) -> Result<(), Error> {
        if self.is_full() || pieces.len() > self.most_pieces as usize {
            return Err(self.refusal(pieces.len()));
        }
        self.pieces.extend(pieces.iter().map(|piece| piece.0));
        self.requests.push(request);
        Ok(())
    }

    #[cold]
    fn refusal(&self, pieces: usize) -> Error {
        let (what, asked, most) = if self.is_full() {
            let most = self.len() as u64;
            ("the number of requests in a batch", most + 1, most)
        } else {
            let most = self.most_pieces.into();
            ("the number of pieces of a request", pieces as u64, most)
        };
        Error::Beyond { what, asked, most }
    }

    /// Ties the requests to each other and to their pieces, and posts them. An error is an error
    /// number, and how many were posted.
    ///
    /// # Safety
    ///
    /// `post` posts on `pair`, which lives, and the memory of all requests is there.
    pub(crate) unsafe fn post(
        &mut self,
        post: Post<W>,
        pair: *mut raw::ibv_qp,
    ) -> Result<(), (i32, usize)> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let count = self.requests.len();
        let first = self.requests.as_mut_ptr();
        let mut pieces = self.pieces.as_mut_ptr();
        for place in 0..count {
            let next = if place + 1 < count {
                first.wrapping_add(place + 1)
            } else {
                null_mut()
            };
            // SAFETY: the requests lie one after the other, and so do their pieces.
            pieces = unsafe { (*first.add(place)).tie(pieces, next) };
        }
        let mut bad = null_mut();
        // SAFETY: a list that ends; the rest as the caller says.
        match unsafe { post(pair, first, &raw mut bad) } {
            0 => Ok(()),
            errno => {
                let posted = (0..count).position(|place| first.wrapping_add(place) == bad);
                Err((errno, posted.unwrap_or(0)))
            }
        }
    }
}

/// A request of libibverbs.
pub(crate) trait WorkRequest: Copy {
    /// Says where its pieces are and which request is next; gives where its pieces end.
    fn tie(&mut self, pieces: *mut raw::ibv_sge, next: *mut Self) -> *mut raw::ibv_sge;
}

impl WorkRequest for raw::ibv_send_wr {
    fn tie(&mut self, pieces: *mut raw::ibv_sge, next: *mut Self) -> *mut raw::ibv_sge {
        (self.sg_list, self.next) = (pieces, next);
        pieces.wrapping_add(self.num_sge as usize)
    }
}

impl WorkRequest for raw::ibv_recv_wr {
    fn tie(&mut self, pieces: *mut raw::ibv_sge, next: *mut Self) -> *mut raw::ibv_sge {
        (self.sg_list, self.next) = (pieces, next);
        pieces.wrapping_add(self.num_sge as usize)
    }
}

/// A batch of which not all was posted.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {posted} requests before it were posted")]
pub struct PostError {
    /// How many requests were posted, the first ones.
    pub posted: usize,
    /// What was wrong with the next one.
    #[source]
    pub error: Error,
}

impl PostError {
    pub(crate) fn new(
        call: &'static str,
        (errno, posted): (i32, usize),
        pair: &impl std::fmt::Display,
    ) -> Self {
        PostError {
            posted,
            error: failed_as(call, errno, pair, hints::post),
        }
    }
}

/// Refuses numbers of the crate's own.
#[inline]
pub(crate) fn check_id(asked: u64) -> Result<(), Error> {
    if asked >= OWN_IDS {
        let most = OWN_IDS - 1;
        return Err(Error::Beyond {
            what: "the number of a work request",
            asked,
            most,
        });
    }
    Ok(())
}
