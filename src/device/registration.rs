//! Device memory that NCCL is told of: which, and for how long.

use super::block::{self, Block};
use super::helper_thread::{on_helper_thread, spawn};
use super::registration_table::{Entry, Made, Registration};
use super::{DeviceMemory, Engine};
use crate::communicator::Communicator;
use crate::error::Error;
use spark_ccl_cuda::{make_current, relaxed};
use spark_ccl_nccl::{DeviceSlice, WindowKind};
use spark_ccl_types::Element;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const REGISTER: &str = "register_device";
const DEREGISTER: &str = "deregistering device memory";

impl Communicator {
    /// Registers device memory with this communicator until the memory is dropped, or the communicator ends; whether
    /// NCCL makes use of it. As a symmetric window, all ranks do this together, each in a thread of its own; and
    /// those that all ranks have dropped are given up when they register the next.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when NCCL is older than 2.19, and for windows than 2.27;
    /// [`Error::Failed`] when NCCL fails.
    pub fn register_device<T: Element>(
        &self,
        memory: &DeviceMemory<T>,
        kind: Registration,
    ) -> Result<bool, Error> {
        let engine = self.engine(REGISTER)?;
        if kind == Registration::Local {
            engine.registrable(memory)?;
            return engine.register(memory, kind);
        }
        let unused = self.meet_to_register(engine, memory)?;
        let (timeout, on) = (engine.lock()?.timeout, Arc::clone(engine));
        let what = format!("register_device of {}", engine.member());
        let hint = "all ranks register together";
        let slice = engine.to_register(memory);
        let block = engine.keep(memory, kind);
        on_helper_thread(&what, hint, &engine.watch, timeout, move || {
            let device = make_current(&on.context).map_err(|error| error.of_rank(on.rank))?;
            let _relaxed = relaxed(device).map_err(|error| error.of_rank(on.rank))?;
            on.give_up_windows(unused);
            on.do_register(slice, kind, &block)
        })
    }

    /// The ranks make sure that all register as much; NCCL would wait for ever for one that does not come, or comes
    /// with something else. And they agree on the windows that none of them needs any more.
    fn meet_to_register<T: Element>(
        &self,
        engine: &Engine,
        memory: &DeviceMemory<T>,
    ) -> Result<u64, Error> {
        const WORDS: usize = 3;
        let own = engine.registrable(memory);
        let word = [
            u64::from(own.is_ok()),
            (memory.len() * size_of::<T>()) as u64,
            engine.kept.unused_windows(engine.rank),
        ];
        let mut all = vec![0; WORDS * self.size()];
        self.all_gather(&word, &mut all).by_any_path().run()?;
        own?;
        let mut others = all.chunks_exact(WORDS);
        if let Some(rank) = others.position(|other| other[..2] != word[..2]) {
            return Err(Error::Invalid {
                operation: REGISTER,
                problem: format!(
                    "rank {rank} registers {} bytes, or cannot, and this rank {}",
                    all[WORDS * rank + 1],
                    word[1]
                ),
            });
        }
        let others = all.chunks_exact(WORDS);
        Ok(others.fold(u64::MAX, |unused, other| unused & other[2]))
    }
}

impl Engine {
    /// What registering memory needs to be right here.
    fn registrable<T: Element>(&self, memory: &DeviceMemory<T>) -> Result<(), Error> {
        let device = memory.block().gpu.context.ordinal();
        if device == self.device() {
            return Ok(());
        }
        Err(Error::Invalid {
            operation: REGISTER,
            problem: format!(
                "the memory is of device {device}, but the communicator of device {}",
                self.device()
            ),
        })
    }

    fn register<T: Element>(
        &self,
        memory: &DeviceMemory<T>,
        kind: Registration,
    ) -> Result<bool, Error> {
        let block = self.keep(memory, kind);
        self.do_register(self.to_register(memory), kind, &block)
    }

    fn to_register<T: Element>(&self, memory: &DeviceMemory<T>) -> DeviceSlice {
        let start = std::ptr::without_provenance_mut(memory.address() as usize);
        // SAFETY: the block is kept until it is deregistered, or NCCL's communicators of this process have ended.
        unsafe { DeviceSlice::from_raw(start, memory.len(), T::DTYPE, self.device() as i32) }
    }

    /// Keeps a block that is about to be registered: should that fail, NCCL may have done half of it.
    fn keep<T: Element>(&self, memory: &DeviceMemory<T>, kind: Registration) -> Arc<Block> {
        let block = Arc::clone(memory.block());
        self.kept.add(self.rank, &block, kind);
        block
    }

    fn do_register(
        &self,
        slice: DeviceSlice,
        kind: Registration,
        block: &Arc<Block>,
    ) -> Result<bool, Error> {
        let made = self.with(REGISTER, |_, nccl| match kind {
            Registration::Local => nccl.register(slice).map(Made::Local),
            Registration::Symmetric => nccl
                .register_window(slice, WindowKind::Symmetric)
                .map(Made::Window),
        })?;
        let is_used = match &made {
            Made::Local(made) => made.is_used(),
            Made::Window(made) => made.is_used(),
        };
        self.kept.settle(self.rank, block, made);
        Ok(is_used)
    }

    /// Gives up windows that no rank uses. Where that cannot be done now, they are kept.
    fn give_up_windows(&self, bits: u64) {
        let mut windows = self.kept.take_windows(self.rank, bits);
        self.deregister(|| std::mem::take(&mut windows));
        for window in windows {
            self.kept.put_back(window);
        }
    }

    /// Ends registrations of blocks that are not in use.
    fn deregister(&self, unused: impl FnOnce() -> Vec<Entry>) {
        let ended = self.with(DEREGISTER, |_, nccl| {
            // Another thread's group may have the communicator; then it is tried again.
            nccl.async_error()?;
            self.kept.deregister(unused(), nccl)
        });
        if let Err(error) = ended {
            tracing::debug!("rank {}: {error}", self.rank);
        }
    }

    /// Whether memory was dropped that can be given back now.
    pub(super) fn has_leftovers(&self) -> bool {
        block::any_is_over() || self.kept.any(|entry| entry.is_unused(self.rank))
    }

    /// Whether memory was dropped that can be given back at some time, without the other ranks.
    pub(super) fn will_free(&self) -> bool {
        block::any() || self.kept.any(|entry| entry.will_be_unused(self.rank))
    }

    /// Gives back memory that was dropped, and is not in use any more.
    pub(super) fn tidy(&self) {
        // Taken while NCCL's communicator is at hand: its end deregisters what is still there.
        self.deregister(|| self.kept.take_unused(self.rank));
        block::sweep();
    }

    /// Does so on a thread of its own: NCCL and the driver may take their time.
    pub(super) fn tidy_elsewhere(self: &Arc<Self>) {
        // Taken by this swap, given back by the store below: the two carry nothing else.
        if self.tidies.swap(true, Ordering::Relaxed) {
            return;
        }
        let engine = Arc::clone(self);
        let started = spawn("spark-nccl-free", move || {
            match make_current(&engine.context).and_then(relaxed) {
                Ok(_relaxed) => engine.tidy(),
                Err(error) => tracing::warn!("rank {}: {error}", engine.rank),
            }
            engine.tidies.store(false, Ordering::Relaxed);
        });
        if let Err(error) = started {
            tracing::warn!("rank {}: {error}", self.rank);
            self.tidies.store(false, Ordering::Relaxed);
        }
    }
}
