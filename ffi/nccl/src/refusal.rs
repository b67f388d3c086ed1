//! The answers of functions that are not done here.

use std::ffi::{c_char, c_int};

use spark_ccl_abi::failure::{Failure, Kind, guarded, last_error};

use crate::status::Status;
use crate::types::ncclTeam_t;

/// The type that a function returns.
pub(crate) trait Answer: Sized {
    /// The type that another library's function returns instead: any number for a result.
    type Raw;

    /// Converts another library's answer. `say` keeps the message of a failure, and returns its
    /// code.
    fn of(raw: Self::Raw, say: impl FnOnce(c_int) -> Status) -> Self;

    /// The answer if nothing was done. The failure's message is kept already.
    fn nothing(failed: Status) -> Self;
}

impl Answer for Status {
    type Raw = c_int;

    fn of(raw: c_int, say: impl FnOnce(c_int) -> Self) -> Self {
        say(raw);
        Self::from_code(raw)
    }

    fn nothing(failed: Status) -> Self {
        failed
    }
}

/// For functions that return no result code: their empty answer.
macro_rules! nothing {
    ($($output:ty = $nothing:expr;)*) => {$(
        impl Answer for $output {
            type Raw = Self;

            fn of(raw: Self, _: impl FnOnce(c_int) -> Status) -> Self {
                raw
            }

            fn nothing(_: Status) -> Self {
                $nothing
            }
        }
    )*};
}

nothing! {
    () = ();
    c_int = 0;
    *const c_char = last_error();
    ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };
}

/// Makes the failure's message the thread's last one, and returns the answer of a function that
/// cannot be called.
pub(crate) fn failed<A: Answer>(failure: Failure) -> A {
    A::nothing(guarded(|| Err(failure)))
}

/// Does what [`failed`] does, for a function that is not done here.
pub(crate) fn refused<A: Answer>(function: &str, reason: &str) -> A {
    let message = format!("{function} is refused by spark-ccl's libnccl.so.2: {reason}");
    failed(Failure::new(Kind::Usage, message))
}
