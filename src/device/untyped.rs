//! Untyped calls on device memory: by addresses, in streams by their handles. The user keeps all
//! uses in order. Memory of this library stays until the calls that use it have run.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::sys::{CUevent, CUstream};
use spark_ccl_cuda::{CallStream, bytes_from, device_of, keep_context, one_call, record};

use crate::api::communicator::Communicator;
use crate::api::untyped::UntypedCall;
use crate::engine::{Engine, StreamTask};
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::memory::device::block::{Block, Found};
use crate::memory::device::gpu::Gpu;
use crate::memory::device::site::{Order, Site};
use crate::task::Task;

/// A call of a communicator, and its stream: a `CUstream`, or a `cudaStream_t`, which is the same.
///
/// Null and `CU_STREAM_LEGACY` are the legacy default stream. For `CU_STREAM_PER_THREAD`, the call
/// runs in a stream of the library. That stream waits for the calling thread's default stream,
/// which in turn waits for the call.
#[derive(Debug, Clone, Copy)]
pub struct DeviceCall<'a> {
    /// The communicator that makes the call.
    pub comm: &'a Communicator,
    /// The operation and the addresses.
    pub call: &'a UntypedCall,
    /// The stream in which the call runs.
    pub stream: CUstream,
}

impl Communicator {
    /// Enqueues calls on device memory, of this communicator and of others, so that no call waits
    /// for another to end before it starts. Addresses must be in memory that this rank's device has
    /// or reaches.
    ///
    /// ```no_run
    /// # use spark_ccl::cuda::{DeviceCall, cudarc::driver::sys::CUstream};
    /// # use spark_ccl::{Communicator, DType, Error, Operation, RedOp, UntypedCall};
    /// /// Called by another library, which has this memory and this stream, and waits for the stream.
    /// unsafe fn sum(comm: &Communicator, memory: *mut u8, len: usize, stream: CUstream) -> Result<(), Error> {
    ///     let call = UntypedCall::new(Operation::AllReduce, DType::F32)
    ///         .reduction(RedOp::Sum)
    ///         .in_place(memory, len);
    ///     // SAFETY: the caller has the stream, and uses the memory in its order only.
    ///     unsafe { Communicator::enqueue_untyped(&[DeviceCall { comm, call: &call, stream }]) }
    /// }
    /// ```
    ///
    /// # Safety
    /// Each stream is the legacy or the per-thread default stream, or lives until this returns. The
    /// buffers stay allocated until the calls have run, and as long as a graph that has captured
    /// them is launched. Meanwhile nothing else writes the memory that they read, and nothing else
    /// touches the memory that they write. With [`Backend::Engine`](crate::Backend::Engine),
    /// launches of graphs with calls of a communicator run one after the other, also with its other
    /// calls, and none runs once that communicator is gone. Its messages may be sent out of memory
    /// where others of these calls are received: the contents from before are sent.
    ///
    /// # Errors
    /// Those of [`Call::on`](crate::Call::on) and [`run_untyped`](Self::run_untyped). Also
    /// [`Error::Invalid`] for registered memory, for calls that move no data, for addresses that
    /// the driver does not know, and for buffers longer than their memory (which may be mappings of
    /// one device that follow each other); with [`Backend::Engine`](crate::Backend::Engine), for
    /// messages of several communicators that need the same memory, too. If a call is invalid,
    /// nothing is enqueued.
    pub unsafe fn enqueue_untyped(calls: &[DeviceCall<'_>]) -> Result<(), Error> {
        let _context = keep_context();
        // SAFETY: the caller keeps each stream, unless it is a default one, until this returns, and
        // `_asked` is dropped before that.
        let _asked = unsafe { one_call(calls.iter().map(|call| call.stream)) };
        // SAFETY: the caller keeps each stream, unless it is a default one, until this returns, and
        // the prepared calls are dropped before that.
        let prepare = |call| unsafe { Prepared::new(call) };
        if let [alone] = calls {
            let alone = prepare(alone)?;
            let enqueued = alone.engine.enqueue(&alone.task, alone.stream.inner());
            return enqueued.and(alone.join());
        }
        let prepared = calls.iter().map(prepare);
        let prepared = prepared.collect::<Result<Vec<_>, Error>>()?;
        let tasks: Vec<_> = prepared.iter().map(Prepared::task).collect();
        let Some(first) = tasks.first() else {
            return Ok(());
        };
        let enqueued = first.engine.enqueue_together(&tasks);
        // Some calls may run although another failed; the user's streams wait for them.
        prepared
            .iter()
            .map(Prepared::join)
            .fold(enqueued, Result::and)
    }

    /// Waits until everything that was enqueued in a stream has run: [`wait`](Self::wait), by the
    /// stream's handle.
    ///
    /// # Safety
    /// The stream is the legacy or the per-thread default stream, or lives until this returns.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub unsafe fn wait_raw(&self, stream: CUstream) -> Result<(), Error> {
        let engine = self.device_engine("wait")?;
        let _context = keep_context();
        // SAFETY: the caller keeps the stream, unless it is a default one, until this returns, and
        // `borrowed` is dropped before that.
        let borrowed = unsafe { borrow(&**engine, stream) }?;
        engine.wait(borrowed.inner())
    }

