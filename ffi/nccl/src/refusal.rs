//! What functions answer that are not done here.

use std::ffi::{c_char, c_int};

use spark_ccl_abi::failure::{Failure, Kind, guarded, last_error};

use crate::status::Status;
use crate::types::ncclTeam_t;

/// What a function returns.
pub(crate) trait Answer: Sized {
    /// What another library's function returns in its place: any number for a result.
    type Raw;

    /// The same, of this library's type. A result's failure is said by `say`.
    fn of(raw: Self::Raw, say: impl FnOnce(c_int) -> Status) -> Self;

    /// Where nothing was done, and the failure was said.
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

/// Of functions that return something else than a result: nothing.
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

/// What a function returns that cannot be called, once its message is the thread's last one.
pub(crate) fn failed<A: Answer>(failure: Failure) -> A {
    A::nothing(guarded(|| Err(failure)))
}

/// The same of one that is not done here.
pub(crate) fn refused<A: Answer>(function: &str, reason: &str) -> A {
    let message = format!("{function} is refused by spark-ccl's libnccl.so.2: {reason}");
    failed(Failure::new(Kind::Usage, message))
}
