//! This crate's errors.

use std::fmt;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::pair::AddressError;

/// Why an operation of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libibverbs could not be opened.
    #[error(
        "libibverbs was not found: {tried}; install rdma-core's libraries (Debian and Ubuntu: \
         apt install libibverbs1 ibverbs-providers), or say where libibverbs.so.1 is"
    )]
    Library {
        /// The names that were tried, each with its error.
        tried: String,
    },
    /// The file that was opened lacks a function that every libibverbs has.
    #[error(
        "{} has no function {symbol}: it is not rdma-core's libibverbs, or one from before 2018; \
         install a current one (Debian and Ubuntu: apt install libibverbs1)",
        path.display()
    )]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// This libibverbs is too old for the operation.
    #[error("{call} is not in this libibverbs; it needs rdma-core {needs} or newer")]
    TooOld {
        /// The function.
        call: &'static str,
        /// The first version of rdma-core that has it.
        needs: &'static str,
    },
    /// A call of libibverbs failed.
    #[error(transparent)]
    Call(#[from] Box<CallError>),
    /// A connection cannot be made between two addresses.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An object of one device was used with another.
    #[error("a completion queue of {seen} cannot serve a queue pair of {wanted}")]
    OtherDevice {
        /// The queue pair's device, as it was opened.
        wanted: Box<str>,
        /// The queue's device, as it was opened.
        seen: Box<str>,
    },
    /// A buffer is registered in another protection domain than the queue pair's.
    #[error(
        "a buffer that is registered in another protection domain, of {seen}, cannot serve a queue \
         pair of {wanted}: register it in the queue pair's own domain"
    )]
    OtherDomain {
        /// The queue pair's device.
        wanted: Box<str>,
        /// The buffer's device.
        seen: Box<str>,
    },
    /// The value is beyond the limit of a device, a queue or a region.
    #[error("{what} is {asked}, but must be at most {most}")]
    Beyond {
        /// The parameter.
        what: &'static str,
        /// Its value.
        asked: u64,
        /// The limit.
        most: u64,
    },
}

impl Error {
    /// The error number of the failed call, if one failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Call(call) => Some(call.errno),
            _ => None,
        }
    }

    /// Whether the library, the driver or the device does not support the operation at all.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Error::TooOld { .. } => true,
            Error::Call(call) => matches!(call.errno, libc::EOPNOTSUPP | libc::ENOSYS),
            _ => false,
        }
    }
}

/// A failed call of libibverbs: the function, its subject, the error, and the likely cause.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CallError {
    /// The function; for `ibv_modify_qp`, with the target state.
    pub call: &'static str,
    /// The error number.
    pub errno: i32,
    /// The subject of the call: a device, a port, an address.
    pub subject: String,
    /// The attribute that was probably wrong, and the remedy; empty if unknown.
    pub hint: String,
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = Errno::from_raw(self.errno);
        let Self { call, subject, .. } = self;
        write!(f, "{call} ({subject}): {} ({errno:?})", errno.desc())?;
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

/// The error of a call that has just returned null or -1, from `errno`, with a hint from
/// [`crate::hints`].
pub(crate) fn failed(
    call: &'static str,
    subject: impl fmt::Display,
    hint: impl FnOnce(i32) -> String,
) -> Error {
    failed_as(call, Errno::last_raw(), subject, hint)
}

/// The error of a call that returned its error number.
pub(crate) fn failed_as(
    call: &'static str,
    errno: i32,
    subject: impl fmt::Display,
    hint: impl FnOnce(i32) -> String,
) -> Error {
    let hint = hint(errno);
    let subject = subject.to_string();
    Error::Call(Box::new(CallError {
        call,
        errno,
        subject,
        hint,
    }))
}
