//! Result codes, and the message of the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use spark_ccl::ExitClass;

/// `spark_ccl_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `SPARK_CCL_SUCCESS`.
    Success = 0,
    /// `SPARK_CCL_INVALID`.
    Invalid = 1,
    /// `SPARK_CCL_TIMEOUT`.
    Timeout = 2,
    /// `SPARK_CCL_REMOTE`.
    Remote = 3,
    /// `SPARK_CCL_SYSTEM`.
    System = 4,
    /// `SPARK_CCL_INTERNAL`.
    Internal = 5,
}

/// A result other than success, with its message.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    pub(crate) fn invalid(message: String) -> Self {
        Self {
            status: Status::Invalid,
            message,
        }
    }

    #[cfg(test)]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<spark_ccl::Error> for Failure {
    fn from(error: spark_ccl::Error) -> Self {
        let status = match error.exit_class() {
            ExitClass::Usage => Status::Invalid,
            ExitClass::Timeout => Status::Timeout,
            ExitClass::Remote => Status::Remote,
            ExitClass::System => Status::System,
            _ => Status::Internal,
        };
        Self {
            status,
            message: error.to_string(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function's body; no panic passes.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    // Whatever a panic leaves half done belongs to a communicator, which copes with that itself.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Success,
        Ok(Err(failure)) => failure,
        Err(_) => Failure {
            status: Status::Internal,
            message: "a panic within the library; this is a defect, please report it".to_owned(),
        },
    };
    let message = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // While a thread ends its message may be gone already; the code is returned all the same.
    let _ = LAST.try_with(|last| last.replace(message));
    failure.status
}

/// The message of this thread's last failure.
pub(crate) fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// A few words for a code.
pub(crate) fn name(result: c_int) -> &'static CStr {
    match result {
        0 => c"success",
        1 => c"invalid argument or setting",
        2 => c"a deadline passed",
        3 => c"another rank died, aborted or disagreed",
        4 => c"the system refused something",
        5 => c"defect of the library",
        _ => c"not a result of spark-ccl",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: `last_error` returns a string that ends in a null character.
        let text = unsafe { CStr::from_ptr(last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn failures_leave_their_message_with_the_thread() {
        assert_eq!(guarded(|| Ok(())), Status::Success);
        assert_eq!(message(), "");
        let failed = guarded(|| Err(Failure::invalid("a\0b".to_owned())));
        assert_eq!((failed, message().as_str()), (Status::Invalid, "a b"));
        assert_eq!(std::thread::spawn(message).join().unwrap(), "");
        assert_eq!(guarded(|| Ok(())), Status::Success);
        assert_eq!(message(), "a b");
    }

    #[test]
    fn panics_stop_here() {
        let status = guarded(|| panic!("a planned panic"));
        assert_eq!(status, Status::Internal);
        assert!(message().contains("panic"));
    }

    #[test]
    fn codes_have_names() {
        let names: Vec<_> = (0..6).map(name).collect();
        assert!(names.iter().all(|text| *text != name(6)));
        assert_eq!(name(6), name(-1));
    }
}
