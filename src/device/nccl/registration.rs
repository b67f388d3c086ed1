//! Registers device memory with NCCL, and ends registrations.

use std::sync::Arc;

use spark_ccl_cuda::{make_current, relaxed};
use spark_ccl_nccl::{DeviceSlice, WindowKind};

use super::NcclEngine;
use super::helper_thread::on_helper_thread;
use super::registration_table::{Entry, Made};
use crate::engine::Registration;
use crate::error::Error;
use crate::memory::device::block::Block;
use crate::memory::device::memory::TypedBlock;

const REGISTER: &str = "register_device";
const DEREGISTER: &str = "deregistering device memory";

impl NcclEngine {
    /// Registers a block; all ranks register a window together.
    pub(super) fn register_block(
        self: Arc<Self>,
        memory: &TypedBlock<'_>,
        kind: Registration,
    ) -> Result<bool, Error> {
        if kind == Registration::Local {
            self.registrable(memory)?;
            let block = self.keep(memory, kind);
            return self.do_register(self.to_register(memory), kind, &block);
        }
        let unused = self.meet_to_register(memory)?;
        let (timeout, on) = (self.base.lock()?.calls.timeout, Arc::clone(&self));
        let what = format!("register_device of {}", self.base.member());
        let hint = "all ranks register together";
        let slice = self.to_register(memory);
        let block = self.keep(memory, kind);
        on_helper_thread(&what, hint, &self.base.watch, timeout, move || {
            let device = on.base.own(make_current(&on.base.context))?;
            let _relaxed = on.base.own(relaxed(device))?;
            on.give_up_windows(unused);
            on.do_register(slice, kind, &block)
        })
    }

    /// The ranks check that all register the same length: NCCL would wait without end for a rank
    /// that registers nothing, or something else. They also agree on the windows that no rank needs
    /// any more.
    fn meet_to_register(&self, memory: &TypedBlock<'_>) -> Result<u64, Error> {
        let own = self.registrable(memory);
        let words = [
            u64::from(own.is_ok()),
            (memory.len * memory.dtype.size()) as u64,
            self.kept.unused_windows(self.base.rank),
        ];
        let all = self.gather(&words, None)?.wait()?;
        own?;
        let mut others = all.chunks_exact(words.len());
        if let Some(rank) = others.position(|other| other[..2] != words[..2]) {
            return Err(Error::Invalid {
                operation: REGISTER,
                problem: format!(
                    "rank {rank} registers {} bytes, or cannot, and this rank {}",
                    all[words.len() * rank + 1],
                    words[1]
                ),
            });
        }
        let others = all.chunks_exact(words.len());
        Ok(others.fold(u64::MAX, |unused, other| unused & other[2]))
    }

    /// Checks that the memory can be registered on this rank.
    fn registrable(&self, memory: &TypedBlock<'_>) -> Result<(), Error> {
        let device = memory.block.gpu.context.ordinal();
        if device == self.base.device() {
            return Ok(());
        }
        Err(Error::Invalid {
            operation: REGISTER,
            problem: format!(
                "the memory is of device {device}, but the communicator of device {}",
                self.base.device()
            ),
        })
    }

    fn to_register(&self, memory: &TypedBlock<'_>) -> DeviceSlice {
        let start = std::ptr::without_provenance_mut(memory.block.address as usize);
        // SAFETY: the block has `len` elements of this type from its address on, in memory of this
        // device (`registrable`). `keep` keeps the block until it is deregistered, or the NCCL
        // communicators of this process have ended. NCCL only registers the slice: it neither reads
        // nor writes it.
        unsafe { DeviceSlice::from_raw(start, memory.len, memory.dtype, self.base.device() as i32) }
    }

    /// Keeps a block that is about to be registered: if that fails, NCCL may still have registered
    /// a part.
    fn keep(&self, memory: &TypedBlock<'_>, kind: Registration) -> Arc<Block> {
        let block = Arc::clone(memory.block);
        self.kept.add(self.base.rank, &block, kind);
        block
    }

    fn do_register(
        &self,
        slice: DeviceSlice,
        kind: Registration,
        block: &Arc<Block>,
    ) -> Result<bool, Error> {
        let made = self.with(REGISTER, None, |_, nccl| match kind {
            Registration::Local => nccl.register(slice).map(Made::Local),
            Registration::Symmetric => nccl
                .register_window(slice, WindowKind::Symmetric)
                .map(Made::Window),
        })?;
        let is_used = match &made {
            Made::Local(made) => made.is_used(),
            Made::Window(made) => made.is_used(),
        };
        self.kept.settle(self.base.rank, block, made);
        Ok(is_used)
    }

    /// Gives up windows that no rank uses. They are kept if they cannot be given up now.
    fn give_up_windows(&self, bits: u64) {
        let mut windows = self.kept.take_windows(self.base.rank, bits);
        self.deregister(|| std::mem::take(&mut windows));
        for window in windows {
            self.kept.put_back(window);
        }
    }

    /// Ends registrations of blocks that are not in use.
    pub(super) fn deregister(&self, unused: impl FnOnce() -> Vec<Entry>) {
        let ended = self.with(DEREGISTER, None, |_, nccl| {
            // Fails while another thread's group has the communicator; then this is tried again
            // later.
            nccl.async_error()?;
            self.kept.deregister(unused(), nccl)
        });
        if let Err(error) = ended {
            spark_ccl_log::debug!("rank {}: {error}", self.base.rank);
        }
    }
}
