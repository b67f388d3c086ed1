//! A communicator for tensors: its ranks, their shares, and the time that calls took.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::Result;
use spark_ccl::Communicator;

use crate::error::Error;
use crate::hook::Hook;

/// Ranks that have parts of one model. Clones are the same group.
#[derive(Debug, Clone)]
pub struct Group {
    inner: Arc<Inner>,
    hook: Option<Hook>,
}

#[derive(Debug)]
struct Inner {
    comm: Communicator,
    /// Counters that order no other memory: all accesses are relaxed.
    calls: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The bytes and the time of a group's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// How many calls there were.
    pub calls: u64,
    /// How many bytes this rank has contributed.
    pub bytes: u64,
    /// How long this rank was in calls, including waits for others. A call in a stream of a GPU
    /// takes only the time to enqueue it.
    pub time: Duration,
}

impl Group {
    /// The ranks of a communicator.
    pub fn new(comm: Communicator) -> Self {
        let inner = Inner {
            comm,
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        };
        Self {
            inner: Arc::new(inner),
            hook: None,
        }
    }

    /// This rank alone, which has the whole model.
    ///
    /// # Errors
    /// Those of [`Communicator::local`].
    pub fn alone() -> std::result::Result<Self, spark_ccl::Error> {
        let comm = Communicator::local(1)?.remove(0);
        Ok(Self::new(comm))
    }

    /// The same group; layers that are made with it hand their gradients over.
    #[must_use]
    pub fn hooked(&self, hook: Hook) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            hook: Some(hook),
        }
    }

    pub(crate) fn hook(&self) -> Option<&Hook> {
        self.hook.as_ref()
    }

    /// The communicator, for calls that are not on tensors.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.comm
    }

    /// This process's or thread's rank.
    pub fn rank(&self) -> usize {
        self.inner.comm.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.inner.comm.size()
    }

    /// This rank's share of `count` parts, which all ranks share evenly.
    ///
    /// # Errors
    /// [`Error::Division`] if they cannot.
    pub fn share(&self, what: &str, count: usize, parts: &'static str) -> Result<Range<usize>> {
        let (rank, size) = (self.rank(), self.size());
        if count == 0 || !count.is_multiple_of(size) {
            let what = what.to_owned();
            Err(Error::Division {
                rank,
                size,
                what,
                count,
                parts,
            })?;
        }
        let each = count / size;
        Ok(each * rank..each * (rank + 1))
    }

    /// The bytes and the time of the group's calls so far.
    pub fn spent(&self) -> Spent {
        Spent {
            calls: self.inner.calls.load(Ordering::Relaxed),
            bytes: self.inner.bytes.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.inner.nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// Makes a call of the communicator, and counts it.
    pub(crate) fn call<R>(
        &self,
        operation: &'static str,
        tensor: &str,
        bytes: usize,
        call: impl FnOnce(&Communicator) -> std::result::Result<R, spark_ccl::Error>,
    ) -> Result<R> {
        let begin = Instant::now();
        let result = call(&self.inner.comm);
        let nanoseconds = begin.elapsed().as_nanos() as u64;
        self.inner.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.inner
            .nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        Ok(result.map_err(|source| Error::Call {
            rank: self.rank(),
            size: self.size(),
            operation,
            tensor: tensor.to_owned(),
            source,
        })?)
    }

    /// An error about a tensor of this rank.
    pub(crate) fn refuse(
        &self,
        operation: &'static str,
        tensor: &str,
        problem: String,
    ) -> candle_core::Error {
        let error = Error::Tensor {
            rank: self.rank(),
            size: self.size(),
            operation,
            tensor: tensor.to_owned(),
            problem,
        };
        error.into()
    }
}
