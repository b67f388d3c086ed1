//! The common path of all calls from C: reads the options, assembles the call, then runs it, starts
//! it, or adds it to the group.

use std::ffi::c_int;
use std::sync::Arc;

use spark_ccl::{Operation, UntypedCall};
use spark_ccl_abi::arguments::{dtype, reduction, text};
use spark_ccl_abi::draft::Draft;
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::groups;
use spark_ccl_abi::started::Started;

use crate::comm::{Comm, Handle, find};
use crate::options::{Given, Options, read};
use crate::registered::within;
use crate::requests;
use crate::status::Status;

/// Assembles a call, then runs it, or starts it if the options or a group say so. `op` is the
/// reduction, if the operation has one.
///
/// # Safety
/// The buffers that `fill` sets are null or as long as it says, and what is sent is initialised.
/// Until the call is done, nobody else writes what it sends, or uses what it receives. `options` is
/// [valid](Options#valid-options).
pub(crate) unsafe fn run(
    comm: *mut Handle,
    operation: Operation,
    code: c_int,
    op: Option<c_int>,
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
            unsafe { attempt(comm, operation, code, op, given, fill) }
        });
        if is_grouped && let Err(failure) = &outcome {
            groups::keep_failure(failure);
        }
        outcome
    })
}

/// Does the work of [`run`], with a copy of the options.
///
/// # Safety
/// The buffers that `fill` sets are null or as long as it says, and what is sent is initialised.
/// Until the call is done, nobody else writes what it sends, or uses what it receives. The options
/// are [valid](Options#valid-options), but for their `struct_size`: they are a copy.
unsafe fn attempt(
    comm: *mut Handle,
    operation: Operation,
    code: c_int,
    op: Option<c_int>,
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
    let dtype = dtype(code, "spark_ccl_dtype")?;
    let mut draft = Draft::new(&comm.inner, operation, dtype);
    if let Some(limit) = options.limit() {
        draft.change(|call| call.timeout(limit));
    }
    // SAFETY: the name of the options is null, or points to a string that ends in a null character,
    // and that nobody writes until this returns (this function's contract). It is not used longer:
    // only its hash and a copy are kept.
    if let Some(name) = unsafe { text(options.name) } {
        draft.change(|call| call.named(&name));
    }
    if let Some(op) = op {
        let op = reduction(op, "spark_ccl_op")?;
        // SAFETY: the factor of the options is null, or points to an element of the call's type
        // where the reduction uses it, which nobody writes until this returns (this function's
        // contract).
        unsafe { draft.reduces(op, options.factor) }?;
    }
    fill(&mut draft)?;
    if options.registered != 0 {
        within(&mut draft, &comm)?;
    }
    let call = draft.done();
    if let Some(stream) = stream {
        // SAFETY: the stream is a default one, or lives until the call is enqueued, which is at the
        // end of the group if there is one. The call has the buffers that `fill` has set: as long
        // as it says, and the call's until it has run. All of that is this function's contract.
        // There is no event.
        return unsafe { groups::enqueue(comm, call, stream, std::ptr::null_mut()) };
    }
    // SAFETY: the call has the buffers that `fill` has set: null or as long, initialised where they
    // are sent, and the call's until it is done. The request of the options is null or can be
    // written. All of that is this function's contract.
    unsafe { begin(comm, &call, options.request) }
}

/// Starts a call with a request or within a group; else runs it.
///
/// # Safety
/// The call's buffers are as [`run_untyped`](spark_ccl::Communicator::run_untyped) demands until it
/// is done; the request is null or can be written.
unsafe fn begin(comm: Arc<Comm>, call: &UntypedCall, request: *mut u64) -> Result<(), Failure> {
    if !request.is_null() {
        // SAFETY: until `call` is done, what it sends is initialised memory that nobody writes, and
        // what it receives can be written, and nobody else uses it (this function's contract).
        let handle = requests::insert(unsafe { Started::start(comm, call) }?);
        // SAFETY: a `request` that is not null can be written (this function's contract).
        unsafe { request.write(handle) };
        return Ok(());
    }
    // SAFETY: until `call` is done, also where that is at the end of the group, what it sends is
    // initialised memory that nobody writes, and what it receives can be written, and nobody else
    // uses it (this function's contract).
    unsafe { groups::run(comm, call) }
}
