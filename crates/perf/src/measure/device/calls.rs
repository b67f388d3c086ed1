//! One call of all GPUs of a thread.

use std::ops::Range;

use spark_ccl::{Element, Error};
use spark_ccl_cuda::cudarc::driver::CudaGraph;
use spark_ccl_cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl_cuda::{Feature, require};

use super::call::{Call, Start};
use super::gpu::Gpu;

/// The call of each GPU.
pub(super) struct Calls<'a, T> {
    pub(super) gpus: &'a [Gpu],
    pub(super) calls: Vec<Call<T>>,
}

impl<T: Element> Calls<'_, T> {
    /// Starts all turns of a range together on all GPUs.
    pub(super) fn start(&self, turns: Range<usize>) -> Result<(), Error> {
        let rounds = self.calls[0].rounds();
        if rounds == 1 {
            return self.together(turns, 0);
        }
        // Each round needs the results of the one before.
        for turn in turns {
            for round in 0..rounds {
                self.together(turn..turn + 1, round)?;
            }
        }
        Ok(())
    }

    fn together(&self, turns: Range<usize>, round: u32) -> Result<(), Error> {
        if let ([gpu], [call]) = (self.gpus, self.calls.as_slice())
            && turns.len() == 1
        {
            return call.enqueue(Start { gpu, group: None }, turns.start, round);
        }
        self.gpus[0].comm.group(|group| {
            let group = Some(group);
            for turn in turns {
                for (gpu, call) in self.gpus.iter().zip(&self.calls) {
                    call.enqueue(Start { gpu, group }, turn, round)?;
                }
            }
            Ok(())
        })
    }

    /// Waits for all GPUs.
    pub(super) fn wait(&self) -> Result<(), Error> {
        self.gpus.iter().try_for_each(Gpu::wait)
    }

    /// Captures what `body` enqueues into one graph for each GPU.
    pub(super) fn captured(
        &self,
        body: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Vec<CudaGraph>, Error> {
        require(Feature::Graphs)?;
        // In relaxed mode, one thread may capture for several GPUs, and create the graph of one
        // while the others still capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        for gpu in self.gpus {
            let begun = gpu.stream.begin_capture(mode);
            gpu.checked("cuStreamBeginCapture", begun)?;
        }
        let enqueued = body();
        let end = |gpu: &Gpu| {
            // Without flags, as nccl-tests does.
            let graph = gpu.stream.end_capture(CUgraphInstantiate_flags(0));
            gpu.checked("cuStreamEndCapture", graph)
        };
        // All streams end their captures before a failure is reported.
        let graphs: Vec<_> = self.gpus.iter().map(end).collect();
        enqueued?;
        let graphs = graphs.into_iter().filter_map(Result::transpose);
        Ok(graphs.collect::<Result<_, _>>()?)
    }
}

/// Enqueues what the first launch of each graph would otherwise do.
pub(super) fn upload(graphs: &[CudaGraph], gpus: &[Gpu]) -> Result<(), Error> {
    for (graph, gpu) in graphs.iter().zip(gpus) {
        gpu.checked("cuGraphUpload", graph.upload())?;
    }
    Ok(())
}

/// Launches each graph once.
pub(super) fn launch(graphs: &[CudaGraph], gpus: &[Gpu]) -> Result<(), Error> {
    for (graph, gpu) in graphs.iter().zip(gpus) {
        gpu.checked("cuGraphLaunch", graph.launch())?;
    }
    Ok(())
}