    /// Records the user's event in a stream, by their handles: the event occurs when everything
    /// that was enqueued there before has run.
    ///
    /// # Safety
    /// The event is of [`context`](Self::context), and is not destroyed before this returns. The
    /// stream is the legacy or the per-thread default stream, or is of that context and lives until
    /// this returns.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses it.
    pub unsafe fn record_raw(&self, event: CUevent, stream: CUstream) -> Result<(), Error> {
        let gpu = self.device_engine("record")?.gpu();
        let _context = keep_context();
        // SAFETY: the caller passes an event of `gpu.context`, and a stream that is a default one
        // or of that context, and destroys neither before this returns.
        let recorded = unsafe { record(&gpu.context, event, stream) };
        Ok(recorded.map_err(|error| error.of_rank(gpu.rank))?)
    }

    /// Waits until all calls that this rank has enqueued, in any stream, have run. A communicator
    /// that is dropped before that waits 2 s for them, and then fails on all ranks. Captured calls
    /// do not count.
    ///
    /// # Errors
    /// [`Error::Failed`], also where another thread [aborts](Self::abort) the communicator
    /// meanwhile; [`Error::Invalid`] after [`finalize`](Self::finalize).
    pub fn settle(&self) -> Result<(), Error> {
        self.inner.membership.check_process()?;
        let Some(device) = &self.device else {
            return Ok(());
        };
        let _context = keep_context();
        device.settle()
    }

    /// Whether all calls that this rank has enqueued, in any stream, have run. Does not wait for
    /// them.
    pub fn is_settled(&self) -> bool {
        let _context = self.device.as_ref().map(|_| keep_context());
        self.device
            .as_ref()
            .is_none_or(|device| device.is_settled())
    }
}

/// A checked call and its stream.
struct Prepared<'a> {
    engine: &'a Arc<dyn Engine>,
    task: Task,
    stream: CallStream,
}

impl<'a> Prepared<'a> {
    /// # Safety
    /// The call's stream is the legacy or the per-thread default stream, or lives until the
    /// prepared call is dropped.
    unsafe fn new(given: &DeviceCall<'a>) -> Result<Self, Error> {
        let (comm, call) = (given.comm, given.call);
        let operation = call.operation();
        let engine = comm.device_engine(operation.name())?;
        if !operation.moves_data() {
            return Err(call.invalid("it moves no data, so no stream can do it".to_owned()));
        }
        if call.is_registered() {
            return Err(call.invalid(
                "memory of the host was registered for it, and its memory is a device's".to_owned(),
            ));
        }
        let place = |side: &str, start, len| place(&**engine, call, side, start, len);
        let (spec, regions) = call.prepare_in(comm, place)?;
        let task = spec.checked(regions, comm.planner().ranks())?;
        if let Some(at) = task.factor_at {
            check_factor(&**engine, call, at)?;
        }
        // SAFETY: the caller keeps the stream, unless it is a default one, until the prepared call
        // is dropped, which owns what is borrowed here.
        let stream = unsafe { borrow(&**engine, given.stream) }?;
        Ok(Self {
            engine,
            task,
            stream,
        })
    }

