//! The proof that slots pass between the GPUs' memory: a call whose results are known, before any
//! of the user's calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_control::Watch;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{
    DeviceBlock, EventPool, OwnStream, checked, counted_stream, make_current, relaxed,
};
use spark_ccl_gpu::{Call, Error, Slots};
use spark_ccl_types::{DType, Operation, ReduceOp};

use super::exchange::Exchange;
use crate::api::communicator::Communicator;

/// The elements of a rank's block. They fill slots in all lanes, and enough of these to be in
/// flight over all rails.
const COUNT: usize = 256 << 10;
/// How long the pattern may take, at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// A call that passes a pattern from each rank to all.
pub(in crate::device::kernels) struct Probe {
    input: DeviceBlock,
    output: DeviceBlock,
    stream: Arc<CudaStream>,
    copies: OwnStream,
}

impl Probe {
    /// Fills the memory of the call. The driver may wait for running kernels meanwhile, so all
    /// ranks fill the memory before any makes the call.
    pub(super) fn new(slots: &Slots) -> Result<Self, Error> {
        let context = slots.context();
        let bytes = COUNT * size_of::<u32>();
        let probe = Self {
            input: DeviceBlock::zeroed(context, bytes)?,
            output: DeviceBlock::zeroed(context, slots.ranks() * bytes)?,
            stream: counted_stream(context)?,
            copies: OwnStream::new(context)?,
        };
        // SAFETY: the block has `COUNT` numbers, as many as the pattern, and was made just now, so
        // nothing else uses it. After an error it is leaked, so nothing else ever uses it.
        let written = unsafe {
            probe
                .copies
                .write(probe.input.address(), &pattern(slots.rank()))
        };
        if let Err(error) = written {
            std::mem::forget(probe);
            return Err(error.into());
        }
        Ok(probe)
    }

    /// Makes the call, and checks what has come. Collective.
    pub(super) fn run(
        self,
        slots: &Slots,
        exchange: &mut Exchange,
        carrier: &Communicator,
        parent: &Watch,
    ) -> Result<(), String> {
        // At most half of the timeout, so that a rank that gives up is not late for the others.
        let patience = PATIENCE.min(carrier.inner.world.settings.operation_timeout / 2);
        slots.set_patience(patience);
        // SAFETY: the input has `COUNT` elements, and the output as many for each rank, as the call
        // says. Both live until the stream was waited for, or for good (`forget`). No other call of
        // these slots was made, so operations run one after the other.
        unsafe { slots.enqueue(&self.call(), &self.stream) }.map_err(|error| error.to_string())?;
        let passed = self.pass(slots, exchange, (carrier, parent), patience);
        if passed.is_err() {
            exchange.report(parent);
            slots.abort();
            exchange.withdraw();
        }
        // The kernel has ended, or ends now.
        if let Err(error) = self.wait(slots) {
            // It may still use the blocks.
            std::mem::forget(self);
            return Err(error.to_string());
        }
        // SAFETY: the stream was waited for, and this rank has enqueued only this call.
        unsafe { slots.note_idle() };
        passed?;
        self.compared(slots.ranks())?;
        // SAFETY: the stream was waited for, and this rank has made only this call, so none of its
        // own is running or enqueued. Each rank makes this one call, and none makes another before
        // all have counted anew: the ranks agree on that first (`if_all_have`).
        unsafe { exchange.count_anew() }.map_err(|error| error.to_string())
    }

    /// Waits for the stream, also while other threads capture.
    fn wait(&self, slots: &Slots) -> Result<(), Error> {
        let device = make_current(slots.context())?;
        let _relaxed = relaxed(device)?;
        checked("cuStreamSynchronize", device, self.stream.synchronize())?;
        Ok(())
    }

    /// Moves slots on until the call has run, and the peers have this rank's slots.
    fn pass(
        &self,
        slots: &Slots,
        exchange: &mut Exchange,
        (carrier, parent): (&Communicator, &Watch),
        patience: Duration,
    ) -> Result<(), String> {
        let until = Instant::now() + patience;
        let events = EventPool::new(Arc::clone(slots.context()));
        let run = events.record(&self.stream);
        let run = run.map_err(|error| error.to_string())?;
        loop {
            let moved = exchange.pass(carrier);
            let has_run = run.is_complete().map_err(|error| error.to_string())?;
            slots.check().map_err(|error| error.to_string())?;
            // A rail was dropped, and another one has carried its data.
            if let Some(why) = exchange.trouble() {
                return Err(why);
            }
            if has_run && exchange.is_met() {
                return Ok(());
            }
            if Instant::now() >= until || !parent.is_whole() {
                return Err(format!("a pattern did not pass within {patience:?}"));
            }
            if !moved {
                std::thread::yield_now();
            }
        }
    }

    fn call(&self) -> Call {
        Call {
            operation: Operation::AllGather,
            dtype: DType::U32,
            op: ReduceOp::Sum,
            factor: 0,
            is_factor_in_memory: false,
            root: 0,
            count: COUNT,
            input: self.input.address(),
            output: self.output.address(),
            in_place: false,
            words: [0; 2],
        }
    }

    /// Compares what has come with the patterns of all ranks.
    fn compared(self, ranks: usize) -> Result<(), String> {
        let mut seen = vec![0_u32; ranks * COUNT];
        // SAFETY: the stream was waited for, so the call has run, and nothing else uses the output.
        // After an error it is leaked, so nothing ever writes it. It has `COUNT` numbers for each
        // rank, as `seen` has, and any bytes are a number.
        let read = unsafe { self.copies.read(self.output.address(), &mut seen) };
        if let Err(error) = read {
            std::mem::forget(self);
            return Err(error.to_string());
        }
        for (rank, block) in seen.chunks(COUNT).enumerate() {
            let expected = pattern(rank);
            let wrong = block.iter().zip(&expected).position(|(is, was)| is != was);
            if let Some(at) = wrong {
                return Err(format!(
                    "element {at} of rank {rank} came as {:x}, and was {:x}",
                    block[at], expected[at]
                ));
            }
        }
        Ok(())
    }
}

/// The elements of a rank: no two that differ in rank or place are alike.
fn pattern(rank: usize) -> Vec<u32> {
    let of = |at: usize| (rank * COUNT + at) as u32;
    (0..COUNT)
        .map(|at| of(at).wrapping_mul(0x9e37_79b1))
        .collect()
}
