//! The pinned host memory through which a rank's host and its kernels communicate: `Control` and
//! `Failure` of `kernels/layout.h`. Knows neither scratch nor operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spark_ccl_cuda::PinnedWords;
use spark_ccl_cuda::cudarc::driver::CudaContext;

use crate::Error;

/// A cache line, in words: the host writes the first one, the GPU the second.
const LINE: usize = 8;
/// Where `Failure` starts, in bytes.
const FAILURE: u64 = (LINE * 8) as u64;
const ABORT: usize = 0;
const PATIENCE: usize = 1;

#[derive(Debug)]
pub(crate) struct Mailbox {
    words: PinnedWords,
}

impl Mailbox {
    pub(crate) fn new(context: &Arc<CudaContext>, patience: Duration) -> Result<Self, Error> {
        let mailbox = Self {
            words: PinnedWords::new(context, 2 * LINE)?,
        };
        mailbox.set_patience(patience);
        Ok(mailbox)
    }

    /// Where control and the failure are, for the kernels of a GPU.
    pub(crate) fn addresses_for(&self, context: &CudaContext) -> Result<[u64; 2], Error> {
        let start = self.words.address_for(context)?;
        Ok([start, start + FAILURE])
    }

    /// Ends all waits of the kernels, for good. Returns whether this is the first time.
    pub(crate) fn abort(&self) -> bool {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.words.words()[ABORT].swap(1, Ordering::Relaxed) == 0
    }

    /// Bounds waits, also waits that have begun.
    pub(crate) fn set_patience(&self, patience: Duration) {
        // Relaxed: kernels read nothing else that this thread has written before.
        self.words.words()[PATIENCE].store(nanoseconds(patience), Ordering::Relaxed);
    }

    /// The error of the rank's first failed operation, if there is one; or that all waits were
    /// ended.
    pub(crate) fn failure_of(&self, rank: usize) -> Option<Error> {
        let words = self.words.words();
        let failure = Failure::read(&words[LINE..]).map(|failure| failure.of_rank(rank));
        // Relaxed: no other read depends on it.
        let is_ended = words[ABORT].load(Ordering::Relaxed) != 0;
        failure.or_else(|| is_ended.then_some(Error::Ended { rank }))
    }
}

/// A duration in nanoseconds, limited so that adding it to the GPU's clock (64 bits, since 1970)
/// cannot overflow.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    const MOST: u64 = u64::MAX >> 1;
    u64::try_from(time.as_nanos()).map_or(MOST, |time| time.min(MOST))
}

/// Why an operation failed, as a kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failure {
    reason: Reason,
    peer: usize,
    warp: u16,
    round: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Late {
        patience: Duration,
    },
    Aborted,
    Mismatch {
        own: [u64; 2],
        theirs: [u64; 2],
        operation: u64,
    },
    OtherMessage {
        own: [u64; 2],
        theirs: [u64; 2],
        message: u64,
    },
}

impl Failure {
    /// `None` as long as nothing has failed.
    fn read(words: &[AtomicU64]) -> Option<Self> {
        // Acquire pairs with the kernel's `release_long` of the first word, which it writes last.
        let what = words[0].load(Ordering::Acquire);
        // Relaxed: the kernel wrote them before the first word.
        let word = |place: usize| words[place].load(Ordering::Relaxed);
        let [reason, peer, ..] = what.to_le_bytes();
        let (number, own, theirs) = (word(1), [word(3), word(4)], [word(5), word(6)]);
        let reason = match reason {
            0 => return None,
            1 => Reason::Late {
                patience: Duration::from_nanos(word(2)),
            },
            2 => Reason::Aborted,
            3 => Reason::Mismatch {
                own,
                theirs,
                operation: number,
            },
            _ => Reason::OtherMessage {
                own,
                theirs,
                message: number,
            },
        };
        Some(Self {
            reason,
            peer: usize::from(peer),
            warp: (what >> 16) as u16,
            round: (what >> 32) as u32,
        })
    }

    fn of_rank(self, rank: usize) -> Error {
        let Self {
            reason,
            peer,
            warp,
            round,
        } = self;
        match reason {
            Reason::Late { patience } => Error::Late {
                rank,
                peer,
                seconds: patience.as_secs_f64(),
                warp,
                round,
            },
            Reason::Aborted => Error::Aborted {
                rank,
                peer,
                warp,
                round,
            },
            Reason::Mismatch {
                own,
                theirs,
                operation,
            } => Error::Mismatch {
                rank,
                peer,
                own,
                theirs,
                operation,
            },
            Reason::OtherMessage {
                own,
                theirs,
                message,
            } => Error::OtherMessage {
                rank,
                peer,
                own,
                theirs,
                message,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_patience_ends_before_it_has_begun() {
        let now = 2_000_000_000_000_000_000_u64;
        for seconds in [0, 30, 9_300_000_000, 18_000_000_000, u64::MAX] {
            let patience = nanoseconds(Duration::from_secs(seconds));
            assert!(now.checked_add(patience).is_some(), "{seconds}");
        }
        assert_eq!(nanoseconds(Duration::from_secs(30)), 30_000_000_000);
    }

    #[test]
    fn failures_are_read() {
        let read =
            |what| Failure::read(&[what, 9, 2_000_000_000, 3, 4, 5, 6, 0].map(AtomicU64::new));
        assert_eq!(read(0), None);
        let rest = 7 << 8 | 511 << 16 | 70_000 << 32;
        let failure = |reason| {
            Some(Failure {
                reason,
                peer: 7,
                warp: 511,
                round: 70_000,
            })
        };
        let patience = Duration::from_secs(2);
        assert_eq!(read(rest | 1), failure(Reason::Late { patience }));
        assert_eq!(read(rest | 2), failure(Reason::Aborted));
        let mismatch = Reason::Mismatch {
            own: [3, 4],
            theirs: [5, 6],
            operation: 9,
        };
        assert_eq!(read(rest | 3), failure(mismatch));
        let other = Reason::OtherMessage {
            own: [3, 4],
            theirs: [5, 6],
            message: 9,
        };
        assert_eq!(read(rest | 4), failure(other));
    }
}
