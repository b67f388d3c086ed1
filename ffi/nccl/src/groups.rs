//! Groups: a thread's calls that proceed together, and ranks that meet.

use spark_ccl_abi::failure::guarded;
use spark_ccl_abi::groups;

use crate::status::{Status, progressing};

/// `ncclGroupStart`.
pub(crate) fn start() -> Status {
    guarded(groups::start)
}

/// `ncclGroupEnd`.
pub(crate) fn end() -> Status {
    progressing(groups::end)
}
