//! Memory of GPUs and its streams, for communicators with [`Backend::Nccl`](crate::Backend::Nccl)
//! or [`Backend::Engine`](crate::Backend::Engine).
//!
//! The collectives are those of [`Communicator`](crate::Communicator), on device memory:
//!
//! ```no_run
//! use spark_ccl::{Backend, Communicator, RedOp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let comm = Communicator::builder().backend(Backend::Nccl).from_env()?;
//! let stream = comm.context()?.new_stream()?;
//! let mut gradients = stream.clone_htod(&vec![1_f32; 1 << 20])?;
//! comm.all_reduce_in_place(&mut gradients, RedOp::Sum).on(&stream)?;
//! comm.wait(&stream)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Buffers
//!
//! | buffer | what keeps uses in order |
//! |---|---|
//! | cudarc's `CudaSlice`, `CudaViewMut`, and [`DevicePart`] of a slice | cudarc's events: the next use of the buffer, by cudarc or by a call, waits |
//! | [`DeviceMemory`], from [`Communicator::alloc_device`](crate::Communicator::alloc_device), and its parts ([`DeviceView`], [`DeviceViewMut`]) | events of its own: a call that writes waits for all calls before it, one that reads for those that write |
//! | [`DeviceSlice`], of an address | the program itself (`unsafe`) |
//!
//! [`on`](crate::Call::on) enqueues and returns; the buffers come back at once, since what is done
//! to them next waits in its stream. No borrow can follow a stream: freed memory is freed in a
//! stream's order too. Whatever does not touch a call's buffers goes on beside it: computing in
//! another stream, also in the one that a buffer was made with.
//!
//! Kernels and copies of the program's own with [`DeviceMemory`] are in order with calls by
//! [`read_in`](DeviceMemory::read_in) and [`write_in`](DeviceMemory::write_in). Without these, it
//! is in order only in the stream that the calls are in.
//!
//! cudarc has one event for all reads of a buffer, that of the last one. So a call that reads is
//! noted as a write, and cudarc's next read of that buffer waits for it. [`DeviceMemory`] remembers
//! each reader. `CudaView` is no buffer of calls, since it shows no event of writes: take
//! [`DevicePart`].
//!
//! Once a context has a second stream, cudarc records an event for each buffer of each call, and
//! waits for the events of others. A call does the same for each buffer of cudarc's, which takes
//! some microseconds in all. This library leaves that switch as the program has set it in its
//! context (`CudaContext::disable_event_tracking`, `unsafe`). Where each microsecond counts, use
//! [`DeviceMemory`] or [`DeviceSlice`].
//!
//! An error that cudarc keeps in its context for the next caller is left there, and calls leave
//! none.
//!
//! Streams and memory are those of [`Communicator::context`](crate::Communicator::context), or
//! [`context`], which is the same: cudarc keeps nothing in order between two objects of one
//! context. Where a program has made one itself, or a framework has, [`adopt_context`] makes that
//! the one.
//!
//! A stream of another library is taken by its handle, a `CUstream` or `cudaStream_t`:
//! [`borrow_stream`]. The legacy default stream is `CudaContext::default_stream`. The per-thread
//! default stream is refused: its handle means another stream in each thread, and NCCL may use
//! other threads. Take a new stream, and let the two wait for each other (`CudaStream::join`).
//! [`Communicator::enqueue_untyped`](crate::Communicator::enqueue_untyped) borrows streams itself:
//! it takes calls as other languages make them, by addresses, in streams by their handles.
//!
//! # Types
//!
//! Every collective takes all types of elements, in any of these buffers. cudarc itself allocates
//! slices of [`f16`](crate::f16) and [`bf16`](crate::bf16) in programs that turn its feature `f16`
//! on. Of 8-bit floats it makes slices out of memory that is there
//! (`CudaStream::upgrade_device_ptr`, `unsafe`).
//!
//! Our own kernels ([`Backend::Engine`](crate::Backend::Engine)) reduce all types.
//!
//! Any NCCL and any GPU moves 8-bit floats, but reductions of them take NCCL 2.24.3 and, on all
//! ranks, GPUs of compute capability 9.0 (Hopper) or later. Elsewhere they are refused on every
//! rank, with [`Error::Unsupported`] and before anything is enqueued.
//!
//! # Graphs
//!
//! Calls of [`DeviceSlice`] can be captured. A graph uses memory whenever it is launched, so the
//! promise of [`DeviceSlice::from_raw`] holds for every launch. Make each call once before it is
//! captured: NCCL connects the ranks then. Drop graphs before the communicator whose calls they
//! hold, which NCCL otherwise does not free. Launches are not watched as calls are: wait for them
//! by [`Communicator::wait`](crate::Communicator::wait).
//!
//! Our own kernels need no call before, and watch themselves in graphs, too. But launches and calls
//! of one communicator must be ordered by the program: in one stream, or in streams that wait for
//! each other. Wait for the last launch before the communicator is finalized or dropped, and launch
//! none afterwards: its kernels would use memory that is freed.
//!
//! # Waiting, and failures
//!
//! Calls in a stream run later, so most errors show when they are waited for.
//! [`Communicator::wait`](crate::Communicator::wait) returns them. A synchronisation of cudarc's
//! does not hang either. When a rank dies, aborts, or does not take part in time
//! ([`operation_timeout`](crate::Builder::operation_timeout)), the communicators of the other ranks
//! are aborted, which ends running calls. Ask [`check`](crate::Communicator::check) afterwards. The
//! timeout of a call is the one in force when it was enqueued
//! ([`Communicator::set_timeout`](crate::Communicator::set_timeout),
//! [`Call::timeout`](crate::Call::timeout)); for a call in a graph, the one in force when it runs.
//! It includes the program's own work in the stream before the call.
//!
//! Dropping a communicator waits two seconds for the last call, then aborts, on all ranks: what is
//! still in a stream ends there, with results of no use.
//! [`finalize`](crate::Communicator::finalize) waits for it. Work that the program itself has
//! enqueued behind that call counts for neither.
//!
//! CUDA's calls that free memory (`cudaFree`, `cudaFreeHost`, `cudaHostUnregister`) wait for all
//! kernels of a GPU, and hold up all threads that use it meanwhile. The library makes none while a
//! call of its own is in flight there. A thread that drives several ranks must not make one while a
//! call of one rank waits for a call that the thread makes next for another.
//!
//! A stream is used in calls only: it may be captured, or destroyed, at any time afterwards. Calls
//! leave the thread's current context as it was.
//!
//! The ranks compare the first call of each operation, type, reduction, root and power of two of
//! bytes. The comparison goes over the links, which host collectives use, too: threads that share a
//! communicator must agree on the order of both. NCCL compares nothing itself: with counts that
//! differ, it may succeed with wrong data. So ranks tell each other a digest of all their
//! collectives when they wait ([`Communicator::wait`](crate::Communicator::wait), `run`,
//! `finalize`), and once a second besides. A wait that succeeds has compared all calls that had
//! been enqueued when it began, as far as the other ranks had made them. A rank that is behind
//! compares its own when it makes them. Differences fail the communicator on all ranks, and the
//! error names the first call that differs. Not compared are calls in graphs, and messages between
//! two ranks. In a communicator of more than 8 ranks, a rank compares its calls with the ranks at
//! distance 1, 2, 4, ... It hears of differences between others, but its own wait may have
//! succeeded before. After a synchronisation of cudarc's, ask [`check`](crate::Communicator::check)
//! some seconds later. Our own kernels compare each call, among themselves: a difference shows when
//! the stream is waited for.
//!
//! NCCL decides how it reduces: about NaN in minima and maxima, and about the order of sums. Our
//! own kernels reduce in the order of the ranks, with the same bits on all of them.

