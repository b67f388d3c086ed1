//! Groups: a thread's calls that proceed together, and ranks that meet. With a fallback, its groups
//! begin and end with ours.

use std::any::Any;
use std::cell::{Cell, RefCell};

use spark_ccl_abi::failure::{Failure, Kind, guarded};
use spark_ccl_abi::groups::{self, Progress};

use crate::fallback::opened;
use crate::status::{Status, progressing};

thread_local! {
    /// How many groups of the fallback this thread has open.
    static THEIRS: Cell<usize> = const { Cell::new(0) };
    /// What these groups use until the outermost one has ended.
    static USED: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what a call of the fallback uses until the fallback's group has ended, if this thread has
/// one open.
pub(crate) fn keep<T: 'static>(used: T) {
    if THEIRS.get() > 0 {
        // Fails as the thread ends, which drops what is kept.
        let _ = USED.try_with(|all| all.borrow_mut().push(Box::new(used)));
    }
}

/// `ncclGroupStart`.
pub(crate) fn start() -> Status {
    guarded(|| {
        // First, so that its failure leaves no group of ours open.
        if let Some(real) = opened() {
            real.group("ncclGroupStart")?;
            THEIRS.set(THEIRS.get() + 1);
        }
        groups::start()
    })
}

/// Refuses to simulate a group in which the fallback has calls, too: they would run.
pub(crate) fn refuse_theirs() -> Result<(), Failure> {
    if THEIRS.get() == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Kind::Usage,
        "ncclGroupSimulateEnd is refused by spark-ccl's libnccl.so.2 with \
         SPARK_CCL_NCCL_FALLBACK, as that library's part of the group would run. The group stays \
         open: end it by ncclGroupEnd",
    ))
}

/// `ncclGroupEnd`.
pub(crate) fn end() -> Status {
    progressing(|| {
        let theirs = end_theirs();
        let ended = groups::end();
        // After `ncclInProgress`, users ask each communicator of the group whether it is ready.
        Ok(match theirs? {
            Progress::Background => ended.map(|_| Progress::Background)?,
            Progress::Done => ended?,
        })
    })
}

fn end_theirs() -> Result<Progress, Failure> {
    let open = THEIRS.get();
    if let (Some(real), true) = (opened(), open > 0) {
        THEIRS.set(open - 1);
        let used = if open == 1 {
            USED.try_with(RefCell::take).unwrap_or_default()
        } else {
            Vec::new()
        };
        let ended = real.group("ncclGroupEnd");
        drop(used);
        return ended;
    }
    Ok(Progress::Done)
}
