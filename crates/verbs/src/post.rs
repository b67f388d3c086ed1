//! Reusable lists of work requests, and posting them.

use std::ptr::null_mut;

use crate::error::failed_as;
use crate::{Error, Piece, hints, raw};

/// The most work requests in one list.
const MOST: u32 = 64;

/// Ids from here on are reserved for the crate: `Requests` returns a buffer upon a completion, so
/// no user may post a request with the same id.
pub(crate) const OWN_IDS: u64 = 1 << 63;

/// Work requests of one type. The memory is reused, so that posting does not allocate.
pub(crate) struct List<W> {
    requests: Vec<W>,
    pieces: Vec<raw::ibv_sge>,
    most_pieces: u32,
}

/// A function that posts a list. Upon failure it sets the request that failed and returns an error
/// number.
type Post<W> = unsafe extern "C" fn(*mut raw::ibv_qp, *mut W, *mut *mut W) -> i32;

impl<W: WorkRequest> List<W> {
    /// A list for a queue of `depth` requests of at most `most_pieces` pieces.
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

    /// Adds a request and its pieces, if there is room.
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

    /// Links the requests to each other and to their pieces, and posts them. The error is an error
    /// number and the number of posted requests.
    ///
    /// # Safety
    ///
    /// `pair` is alive, `post` is its device's function for this type of request, and the memory of
    /// each request stays valid until the request has ended.
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
            // SAFETY: `place` is less than the number of requests, so the pointer is within the
            // vector. The memory that `tie` links is in the two vectors, which nothing else
            // accesses.
            pieces = unsafe { (*first.add(place)).tie(pieces, next) };
        }
        let mut bad = null_mut();
        // SAFETY: the requests form a list that ends with null, and their pieces are in
        // `self.pieces`. `pair` is alive, `post` fits it, and the memory of the requests is valid:
        // this function requires that.
        match unsafe { post(pair, first, &raw mut bad) } {
            0 => Ok(()),
            errno => {
                let posted = (0..count).position(|place| first.wrapping_add(place) == bad);
                Err((errno, posted.unwrap_or(0)))
            }
        }
    }
}

/// A work request of libibverbs.
pub(crate) trait WorkRequest: Copy {
    /// Sets its pieces and the next request; returns the end of its pieces.
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

/// The error of a batch that was not posted completely.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {posted} requests before it were posted")]
pub struct PostError {
    /// How many requests, from the first, were posted.
    pub posted: usize,
    /// The error of the next one.
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

/// Refuses ids that are reserved for the crate.
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
