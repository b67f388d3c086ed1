//! From the arguments of a call in C to a call that runs, is started, or is its group's.

use crate::arguments::{dtype, text};
use crate::comm::{Comm, Handle, find};
use crate::draft::Draft;
use crate::options::{Given, Options, read};
use crate::started::Started;
use crate::status::{Failure, Status, guarded};
use crate::{groups, requests};
use spark_ccl::{Operation, UntypedCall};
use std::ffi::c_int;
use std::sync::Arc;

/// Puts a call together, and runs it, or starts it where the options or a group say so.
///
/// # Safety
/// As of [`spark_ccl_all_reduce`](crate::collectives::spark_ccl_all_reduce), for the buffers that `fill` sets.
pub(crate) unsafe fn run(
    comm: *mut Handle,
    operation: Operation,
    code: c_int,
    options: *const Options,
    fill: impl FnOnce(&mut Draft<'_>) -> Result<(), Failure>,
) -> Status {
    guarded(|| {
        // SAFETY: this function's contract.
        let given = unsafe { read(options) };
        let is_grouped = given
            .as_ref()
            .map_or(true, |given| given.own.request.is_null());
        let outcome = given.and_then(|given| {
            // SAFETY: this function's contract; the options are the caller's.
            unsafe { attempt(comm, operation, code, given, fill) }
        });
        if is_grouped && let Err(failure) = &outcome {
            groups::keep_failure(failure);
        }
        outcome
    })
}

/// The same, with options that are read.
///
/// # Safety
/// As of [`run`], for the pointers in the options, too.
unsafe fn attempt(
    comm: *mut Handle,
    operation: Operation,
    code: c_int,
    given: Given,
    fill: impl FnOnce(&mut Draft<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Given {
        own: options,
        newer,
    } = given;
    if !options.request.is_null() {
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { options.request.write(0) };
    }
    if let Some(failure) = newer {
        return Err(failure);
    }
    let comm = find(comm)?;
    let dtype = dtype(code)?;
    let mut draft = Draft::new(&comm, operation, dtype, &options);
    // SAFETY: this function's contract.
    if let Some(name) = unsafe { text(options.name) } {
        draft.change(|call| call.named(&name));
    }
    fill(&mut draft)?;
    let call = draft.done();
    // SAFETY: this function's contract: the buffers are the call's until it is done, and the request can be written.
    unsafe { begin(&comm, &call, options.request) }
}

/// Starts a call with a request or within a group; else runs it.
///
/// # Safety
/// The call's buffers are as [`run_untyped`](spark_ccl::Communicator::run_untyped) demands until it is done; the request is
/// null or can be written.
unsafe fn begin(comm: &Arc<Comm>, call: &UntypedCall, request: *mut u64) -> Result<(), Failure> {
    if !request.is_null() {
        // SAFETY: this function's contract.
        let handle = requests::insert(unsafe { Started::start(comm, call) }?);
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { request.write(handle) };
        return Ok(());
    }
    if groups::is_open() {
        // SAFETY: this function's contract.
        groups::keep(unsafe { Started::start(comm, call) }?);
        return Ok(());
    }
    // SAFETY: this function's contract.
    Ok(unsafe { comm.inner.run_untyped(call) }?)
}
