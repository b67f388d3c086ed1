//! Has the fallback make a communicator, in a thread that can be left behind: nothing ends a wait
//! within the fallback's `ncclCommInitRank`. Knows no communicator of ours.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_cuda::{context, make_current};
use spark_ccl_fork::{within, within_while};

use crate::fallback::Real;
use crate::status::Status;
use crate::types::{ncclComm_t, ncclUniqueId};

/// How often a communicator that is being made is asked whether it is ready.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// How long the fallback may take to abort a communicator.
const ABORTED_WITHIN: Duration = Duration::from_millis(500);

/// One rank's part in making a communicator of the fallback.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) real: &'static Real,
    pub(crate) id: ncclUniqueId,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The GPU, which is current where the fallback makes it.
    pub(crate) device: Option<usize>,
}

/// A communicator that the fallback has made. It is aborted if nobody takes it.
pub(crate) struct Fresh {
    real: &'static Real,
    handle: usize,
    is_in_progress: bool,
}

impl Connection {
    /// Makes the communicator. Waits for the other ranks until `deadline`, and while `check`
    /// succeeds. After that, the thread that waits in the fallback runs on, and aborts the
    /// communicator if the fallback still makes it.
    pub(crate) fn connect(
        self,
        deadline: Instant,
        mut check: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Fresh, Failure> {
        let begun = within_while(deadline, &mut check, move || self.init());
        let begun = begun.map_err(|cause| self.left_behind(&cause))?;
        let fresh = match begun {
            Ok(made) => made?,
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                return Err(self.left_behind(&late()));
            }
            Err(error) => return Err(Failure::new(Kind::System, error.to_string())),
        };
        while fresh.is_in_progress()? {
            check()?;
            if Instant::now() >= deadline {
                return Err(late());
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(fresh)
    }

    /// Has the fallback begin the communicator, which may wait for the other ranks.
    fn init(self) -> Result<Fresh, Failure> {
        type Init = unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int;
        let Self { real, id, .. } = self;
        if let Some(device) = self.device {
            let entered = context(device).and_then(|context| make_current(&context));
            entered.map_err(|error| Failure::new(Kind::Device, error.to_string()))?;
        }
        let [rank, size] = [self.rank, self.size].map(|number| {
            // A communicator of ours has fewer ranks.
            c_int::try_from(number).unwrap_or(c_int::MAX)
        });
        let mut comm = std::ptr::null_mut();
        // SAFETY: NCCL's function has this type.
        let init = unsafe { real.function::<Init>(INIT) }?;
        // SAFETY: `ncclCommInitRank` writes one handle, to a variable of this function, which
        // outlives the call also where nobody waits for this thread any more.
        let made = unsafe { init(&raw mut comm, size, id, rank) };
        real.passed(INIT, made)?;
        Ok(Fresh {
            real,
            handle: comm.expose_provenance(),
            is_in_progress: Status::from_code(made) == Status::InProgress,
        })
    }

    /// The failure of a wait that was ended from here.
    fn left_behind(&self, cause: &Failure) -> Failure {
        let text = format!(
            "{}; {INIT} of {}, was left behind in a thread, which waits there for the other ranks",
            cause.message(),
            self.real.name()
        );
        Failure::new(cause.kind(), text)
    }
}

const INIT: &str = "ncclCommInitRank";

fn late() -> Failure {
    Failure::new(
        Kind::Timeout,
        "the other ranks have not met in time (SPARK_CCL_TIMEOUT)",
    )
}

impl Fresh {
    fn handle(&self) -> ncclComm_t {
        std::ptr::with_exposed_provenance_mut(self.handle)
    }

    /// Whether the fallback still makes it.
    fn is_in_progress(&self) -> Result<bool, Failure> {
        type Ask = unsafe extern "C" fn(ncclComm_t, *mut c_int) -> c_int;
        const NAME: &str = "ncclCommGetAsyncError";
        if !self.is_in_progress {
            return Ok(false);
        }
        // SAFETY: NCCL's function has this type.
        let ask = unsafe { self.real.function::<Ask>(NAME) }?;
        let mut state = 0;
        // SAFETY: the communicator is one of the fallback, and ends only with this value. The
        // function writes one number, to a variable of this function.
        let asked = unsafe { ask(self.handle(), &raw mut state) };
        self.real.passed(NAME, asked)?;
        self.real.passed(INIT, state)?;
        Ok(Status::from_code(state) == Status::InProgress)
    }

    /// The communicator, which the caller then ends.
    pub(crate) fn take(self) -> ncclComm_t {
        std::mem::ManuallyDrop::new(self).handle()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let (real, handle) = (self.real, self.handle);
        // What takes longer is left behind.
        let _in_time = within(Instant::now() + ABORTED_WITHIN, move || {
            let comm = std::ptr::with_exposed_provenance_mut(handle);
            // SAFETY: the fallback has made the communicator, nobody else has it, and this is its
            // end. The name is one of the two that `end` takes.
            let _ = unsafe { real.end("ncclCommAbort", comm) };
        });
    }
}
