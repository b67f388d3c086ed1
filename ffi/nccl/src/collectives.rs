//! The collectives and messages: enqueued in the stream where the communicator has a GPU; else on
//! host memory, done when the function returns, or when the group ends.

use std::ffi::{c_int, c_void};

use spark_ccl::Operation;
use spark_ccl_abi::arguments::{dtype, natural};
use spark_ccl_abi::draft::{Buffers, CallMemory, Draft};
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::groups;
use spark_ccl_cuda::is_device_only;

use crate::comm::enter;
use crate::config::check;
use crate::factors::Value;
use crate::status::Status;
use crate::types::{cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclDataType_t, ncclRedOp_t};

/// A call: its communicator, its stream, its type and its configuration.
struct Call {
    operation: Operation,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
    /// Null if there is none.
    config: *const ncclCollConfig_t,
}

/// The arguments that only some collectives have.
#[derive(Default)]
struct Rest {
    op: Option<ncclRedOp_t>,
    root: Option<c_int>,
}

impl Call {
    /// Assembles the call, and does it, or has the group do it. A call that fails within a group
    /// fails the group.
    ///
    /// # Safety
    /// The buffers that `fill` sets are null or as long as it says, and what is sent is
    /// initialised. Until the call is done, nobody else writes what it sends, or uses what it
    /// receives. The stream is a default one, or lives until the call is enqueued. The
    /// configuration is null, or as long as it says, and its event is null, or one of the
    /// communicator's device that lives as long.
    unsafe fn run(
        self,
        op: Option<ncclRedOp_t>,
        fill: impl FnOnce(&mut Draft<'_>) -> Result<(), Failure>,
    ) -> Status {
        guarded(|| {
            // SAFETY: the buffers that `fill` sets are null or as long as it says, initialised
            // where they are sent, and the call's until it is done; the stream is a default one, or
            // lives until the call is enqueued; the configuration is null, or as long as it says
            // (this function's contract).
            let outcome = unsafe { self.attempt(op, fill) };
            if let Err(failure) = &outcome {
                groups::keep_failure(failure);
            }
            outcome
        })
    }

    /// # Safety
    /// That of [`run`](Self::run).
    unsafe fn attempt(
        self,
        op: Option<ncclRedOp_t>,
        fill: impl FnOnce(&mut Draft<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // SAFETY: the configuration is null, or as long as it says (this function's contract).
        let wishes = unsafe { check(self.config) }?;
        let event = wishes.event;
        let comm = enter(self.comm)?;
        let dtype = dtype(self.datatype, "ncclDataType_t")?;
        let mut draft = Draft::new(&comm.inner, self.operation, dtype);
        if let Some(op) = op {
            match comm.factors.find(op, dtype)? {
                // SAFETY: `factor` has 8 bytes, and an element has at most as many.
                (op, Value::Bytes(factor)) => unsafe { draft.reduces(op, factor.as_ptr().cast()) }?,
                (_, Value::At(address)) => {
                    draft.reduces_at(std::ptr::without_provenance(address));
                }
            }
        }
        fill(&mut draft)?;
        let mut memory = draft.memory();
        let call = wishes.apply(draft.done());
        if comm.inner.device().is_some() {
            // SAFETY: the stream is a default one, or lives until the call is enqueued, as does the
            // event, and the call has the buffers that `fill` has set until it has run (this
            // function's contract).
            unsafe { groups::enqueue(comm, call, self.stream, event) }
        } else {
            if !event.is_null() {
                return Err(Failure::invalid(
                    "launchCompletionEvent of the ncclCollConfig_t needs a GPU, and the \
                     communicator has none",
                ));
            }
            let is_of_device = |own: &CallMemory| is_device_only(own.start.addr() as u64);
            if let Some(CallMemory { name, start, .. }) = memory.find(is_of_device) {
                return Err(Failure::invalid(format!(
                    "the {name} buffer {start:p} is memory of a GPU, and the communicator has \
                     none: it was made with SPARK_CCL_BACKEND=host, or before there was a GPU"
                )));
            }
            // SAFETY: the call has the buffers that `fill` has set: null or as long, initialised
            // where they are sent, and the call's until it is done (this function's contract).
            unsafe { groups::hold(comm, call) }
        }
    }
}

/// Two functions for each collective, the second with a configuration. A row names the arguments
/// besides buffers.
macro_rules! collectives {
    ($($name:ident $configured:ident $operation:ident($($rest:ident)*);)*) => {$(
        /// # Safety
        /// The buffers are null or as long as NCCL demands, and the call's until it is done; the
        /// stream is a default one, or lives until the call is enqueued.
        #[allow(clippy::too_many_arguments, reason = "as in C")]
        pub(crate) unsafe fn $name(
            send: *const c_void,
            recv: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            $($rest: c_int,)*
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> Status {
            let none = std::ptr::null();
            // SAFETY: the caller keeps buffers and stream until the call has run. There is no
            // configuration.
            unsafe { $configured(send, recv, count, datatype, $($rest,)* comm, stream, none) }
        }

        /// # Safety
        /// The buffers are null or as long as NCCL demands, and the call's until it is done; the
        /// stream is a default one, or lives until the call is enqueued. The configuration is null,
        /// or as long as it says, and its event is null, or one of the communicator's device that
        /// lives as long as the stream.
        #[allow(clippy::too_many_arguments, reason = "as in C")]
        pub(crate) unsafe fn $configured(
            send: *const c_void,
            recv: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            $($rest: c_int,)*
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> Status {
            let buffers = Buffers { send, recv, count };
            #[allow(clippy::needless_update, reason = "some have the whole rest")]
            let rest = Rest { $($rest: Some($rest),)* ..Rest::default() };
            let operation = Operation::$operation;
            let call = Call { operation, datatype, comm, stream, config };
            // SAFETY: the caller keeps buffers and stream until the call has run, and passes a
            // configuration that is null or as long as its `size` says.
            unsafe { call.run(rest.op, |draft| draft.collective(buffers, rest.root)) }
        }
    )*};
}

collectives! {
    all_reduce all_reduce_config AllReduce(op);
    reduce reduce_config Reduce(op root);
    broadcast broadcast_config Broadcast(root);
    all_gather all_gather_config AllGather();
    reduce_scatter reduce_scatter_config ReduceScatter(op);
    all_to_all all_to_all_config AllToAll();
    gather gather_config Gather(root);
    scatter scatter_config Scatter(root);
}

/// `ncclBcast`: a broadcast in place.
///
/// # Safety
/// That of `ncclBroadcast`.
pub(crate) unsafe fn broadcast_in_place(
    buffer: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Status {
    // SAFETY: the buffer is null or as long as NCCL demands, and the call's until it is done; the
    // stream is a default one, or lives until the call is enqueued (this function's contract).
    unsafe { broadcast(buffer, buffer, count, datatype, root, comm, stream) }
}

/// `ncclSend`.
///
/// # Safety
/// The buffer is null or has `count` initialised elements, and nobody writes them until the call is
/// done. The stream is a default one, or lives until the call is enqueued.
pub(crate) unsafe fn send(
    buffer: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Status {
    let call = Call {
        operation: Operation::Send,
        datatype,
        comm,
        stream,
        config: std::ptr::null(),
    };
    // SAFETY: the buffer is null or has `count` elements, which are initialised and not written
    // until the call is done; the stream is a default one, or lives until the call is enqueued
    // (this function's contract). There is no configuration.
    unsafe {
        call.run(None, |draft| {
            let to = natural(peer, "peer")?;
            draft.change(|call| call.to(to));
            draft.send(buffer, count);
            Ok(())
        })
    }
}

/// `ncclRecv`.
///
/// # Safety
/// The buffer is null or has `count` elements, which can be written, and nobody else uses them
/// until the call is done. The stream is a default one, or lives until the call is enqueued.
pub(crate) unsafe fn recv(
    buffer: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Status {
    let call = Call {
        operation: Operation::Recv,
        datatype,
        comm,
        stream,
        config: std::ptr::null(),
    };
    // SAFETY: the buffer is null or has `count` elements, which can be written, and nobody else
    // uses them until the call is done; the stream is a default one, or lives until the call is
    // enqueued (this function's contract). There is no configuration.
    unsafe {
        call.run(None, |draft| {
            let from = natural(peer, "peer")?;
            draft.change(|call| call.from(from));
            draft.recv(buffer, count);
            Ok(())
        })
    }
}