    fn task(&self) -> StreamTask<'_> {
        StreamTask {
            engine: self.engine,
            task: self.task.clone(),
            stream: self.stream.inner(),
        }
    }

    fn join(&self) -> Result<(), Error> {
        let gpu = self.engine.gpu();
        let joined = self.stream.join(&gpu.events);
        Ok(joined.map_err(|error| error.of_rank(gpu.rank))?)
    }
}

/// # Safety
/// The stream is the legacy or the per-thread default stream, or lives until what this returns is
/// dropped.
unsafe fn borrow(engine: &dyn Engine, raw: CUstream) -> Result<CallStream, Error> {
    let gpu = engine.gpu();
    // SAFETY: the caller keeps the stream, unless it is a default one, until the value returned is
    // dropped. Clones of its stream are kept no longer: calls take them for as long as the prepared
    // call lives.
    let stream = unsafe {
        CallStream::new(
            &gpu.context,
            raw,
            &gpu.sync_stream,
            &gpu.capture_streams,
            &gpu.events,
        )
    };
    Ok(stream.map_err(|error| error.of_rank(gpu.rank))?)
}

/// Device memory by its address. Memory of another device is refused when the call is admitted.
fn place(
    engine: &dyn Engine,
    call: &UntypedCall,
    side: &str,
    start: *mut u8,
    len: usize,
) -> Result<Region, Error> {
    let gpu = engine.gpu();
    let (address, bytes) = (start.addr() as u64, (len * call.dtype().size()) as u64);
    let at = |device, order| {
        let site = Site {
            device,
            stream: None,
            order,
        };
        Region::on_device(address, len, site)
    };
    if len == 0 {
        return Ok(at(gpu.context.ordinal(), Order::User));
    }
    let found = match Block::find(address, bytes) {
        Found::Block(block) => Ok((block.gpu.context.ordinal(), Order::Kept(block))),
        Found::Dropped => Err("was freed, and stays only until earlier calls have run".to_owned()),
        Found::Across(there) => Err(too_long(bytes, there)),
        Found::Other(room) => {
            let device = device_of_user_memory(gpu, address, bytes, room)?;
            device.map(|device| (device, Order::User))
        }
    };
    let found = found.map_err(|problem| {
        let rank = gpu.rank;
        call.invalid(format!(
            "the {side} buffer of rank {rank} at {address:#x} {problem}"
        ))
    });
    found.map(|(device, order)| at(device, order))
}

/// Refuses a factor that kernels of this rank's device could not read.
fn check_factor(engine: &dyn Engine, call: &UntypedCall, at: u64) -> Result<(), Error> {
    let (gpu, bytes) = (engine.gpu(), call.dtype().size() as u64);
    let own = gpu.context.ordinal();
    let problem = if at.is_multiple_of(bytes) {
        match device_of_user_memory(gpu, at, bytes, bytes)? {
            Ok(device) if device == own => return Ok(()),
            Ok(device) => format!("is of device {device}, and not of this rank's, {own}"),
            Err(problem) => problem,
        }
    } else {
        format!("must be aligned to its {bytes} bytes")
    };
    Err(call.invalid(format!(
        "the factor of rank {} at {at:#x} {problem}",
        gpu.rank
    )))
}

/// The device of the user's memory, or an error. The memory ends after at most `room` bytes, where
/// a block of the library begins.
fn device_of_user_memory(
    gpu: &Gpu,
    address: u64,
    bytes: u64,
    room: u64,
) -> Result<Result<usize, String>, Error> {
    let own = gpu.context.ordinal();
    let known = device_of(&gpu.context, address).map_err(|error| error.of_rank(gpu.rank))?;
    let Some(device) = known else {
        return Ok(Err(format!(
            "is no memory that the driver of device {own} knows of: pass device, managed or pinned \
             memory, or make the call without a stream, as one on memory of the host"
        )));
    };
    if device != own {
        return Ok(Ok(device));
    }
    let known = bytes_from(&gpu.context, address, bytes.min(room));
    let there = known.map_err(|error| error.of_rank(gpu.rank))?;
    Ok(if there < bytes {
        Err(too_long(bytes, there))
    } else {
        Ok(device)
    })
}

fn too_long(bytes: u64, there: u64) -> String {
    format!(
        "has {bytes} bytes, and the memory there only {there}: pass as many elements as were \
         allocated"
    )
}
