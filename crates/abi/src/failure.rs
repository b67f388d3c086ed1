//! Failures: their kinds, for which each library has result codes, and the message of each thread's
//! last failure.

use std::cell::Cell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use spark_ccl::{Error, ExitClass};

/// Why a function of C failed. Each library has its own code for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An argument or a setting is wrong.
    Argument,
    /// The function must not be called in this state.
    Usage,
    /// A deadline passed.
    Timeout,
    /// Another rank died, aborted or disagreed.
    Remote,
    /// CUDA or NCCL refused something.
    Device,
    /// The operating system refused something.
    System,
    /// A defect of the library.
    Internal,
}

/// The result codes of a library.
pub trait Code: Copy {
    /// No failure.
    const SUCCESS: Self;

    /// The code of a failure.
    fn of(kind: Kind) -> Self;
}

/// A failure, with its message.
#[derive(Debug, Clone)]
pub struct Failure {
    kind: Kind,
    message: String,
}

impl Failure {
    /// A failure of any kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }

    /// An argument that is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Argument, message)
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its message, for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match (&error, error.exit_class()) {
            (Error::Cuda(_) | Error::Nccl(_), _) => Kind::Device,
            (_, ExitClass::Usage) => Kind::Argument,
            (_, ExitClass::Timeout) => Kind::Timeout,
            (_, ExitClass::Remote) => Kind::Remote,
            (_, ExitClass::System) => Kind::System,
            _ => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

/// The bytes of the longest message, with the null character behind it.
const MOST: usize = 4096;

thread_local! {
    /// Overwritten in place: the user may still read through a pointer that was returned before.
    static LAST: [Cell<u8>; MOST] = const { [const { Cell::new(0) }; MOST] };
}

/// Runs a function's body; no panic passes.
pub fn guarded<C: Code>(body: impl FnOnce() -> Result<(), Failure>) -> C {
    // State that a panic leaves half done belongs to a communicator, which handles that itself.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return C::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            Kind::Internal,
            "a panic within the library; this is a defect, please report it",
        ),
    };
    keep(&failure.message);
    C::of(failure.kind)
}

/// Makes this the thread's last message, cut off if it is too long.
fn keep(message: &str) {
    let mut end = message.len().min(MOST - 1);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = message[..end]
        .bytes()
        .map(|byte| if byte == 0 { b' ' } else { byte });
    // While a thread ends its message may be gone already; the code is returned all the same.
    let _ = LAST.try_with(|last| {
        for (to, byte) in last.iter().zip(bytes.chain([0])) {
            to.set(byte);
        }
    });
}

/// The message of this thread's last failure, empty before the first. The next one overwrites it.
pub fn last_error() -> *const c_char {
    LAST.try_with(|last| last.as_ptr().cast())
        .unwrap_or(c"".as_ptr())
}

/// A copy of the message of this thread's last failure.
pub fn last_message() -> String {
    let copy = |last: &[Cell<u8>; MOST]| -> Vec<u8> {
        let bytes = last.iter().map(Cell::get);
        bytes.take_while(|&byte| byte != 0).collect()
    };
    let copy = LAST.try_with(copy).unwrap_or_default();
    String::from_utf8_lossy(&copy).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Code for Option<Kind> {
        const SUCCESS: Self = None;

        fn of(kind: Kind) -> Self {
            Some(kind)
        }
    }

    fn kind_of(body: impl FnOnce() -> Result<(), Failure>) -> Option<Kind> {
        guarded(body)
    }

    #[test]
    fn failures_leave_their_message_with_the_thread() {
        assert_eq!(kind_of(|| Ok(())), None);
        assert_eq!(last_message(), "");
        let failed = kind_of(|| Err(Failure::invalid("a\0b")));
        assert_eq!(
            (failed, last_message().as_str()),
            (Some(Kind::Argument), "a b")
        );
        assert_eq!(std::thread::spawn(last_message).join().unwrap(), "");
        assert_eq!(kind_of(|| Ok(())), None);
        assert_eq!(last_message(), "a b");
    }

    #[test]
    fn messages_stay_where_they_are() {
        assert_eq!(
            kind_of(|| Err(Failure::invalid("long ".repeat(MOST)))),
            Some(Kind::Argument)
        );
        let first = last_error();
        assert_eq!(last_message().len(), MOST - 1);
        assert_eq!(
            kind_of(|| Err(Failure::invalid("short"))),
            Some(Kind::Argument)
        );
        assert_eq!((last_error(), last_message().as_str()), (first, "short"));
    }

    #[test]
    fn panics_stop_here() {
        let status = kind_of(|| panic!("a planned panic"));
        assert_eq!(status, Some(Kind::Internal));
        assert!(last_message().contains("panic"));
    }
}
