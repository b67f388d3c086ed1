//! Calls that are under way: requests of the caller's, and groups of a thread.

use crate::arguments::{given, slice};
use crate::comm::Comm;
use crate::handles::Table;
use crate::status::{Failure, Status, guarded};
use parking_lot::Mutex;
use spark_ccl::{Pending, UntypedCall};
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Arc;

/// A call under way. Its communicator stays until it is done.
struct Started {
    /// `None` once somebody waits for it.
    pending: Mutex<Option<Pending<()>>>,
    _comm: Arc<Comm>,
}

static REQUESTS: Table<Started> = Table::new("request");

thread_local! {
    /// The calls of the groups that the thread has opened, and how many of these there are.
    static GROUP: RefCell<(usize, Vec<Started>)> = const { RefCell::new((0, Vec::new())) };
}

/// Where the caller wants a call's handle, if it wants one.
#[derive(Clone, Copy)]
pub(crate) struct Request(Option<*mut u64>);

impl Request {
    pub(crate) fn at(request: *mut u64) -> Self {
        Self((!request.is_null()).then_some(request))
    }
}

/// Starts a call within a group or with a request; else runs it.
///
/// # Safety
/// The call's buffers are as [`run_untyped`](spark_ccl::Communicator::run_untyped) demands until it is done; the request can
/// be written.
pub(crate) unsafe fn begin(
    comm: &Arc<Comm>,
    call: &UntypedCall,
    request: Request,
) -> Result<(), Failure> {
    let start = || -> Result<Started, Failure> {
        // SAFETY: this function's contract.
        let pending = unsafe { comm.inner.start_untyped(call) }?;
        Ok(Started {
            pending: Mutex::new(Some(pending)),
            _comm: Arc::clone(comm),
        })
    };
    if let Some(to) = request.0 {
        // SAFETY: it can be written, by this function's contract.
        unsafe { to.write(0) };
        let handle = REQUESTS.insert(start()?);
        // SAFETY: as above.
        unsafe { to.write(handle) };
        return Ok(());
    }
    let is_grouped = GROUP.with_borrow(|(depth, _)| *depth > 0);
    if is_grouped {
        let started = start()?;
        GROUP.with_borrow_mut(|(_, calls)| calls.push(started));
        return Ok(());
    }
    // SAFETY: this function's contract.
    Ok(unsafe { comm.inner.run_untyped(call) }?)
}

/// `spark_ccl_group_start`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_group_start() -> Status {
    guarded(|| {
        GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
        Ok(())
    })
}

/// `spark_ccl_group_end`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_group_end() -> Status {
    guarded(|| {
        let calls = GROUP.with_borrow_mut(|(depth, calls)| {
            *depth = depth.checked_sub(1)?;
            Some(if *depth == 0 {
                std::mem::take(calls)
            } else {
                Vec::new()
            })
        });
        let Some(calls) = calls else {
            return Err(Failure::invalid(
                "no group is open in this thread".to_owned(),
            ));
        };
        // All of them: their buffers are the caller's again.
        let outcomes: Vec<_> = calls.iter().map(finish).collect();
        outcomes.into_iter().collect()
    })
}

/// `spark_ccl_wait`.
///
/// # Safety
/// `request` is null or points to a request that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_wait(request: *mut u64) -> Status {
    guarded(|| {
        let request = given(request, "request")?;
        // SAFETY: not null, and then readable by this function's contract.
        let handle = unsafe { request.read() };
        if handle == 0 {
            return Ok(());
        }
        let started = REQUESTS.remove(handle)?;
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { request.write(0) };
        finish(&started)
    })
}

/// `spark_ccl_test`.
///
/// # Safety
/// `request` is null or points to a request, and `done` to an `int`, that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_test(request: *mut u64, done: *mut c_int) -> Status {
    guarded(|| {
        let (request, done) = (given(request, "request")?, given(done, "done")?);
        // SAFETY: not null, and then readable by this function's contract.
        let handle = unsafe { request.read() };
        let is_done = handle == 0 || {
            let started = REQUESTS.get(handle)?;
            let pending = started.pending.lock();
            // Who waits in another thread has taken it.
            pending.as_ref().is_some_and(Pending::test)
        };
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { done.write(is_done.into()) };
        if !is_done || handle == 0 {
            return Ok(());
        }
        let started = REQUESTS.remove(handle)?;
        // SAFETY: as above.
        unsafe { request.write(0) };
        finish(&started)
    })
}

/// `spark_ccl_wait_all`.
///
/// # Safety
/// `requests` points to `count` requests that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_wait_all(requests: *mut u64, count: usize) -> Status {
    guarded(|| {
        // SAFETY: this function's contract.
        let handles = unsafe { slice(requests, count, "requests") }?.to_vec();
        let mut outcome = Ok(());
        for (index, handle) in handles.into_iter().enumerate() {
            if handle == 0 {
                continue;
            }
            let ended = REQUESTS.remove(handle).and_then(|started| finish(&started));
            // SAFETY: there are `count`, and they can be written, by this function's contract.
            unsafe { requests.add(index).write(0) };
            outcome = outcome.and(ended);
        }
        outcome
    })
}

/// Waits for a call.
fn finish(started: &Started) -> Result<(), Failure> {
    let pending = started.pending.lock().take();
    match pending.map(Pending::wait) {
        Some(Err(failed)) => Err(failed.error.into()),
        Some(Ok(())) => Ok(()),
        None => Err(Failure::invalid(
            "another thread waits for this request".to_owned(),
        )),
    }
}
