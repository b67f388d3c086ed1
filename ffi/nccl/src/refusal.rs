//! What functions that are not implemented answer.

use std::ffi::c_int;

use spark_ccl_abi::failure::{Failure, Kind, guarded};

use crate::status::Status;
use crate::types::ncclTeam_t;

/// What a refused function returns, once its message is the thread's last one.
pub(crate) trait Refused {
    fn refused(function: &str, reason: &str) -> Self;
}

impl Refused for Status {
    fn refused(function: &str, reason: &str) -> Self {
        guarded(|| {
            Err(Failure::new(
                Kind::Usage,
                format!("{function} is refused by spark-ccl's libnccl.so.2: {reason}"),
            ))
        })
    }
}

/// Of functions that return something else than a result: nothing.
macro_rules! nothing {
    ($($output:ty = $nothing:expr;)*) => {$(
        impl Refused for $output {
            fn refused(function: &str, reason: &str) -> Self {
                Status::refused(function, reason);
                $nothing
            }
        }
    )*};
}

nothing! {
    () = ();
    c_int = 0;
    ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };
}