pub use spark_ccl_cuda::{Device, Error as CudaError, cudarc};
pub use spark_ccl_nccl::Error as NcclError;

pub use crate::device::{DeviceCall, DeviceOperands, Group};
pub use crate::engine::Registration;
use crate::error::Error;
pub use crate::memory::device::buffer::{DevicePart, DeviceRecv, DeviceSend, DeviceSlice};
pub use crate::memory::device::memory::DeviceMemory;
pub use crate::memory::device::view::DeviceView;
pub use crate::memory::device::view_mut::DeviceViewMut;

/// The GPUs that this process may use.
///
/// # Errors
/// [`Error::Unsupported`] where there is no driver, it is too old, or there is no GPU.
pub fn devices() -> Result<Vec<Device>, Error> {
    Ok(spark_ccl_cuda::devices()?)
}

/// The context of a device, one object for the whole process: to make memory before there is a
/// communicator.
///
/// # Errors
/// [`Error::Unsupported`] without a driver; [`Error::Cuda`] without a device of this number.
pub fn context(device: usize) -> Result<std::sync::Arc<cudarc::driver::CudaContext>, Error> {
    let _context = spark_ccl_cuda::keep_context();
    Ok(spark_ccl_cuda::context(device)?)
}

/// Makes a program's own object of a device's primary context the one that [`context`] returns, and
/// communicators use: calls then take the streams and buffers that were made with it. To be called
/// before the first communicator of the device is made.
///
/// ```no_run
/// use spark_ccl::cuda::{adopt_context, cudarc::driver::CudaContext};
/// use spark_ccl::{Backend, Communicator};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = CudaContext::new(0)?;
/// adopt_context(&context)?;
/// let comm = Communicator::builder().backend(Backend::Nccl).local(1)?.remove(0);
/// assert!(std::sync::Arc::ptr_eq(comm.context()?, &context));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] for a context other than the primary one, and while another object of that
/// one is in use: by a communicator, by memory of one, or from [`context`].
pub fn adopt_context(context: &std::sync::Arc<cudarc::driver::CudaContext>) -> Result<(), Error> {
    let _context = spark_ccl_cuda::keep_context();
    Ok(spark_ccl_cuda::adopt(context)?)
}

