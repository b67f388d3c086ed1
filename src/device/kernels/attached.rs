//! A member that has joined, and how it ends.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::time::Duration;

use crossbeam::channel::bounded;
use spark_ccl_gpu as gpu;

use super::copies::CopyMemory;
use super::transport::KernelTransport;
use crate::device::waiting::SUBSIDES;
use crate::memory::device::helper_thread::spawn;

/// How long to wait before another attempt to end, if a graph capture has prevented the last one.
const AGAIN: Duration = Duration::from_millis(50);

/// A rank's transport to the others. It ends on a thread of its own: its end waits for everything
/// that runs in its GPU's context, also for kernels of other communicators, which may wait for
/// other ranks.
#[derive(Debug)]
pub(in crate::device) struct Attached {
    transport: ManuallyDrop<KernelTransport>,
    /// Taken when this is dropped, and dropped once all has run: graphs may use it, too.
    copies: CopyMemory,
}

impl Attached {
    pub(super) fn new(transport: KernelTransport) -> Self {
        Self {
            transport: ManuallyDrop::new(transport),
            copies: CopyMemory::default(),
        }
    }

    /// The memory for copies of messages.
    pub(super) fn copies(&self) -> &CopyMemory {
        &self.copies
    }
}

impl Deref for Attached {
    type Target = KernelTransport;

    fn deref(&self) -> &KernelTransport {
        &self.transport
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: only this line takes the transport out of `self`, and `drop` runs once.
        let transport = unsafe { ManuallyDrop::take(&mut self.transport) };
        let copies = ManuallyDrop::new(std::mem::take(&mut self.copies));
        let (sender, done) = bounded(1);
        let started = spawn("spark-gpu-end", move || {
            if end(transport) {
                drop(ManuallyDrop::into_inner(copies));
            }
            // Fails if nobody waits any more.
            let _ = sender.send(());
        });
        if let Err(error) = started {
            spark_ccl_log::warn!("the end of kernels between GPUs: {error}");
        } else if done.recv_timeout(SUBSIDES).is_err() {
            spark_ccl_log::debug!(
                "memory of kernels between GPUs is freed once all has run on the GPU"
            );
        }
    }
}

/// Ends a member, and returns whether all has run in its GPU's context. A capture there keeps the
/// driver from waiting for that, so the end comes after it.
fn end(mut member: KernelTransport) -> bool {
    loop {
        let Err(failed) = member.end() else {
            return true;
        };
        let (left, error) = *failed;
        if !matches!(&error, gpu::Error::Cuda(error) if error.is_of_a_capture()) {
            let rank = left.rank();
            spark_ccl_log::warn!(
                "rank {rank}: memory of kernels between GPUs is never freed: {error}"
            );
            return false;
        }
        std::thread::sleep(AGAIN);
        member = left;
    }
}
