//! Groups: a thread's calls that proceed together.

use spark_ccl_abi::failure::guarded;
use spark_ccl_abi::groups;

use crate::status::Status;

/// `spark_ccl_group_start`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_group_start() -> Status {
    guarded(groups::start)
}

/// `spark_ccl_group_end`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_group_end() -> Status {
    guarded(|| groups::end().map(drop))
}