/// A stream of the program's or of another library, by its handle: a `CUstream`, or a
/// `cudaStream_t`, which is the same. Null and `CU_STREAM_LEGACY` are the legacy default stream. It
/// is not destroyed when what this returns is dropped.
///
/// ```no_run
/// use spark_ccl::cuda::{DeviceMemory, borrow_stream, cudarc::driver::sys::CUstream};
/// use spark_ccl::{Communicator, Error, RedOp};
///
/// /// Called by another library, which keeps its stream until this returns.
/// fn sum(comm: &Communicator, memory: &mut DeviceMemory<f32>, raw: CUstream) -> Result<(), Error> {
///     // SAFETY: the stream lives until this returns, and nothing keeps what is made of it.
///     let stream = unsafe { borrow_stream(comm.context()?, raw) }?;
///     comm.all_reduce_in_place(memory, RedOp::Sum).on(&stream)?;
///     Ok(())
/// }
/// ```
///
/// # Safety
/// The handle is one of those two or `CU_STREAM_PER_THREAD`, or its stream lives long enough: until
/// the value returned, its clones, and all of cudarc's buffers that were allocated with it are
/// dropped. Calls that were enqueued need it no longer.
///
/// # Errors
/// [`Error::Invalid`] for a stream of another context, and for the per-thread default stream, which
/// is another one in each thread; [`Error::Cuda`].
pub unsafe fn borrow_stream(
    context: &std::sync::Arc<cudarc::driver::CudaContext>,
    raw: cudarc::driver::sys::CUstream,
) -> Result<std::sync::Arc<cudarc::driver::CudaStream>, Error> {
    let _context = spark_ccl_cuda::keep_context();
    // SAFETY: the caller passes the legacy or the per-thread default stream, or keeps the stream
    // long enough: until the value returned, its clones and all of cudarc's buffers that were
    // allocated with it are dropped.
    Ok(unsafe { spark_ccl_cuda::borrow_stream(context, raw) }?)
}

/// The version of the NCCL that `SPARK_CCL_NCCL_LIBRARY` names, or that the system has: `2.28.9`.
///
/// # Errors
/// [`Error::Unsupported`] where there is none, or it is too old.
pub fn nccl_version() -> Result<String, Error> {
    let settings = spark_ccl_config::Settings::from_env(&spark_ccl_config::Env::from_process())
        .map_err(|error| Error::Config(std::sync::Arc::new(error)))?;
    let library = crate::device::nccl::library(&settings)?;
    Ok(library.version().to_string())
}
