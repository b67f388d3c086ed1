//! What communicators offer for device memory.

use super::elsewhere::elsewhere;
use super::{DeviceMemory, Engine, Registration};
use crate::communicator::Communicator;
use crate::error::Error;
use spark_ccl_compute::Element;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

impl Communicator {
    /// CUDA's number of this rank's device, if it has one.
    pub fn device(&self) -> Option<usize> {
        self.device.as_ref().map(|engine| engine.device())
    }

    /// The primary context of this rank's device: memory and streams are made with it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Backend::Nccl`](crate::Backend::Nccl).
    pub fn context(&self) -> Result<&Arc<CudaContext>, Error> {
        self.engine("context").map(|engine| &engine.context)
    }

    /// Waits until all has run that was enqueued in the stream.
    ///
    /// # Errors
    /// [`Error::Failed`] when the communicator has failed or fails meanwhile, which it does after the operation
    /// timeout; [`Error::Cuda`] when something in the stream has failed.
    pub fn wait(&self, stream: &CudaStream) -> Result<(), Error> {
        self.engine("wait")?.wait(stream)
    }

    /// `len` elements of memory of this rank's device, from NCCL, for [`register_device`](Self::register_device).
    ///
    /// # Errors
    /// [`Error::Memory`] when there is not enough; [`Error::Unsupported`] without
    /// [`Backend::Nccl`](crate::Backend::Nccl), or when NCCL is older than 2.19.
    pub fn alloc_device<T: Element>(&self, len: usize) -> Result<DeviceMemory<T>, Error> {
        self.engine("alloc_device")?.alloc(len)
    }

    /// Registers device memory with this communicator until its end; whether NCCL makes use of it. As a symmetric
    /// window, all ranks do this together, each in a thread of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when NCCL is older than 2.19, and for windows than 2.27;
    /// [`Error::Failed`] when NCCL fails.
    pub fn register_device<T: Element>(
        &self,
        memory: &DeviceMemory<T>,
        kind: Registration,
    ) -> Result<bool, Error> {
        let engine = self.engine("register_device")?;
        if kind == Registration::Local {
            return engine.do_register(engine.register(memory, kind)?);
        }
        // NCCL would wait for ever for a rank that does not come, or comes with something else.
        let mut all = vec![[0; 2]; self.size()].concat();
        let own = engine.registrable(memory);
        let word = [
            u64::from(own.is_ok()),
            (memory.len() * size_of::<T>()) as u64,
        ];
        self.all_gather(&word, &mut all).by_any_path().run()?;
        own?;
        if let Some(rank) = all.chunks_exact(2).position(|other| other != word) {
            return Err(Error::Invalid {
                operation: "register_device",
                problem: format!(
                    "rank {rank} registers {} bytes, or cannot, and this rank {}",
                    all[2 * rank + 1],
                    word[1]
                ),
            });
        }
        let register = engine.register(memory, kind)?;
        let (timeout, on) = (engine.lock()?.timeout, Arc::clone(engine));
        let what = format!("register_device of {}", engine.member());
        let hint = "all ranks register together";
        elsewhere(&what, hint, &engine.watch, timeout, move || {
            on.checked("cuCtxSetCurrent", on.context.bind_to_thread())?;
            on.do_register(register)
        })
    }

    pub(crate) fn engine(&self, operation: &'static str) -> Result<&Arc<Engine>, Error> {
        self.device.as_ref().ok_or_else(|| Error::Unsupported {
            what: operation.to_owned(),
            reason: "this communicator knows no device memory; make it with Backend::Nccl, or \
                     SPARK_CCL_BACKEND=nccl"
                .to_owned(),
        })
    }
}
