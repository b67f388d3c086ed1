//! Copies in a stream.

use cudarc::driver::{CudaStream, sys};

use crate::current::make_current;
use crate::{Error, checked};

/// Enqueues a copy within the memory that the stream's device reaches, or captures it into a graph;
/// does not wait.
///
/// # Safety
/// Both addresses are the start of memory of this many bytes that the stream's device reaches, and
/// that does not overlap. Both stay until the copy has run, also as long as a graph that has
/// captured it is launched. While it runs, nothing writes the source, and nothing else uses the
/// target.
///
/// # Errors
/// The driver fails.
pub unsafe fn copy(stream: &CudaStream, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
    let device = make_current(stream.context())?;
    // SAFETY: the caller gives two starts of `bytes` bytes that the stream's device reaches and
    // that do not overlap. The caller keeps both until the copy has run; while it runs, nothing
    // writes the source, and nothing else uses the target. The stream is borrowed, so it has not
    // been destroyed.
    let status = unsafe { sys::cuMemcpyAsync(to, from, bytes, stream.cu_stream()) };
    checked("cuMemcpyAsync", device, status.result())
}
