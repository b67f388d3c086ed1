//! Requests: handles of calls in flight, and the functions that wait for them.

use std::ffi::c_int;

use spark_ccl_abi::arguments::{given, slice};
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::handles::Table;
use spark_ccl_abi::started::{Ended, Started};

use crate::status::Status;

static REQUESTS: Table<Started> = Table::new("request");

/// The request of a call.
pub(crate) fn insert(started: Started) -> u64 {
    REQUESTS.insert(started)
}

/// `spark_ccl_wait`.
///
/// # Safety
/// `request` is null or points to a request that can be written, and that nobody else uses until
/// this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_wait(request: *mut u64) -> Status {
    guarded(|| {
        let request = given(request, "request")?;
        // SAFETY: `given` has refused null, and otherwise `request` points to a request that can be
        // written, and that nobody else uses until this returns (this function's contract).
        let handle = unsafe { request.replace(0) };
        wait(handle)
    })
}

/// `spark_ccl_wait_all`.
///
/// # Safety
/// `requests` is null or points to `count` requests that can be written, and that nobody else uses
/// until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_wait_all(requests: *mut u64, count: usize) -> Status {
    guarded(|| {
        // SAFETY: `requests` is null or points to `count` requests, which nobody else uses until
        // this returns (this function's contract). They are copied before the first is written
        // below.
        let handles = unsafe { slice(requests, count, "requests") }?.to_vec();
        let mut outcome = Ok(());
        for (index, handle) in handles.into_iter().enumerate() {
            let ended = wait(handle);
            // SAFETY: `index` is less than the length of `handles`, which is `count`. So `count` is
            // not 0, `slice` has refused null, and `requests` points to `count` requests that can
            // be written (this function's contract).
            unsafe { requests.add(index).write(0) };
            outcome = outcome.and(ended);
        }
        outcome
    })
}

/// `spark_ccl_wait_any`.
///
/// # Safety
/// `requests` is null or points to `count` requests, and `index` is null or points to a number. All
/// of these can be written, and nobody else uses them until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_wait_any(
    requests: *mut u64,
    count: usize,
    index: *mut usize,
) -> Status {
    guarded(|| {
        let index = given(index, "index")?;
        // SAFETY: `requests` is null or points to `count` requests, which nobody else uses until
        // this returns (this function's contract). They are copied before one is written below.
        let handles = unsafe { slice(requests, count, "requests") }?.to_vec();
        let (place, outcome) = first_of(&handles);
        // SAFETY: `given` has refused null, and otherwise `index` points to a number that can be
        // written (this function's contract).
        unsafe { index.write(place) };
        if place < count {
            // SAFETY: `place` is less than `count`. So `count` is not 0, `slice` has refused null,
            // and `requests` points to `count` requests that can be written (this function's
            // contract).
            unsafe { requests.add(place).write(0) };
        }
        outcome
    })
}

/// `spark_ccl_request_free`.
///
/// # Safety
/// `request` is null or points to a request that can be written, and that nobody else uses until
/// this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_request_free(request: *mut u64) -> Status {
    guarded(|| {
        let request = given(request, "request")?;
        // SAFETY: `given` has refused null, and otherwise `request` points to a request that can be
        // written, and that nobody else uses until this returns (this function's contract).
        let handle = unsafe { request.replace(0) };
        if handle != 0 {
            drop(REQUESTS.remove(handle)?);
        }
        Ok(())
    })
}

/// `spark_ccl_test`.
///
/// # Safety
/// `request` is null or points to a request, and `done` is null or points to an `int`. Both can be
/// written, and nobody else uses them until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_test(request: *mut u64, done: *mut c_int) -> Status {
    guarded(|| {
        let (request, done) = (given(request, "request")?, given(done, "done")?);
        // SAFETY: `given` has refused null, and otherwise `request` points to a request, which
        // nobody else uses until this returns (this function's contract).
        let handle = unsafe { request.read() };
        // An unknown request counts as done: the wait for it returns the error.
        let is_done = handle == 0 || REQUESTS.get(handle).map_or(true, |started| started.test());
        // SAFETY: `given` has refused null, and otherwise `done` points to an `int` that can be
        // written (this function's contract).
        unsafe { done.write(is_done.into()) };
        if !is_done {
            return Ok(());
        }
        // SAFETY: `given` has refused null, and `request` points to a request that can be written,
        // and that nobody else uses until this returns (this function's contract).
        unsafe { request.write(0) };
        wait(handle)
    })
}

/// Waits for a call; 0 stands for no call.
fn wait(handle: u64) -> Result<(), Failure> {
    if handle == 0 {
        return Ok(());
    }
    let ended = REQUESTS.get(handle)?.take()?;
    // Removed only now: while another thread waits for the call, the request must stay.
    drop(REQUESTS.remove(handle));
    ended.wait()
}

/// Waits until one of several calls is done. Returns its place and its result; if there are no
/// calls, their number as the place.
fn first_of(handles: &[u64]) -> (usize, Result<(), Failure>) {
    let (mut places, mut calls) = (Vec::new(), Vec::new());
    for (place, &handle) in handles
        .iter()
        .enumerate()
        .filter(|&(_, handle)| *handle != 0)
    {
        match REQUESTS.get(handle) {
            Ok(started) => calls.push(started),
            Err(failure) => return (place, Err(failure)),
        }
        places.push(place);
    }
    match Started::wait_any(&calls) {
        Ok(None) => (handles.len(), Ok(())),
        Ok(Some(Ended { place, outcome })) => {
            let place = places[place];
            // Nobody else uses the request: `wait_any` has taken its call.
            drop(REQUESTS.remove(handles[place]));
            (place, outcome)
        }
        Err((place, failure)) => (places[place], Err(failure)),
    }
}
