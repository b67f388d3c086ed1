//! Errors, for callers to match on and for people to read. Errors of the crates below become the
//! library's here.

use std::fmt;
use std::sync::Arc;

use spark_ccl_control::Fault;
use spark_ccl_fork::Forked;

/// An error of the library.
///
/// Its `Debug` is its text, too: that is what a `main` which returns the error shows.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid call: lengths, ranks, roots. Its data was not sent, and the communicator is as it
    /// was: it still works, or, after [`finalize`](crate::Communicator::finalize), has ended.
    #[error("{operation}: {problem}")]
    Invalid {
        /// The operation or function.
        operation: &'static str,
        /// Expected and seen.
        problem: String,
    },
    /// The communicator has failed: a rank died or was late, calls did not match, or a rank
    /// aborted. It refuses further work; the remaining ranks can make a new one
    /// ([`Communicator::recover`](crate::Communicator::recover)).
    #[error("{0}")]
    Failed(Arc<Fault>),
    /// The ranks that are left of a communicator did not agree on who goes on.
    #[error("{operation}: {problem}")]
    Shrink {
        /// The function: `shrink` or `recover`.
        operation: &'static str,
        /// The meaning of each, and the remedy.
        problem: String,
    },
    /// The other ranks go on without this one: it was stopped or cut off for too long, or the
    /// program on the others has called it lost. It cannot come back.
    #[error("{operation}: {problem}")]
    LeftOut {
        /// The function: `shrink` or `recover`.
        operation: &'static str,
        /// The ranks that go on, and the remedy.
        problem: String,
    },
    /// This process is a child that was forked from the communicator's. Its copy of the
    /// communicator does nothing; a new one can be made.
    #[error(
        "this communicator, or memory of it, cannot be used here: {0}; make a new one after the \
         fork"
    )]
    Forked(Forked),
    /// The ranks could not find, authenticate or reach each other.
    #[error("{0}")]
    Bootstrap(Arc<spark_ccl_bootstrap::Error>),
    /// The launcher's variables are inconsistent, or there is no launcher.
    #[error("{0}")]
    Launcher(String),
    /// A setting has an invalid value.
    #[error("{0}")]
    Config(Arc<spark_ccl_config::Error>),
    /// Memory could not be allocated, shared or withdrawn.
    #[error("{what}: {problem}")]
    Memory {
        /// Its purpose.
        what: String,
        /// Why not.
        problem: String,
    },
    /// This machine or build cannot do that.
    #[error("{what}: {reason}")]
    Unsupported {
        /// The request.
        what: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A call of CUDA failed. It may be the fault of something that ran before.
    #[cfg(feature = "cuda")]
    #[error("{0}")]
    Cuda(Arc<spark_ccl_cuda::Error>),
    /// A call of NCCL failed.
    #[cfg(feature = "cuda")]
    #[error("{0}")]
    Nccl(Arc<spark_ccl_nccl::Error>),
    /// The operating system refused something that the library needs.
    #[error("{what}: {problem}")]
    System {
        /// The attempt.
        what: String,
        /// Its error.
        problem: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rough kinds of errors, for exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitClass {
    /// The caller's mistake: arguments, settings, environment.
    Usage,
    /// A deadline passed.
    Timeout,
    /// Another rank died, aborted or disagreed.
    Remote,
    /// This machine: memory, operating system, missing support.
    System,
}

impl Error {
    /// The error of this library in an error of any kind: itself, or the first of its sources that
    /// is one. `None` if there is none.
    ///
    /// ```
    /// use spark_ccl::{Communicator, Error};
    ///
    /// fn step(comm: &Communicator) -> Result<(), Box<dyn std::error::Error>> {
    ///     comm.all_reduce_in_place(vec![1.0_f32; 10], spark_ccl::RedOp::Sum).start()?.wait()?;
    ///     Ok(())
    /// }
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// comm.abort("a test");
    /// let error = step(&comm).unwrap_err();
    /// assert_eq!(Error::find(&*error).map(Error::ranks), Some(vec![0]));
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn find<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |error| error.source()).find_map(|it| it.downcast_ref())
    }

    /// The fault that has ended the communicator. `None` for other errors, after which it still
    /// works, or which concern no communicator.
    ///
    /// ```
    /// use spark_ccl::{Communicator, Fault};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// comm.abort("a test");
    /// let error = comm.barrier().run().unwrap_err();
    /// assert!(matches!(error.fault(), Some(Fault::Aborted { .. })));
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Failed(fault) => Some(fault),
            _ => None,
        }
    }

    /// The ranks of the communicator that brought its [fault](Self::fault) about, as far as that is
    /// known: see [`Fault::ranks`]. None for other errors.
    pub fn ranks(&self) -> Vec<usize> {
        let ranks = self.fault().into_iter().flat_map(Fault::ranks);
        ranks.map(|member| member.rank).collect()
    }

    /// Which kind of error this is.
    pub fn exit_class(&self) -> ExitClass {
        match self {
            Self::Invalid { .. } | Self::Forked(_) | Self::Launcher(_) | Self::Config(_) => {
                ExitClass::Usage
            }
            Self::Failed(fault) => match **fault {
                Fault::TimedOut { .. } => ExitClass::Timeout,
                _ => ExitClass::Remote,
            },
            Self::Shrink { .. } | Self::LeftOut { .. } => ExitClass::Remote,
            Self::Bootstrap(error) => bootstrap_class(error),
            Self::Memory { .. } | Self::Unsupported { .. } | Self::System { .. } => {
                ExitClass::System
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(_) | Self::Nccl(_) => ExitClass::System,
        }
    }
}

impl From<spark_ccl_bootstrap::Error> for Error {
    fn from(error: spark_ccl_bootstrap::Error) -> Self {
        Self::Bootstrap(Arc::new(error))
    }
}

impl From<Forked> for Error {
    fn from(forked: Forked) -> Self {
        Self::Forked(forked)
    }
}

#[cfg(feature = "cuda")]
impl From<spark_ccl_cuda::Error> for Error {
    fn from(error: spark_ccl_cuda::Error) -> Self {
        match error {
            spark_ccl_cuda::Error::Call { .. } => Self::Cuda(Arc::new(error)),
            spark_ccl_cuda::Error::Context { .. } => Self::Invalid {
                operation: "adopt_context",
                problem: error.to_string(),
            },
            spark_ccl_cuda::Error::Stream { .. } => Self::Invalid {
                operation: "borrow_stream",
                problem: error.to_string(),
            },
            missing => Self::Unsupported {
                what: "device memory".to_owned(),
                reason: missing.to_string(),
            },
        }
    }
}

fn bootstrap_class(error: &spark_ccl_bootstrap::Error) -> ExitClass {
    use spark_ccl_bootstrap::Error as Bootstrap;
    match error {
        Bootstrap::Argument(_)
        | Bootstrap::UniqueId(_)
        | Bootstrap::NoSecret { .. }
        | Bootstrap::Cancelled => ExitClass::Usage,
        Bootstrap::Missing(_) | Bootstrap::Timeout(_) => ExitClass::Timeout,
        Bootstrap::AddressInUse { .. } | Bootstrap::Os { .. } => ExitClass::System,
        _ => ExitClass::Remote,
    }
}
