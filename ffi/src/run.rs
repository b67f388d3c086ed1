//! The common path of all calls from C: reads the options, assembles the call, then runs it, starts
//! it, or adds it to the group.

use std::ffi::c_int;
use std::sync::Arc;

use spark_ccl::{Operation, UntypedCall};

use crate::arguments::{dtype, text};
use crate::comm::{Comm, Handle, find};
use crate::draft::Draft;
use crate::enqueued::Enqueued;
use crate::options::{Given, Options, read};
use crate::started::Started;
use crate::status::{Failure, Status, guarded};
use crate::{groups, requests};

/// Assembles a call, then runs it, or starts it if the options or a group say so.
///
/// # Safety
/// The buffers that `fill` sets are null or as long as it says, and what is sent is initialised.
/// Until the call is done, nobody else writes what it sends, or uses what it receives. `options` is
/// [valid](Options#valid-options).
pub(crate) unsafe fn run(
    comm: *mut Handle,
    operation: Operation,
    code: c_int,
    options: *const Options,
    fill: impl FnOnce(&mut Draft<'_>) -> Result<(), Failure>,
) -> Status {
    guarded(|| {
        // SAFETY: `options` is null, or points to a `spark_ccl_options` of as many bytes as its
        // `struct_size` says, which nobody writes until this returns (this function's contract).
        let given = unsafe { read(options) };
        let is_grouped = given
            .as_ref()
            .map_or(true, |given| given.own.request.is_null());
        let outcome = given.and_then(|given| {
            // SAFETY: the buffers that `fill` sets are null or as long as it says, initialised
            // where they are sent, and the call's until it is done. `given` is a copy of the
            // options, whose request is null or can be written, whose name is null, or a string
            // that nobody writes until this returns, and whose stream is a default one, or lives
            // until the call is enqueued. All of that is this function's contract.
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
/// The buffers that `fill` sets are null or as long as it says, and what is sent is initialised.
/// Until the call is done, nobody else writes what it sends, or uses what it receives. The options
/// are [valid](Options#valid-options), but for their `struct_size`: they are a copy.
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
        // SAFETY: the request of the options is not null, so it can be written (this function's
        // contract).
        unsafe { options.request.write(0) };
    }
    if let Some(failure) = newer {
        return Err(failure);
    }
    let stream = options.device_stream()?;
    let comm = find(comm)?;
    let dtype = dtype(code)?;
    let mut draft = Draft::new(&comm, operation, dtype, &options);
    // SAFETY: the name of the options is null, or points to a string that ends in a null character,
    // and that nobody writes until this returns (this function's contract). It is not used longer:
    // only its hash and a copy are kept.
    if let Some(name) = unsafe { text(options.name) } {
        draft.change(|call| call.named(&name));
    }
    fill(&mut draft)?;
    let call = draft.done();
    if let Some(stream) = stream {
        // SAFETY: the stream is a default one, or lives until the call is enqueued, which is at the
        // end of the group if there is one. The call has the buffers that `fill` has set: as long
        // as it says, and the call's until it has run. All of that is this function's contract.
        let call = unsafe { Enqueued::new(&comm, call, stream) };
        return match groups::keep_enqueued(call) {
            Some(alone) => Enqueued::enqueue(&[alone]),
            None => Ok(()),
        };
    }
    // SAFETY: the call has the buffers that `fill` has set: null or as long, initialised where they
    // are sent, and the call's until it is done. The request of the options is null or can be
    // written. All of that is this function's contract.
    unsafe { begin(&comm, &call, options.request) }
}

/// Starts a call with a request or within a group; else runs it.
///
/// # Safety
/// The call's buffers are as [`run_untyped`](spark_ccl::Communicator::run_untyped) demands until it
/// is done; the request is null or can be written.
unsafe fn begin(comm: &Arc<Comm>, call: &UntypedCall, request: *mut u64) -> Result<(), Failure> {
    if !request.is_null() {
        // SAFETY: until `call` is done, what it sends is initialised memory that nobody writes, and
        // what it receives can be written, and nobody else uses it (this function's contract).
        let handle = requests::insert(unsafe { Started::start(comm, call) }?);
        // SAFETY: a `request` that is not null can be written (this function's contract).
        unsafe { request.write(handle) };
        return Ok(());
    }
    if groups::is_open() {
        // SAFETY: until `call` is done, also where that is at the end of the group, what it sends
        // is initialised memory that nobody writes, and what it receives can be written, and nobody
        // else uses it (this function's contract).
        groups::keep(unsafe { Started::start(comm, call) }?);
        return Ok(());
    }
    // SAFETY: until `call` is done, which it is when this returns, what it sends is initialised
    // memory that nobody writes, and what it receives can be written, and nobody else uses it (this
    // function's contract).
    Ok(unsafe { comm.inner.run_untyped(call) }?)
}
