//! CUDA events around the iterations (`-I`).

use spark_ccl_cuda::cudarc::driver::CudaEvent;
use spark_ccl_cuda::cudarc::driver::sys::CUevent_flags;
use spark_ccl_cuda::{Error, elapsed_ms};

use super::gpu::Gpu;

/// For each GPU, one event before each iteration and one after the last; or, if there is other work
/// between iterations, one before and one after each.
#[derive(Debug)]
pub(super) struct Events {
    of_gpus: Vec<Vec<CudaEvent>>,
    iterations: usize,
    pub(super) paired: bool,
}

impl Events {
    /// Events that have not been recorded yet.
    pub(super) fn new(gpus: &[Gpu], iterations: usize, paired: bool) -> Result<Self, Error> {
        let count = if paired {
            2 * iterations
        } else {
            iterations + 1
        };
        let event = |gpu: &Gpu| {
            let context = gpu.stream.context();
            let event = context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
            gpu.checked("cuEventCreate", event)
        };
        let of_gpu = |gpu| (0..count).map(|_| event(gpu)).collect();
        Ok(Self {
            of_gpus: gpus.iter().map(of_gpu).collect::<Result<_, _>>()?,
            iterations,
            paired,
        })
    }

    /// Records the begin of an iteration; the begin after the last iteration is the end of the
    /// last.
    pub(super) fn begin(&self, gpus: &[Gpu], iteration: usize) -> Result<(), Error> {
        self.record(
            gpus,
            if self.paired {
                2 * iteration
            } else {
                iteration
            },
        )
    }

    /// Records the end of an iteration, if events are paired.
    pub(super) fn end(&self, gpus: &[Gpu], iteration: usize) -> Result<(), Error> {
        self.record(gpus, 2 * iteration + 1)
    }

    fn record(&self, gpus: &[Gpu], index: usize) -> Result<(), Error> {
        for (gpu, events) in gpus.iter().zip(&self.of_gpus) {
            let recorded = events[index].record(&gpu.stream);
            gpu.checked("cuEventRecord", recorded)?;
        }
        Ok(())
    }

    /// The microseconds of each iteration, on the GPU where it took longest.
    pub(super) fn micros(&self, gpus: &[Gpu]) -> Result<Vec<f64>, Error> {
        (0..self.iterations)
            .map(|iteration| self.longest(gpus, iteration))
            .collect()
    }

    fn longest(&self, gpus: &[Gpu], iteration: usize) -> Result<f64, Error> {
        let start = if self.paired {
            2 * iteration
        } else {
            iteration
        };
        let mut longest = 0_f64;
        for (gpu, events) in gpus.iter().zip(&self.of_gpus) {
            let elapsed = elapsed_ms(&events[start], &events[start + 1]);
            let elapsed = elapsed.map_err(|error| error.of_rank(gpu.comm.rank()))?;
            longest = longest.max(f64::from(elapsed) * 1e3);
        }
        Ok(longest)
    }
}
