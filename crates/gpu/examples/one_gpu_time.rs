//! How long an `all_reduce` of two ranks on one GPU takes, launched again in a graph, beside a
//! kernel that does nothing. `one_gpu_time [CTAS]`; elements are bfloat16.

use std::error::Error;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::sys::{
    CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use spark_ccl_cuda::cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaStream, LaunchConfig,
};
use spark_ccl_cuda::cudarc::nvrtc::Ptx;
use spark_ccl_cuda::{DeviceBlock, counted_stream, elapsed_ms};
use spark_ccl_gpu::{Call, Kernel, Member, Plan, Scratch, Settings, Wire};
use spark_ccl_types::{DType, Operation, ReduceOp};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NOTHING: &str = ".version 7.0\n.target sm_80\n.address_size 64\n\
    .visible .entry nothing() { ret; }\n";
const MOST_BYTES: usize = 64 << 20;
const LAUNCHES: usize = 7;

/// A rank, and its buffers.
struct Rank {
    member: Member,
    stream: Arc<CudaStream>,
    input: DeviceBlock,
    output: DeviceBlock,
}

fn main() -> Result<()> {
    let ctas = std::env::args()
        .nth(1)
        .map_or(Ok(32), |ctas| ctas.parse())?;
    if let Err(error) = spark_ccl_cuda::devices() {
        println!("skipped: {error}");
        return Ok(());
    }
    let context = spark_ccl_cuda::context(0)?;
    let ranks = members(
        &context,
        Settings {
            ctas,
            wire: Wire::Whole,
        },
    )?
    .into_iter()
    .map(|member| Rank::new(&context, member))
    .collect::<Result<Vec<_>>>()?;
    let nothing = context
        .load_module(Ptx::from_src(NOTHING))?
        .load_function("nothing")?;
    let empty = time_of_nothing(&ranks[0].stream, &nothing)?;
    println!("{}, 2 ranks, at most {ctas} CTAs", context.name()?);
    println!("an empty kernel: {empty:.2} us");
    println!(
        "{:>10}  {:<18} {:>4} {:>8} {:>9} {:>8} {:>8}",
        "bytes", "kernel", "CTAs", "threads", "us", "- empty", "GB/s"
    );
    let mut bytes = 8;
    while bytes <= MOST_BYTES {
        for kernel in [Kernel::OneShotPackets, Kernel::OneShotLines] {
            let plan = Plan::of(kernel, bytes as u64, 2, ranks[0].member.limits());
            let us = time(&ranks, bytes, plan)?;
            let speed = bytes as f64 / us / 1e3;
            let (name, above) = (kernel.name(), us - empty);
            let Plan { ctas, threads, .. } = plan;
            println!(
                "{bytes:>10}  {name:<18} {ctas:>4} {threads:>8} {us:>9.2} {above:>8.2} {speed:>8.1}"
            );
        }
        bytes *= 4;
    }
    Ok(())
}

/// Two ranks.
fn members(context: &Arc<CudaContext>, settings: Settings) -> Result<[Member; 2]> {
    let [first, second] = [Scratch::new(context, 2)?, Scratch::new(context, 2)?];
    let exported = [first.export()?, second.export()?].map(Some);
    let [of_first, of_second] = exported;
    Ok([
        Member::join(0, first, vec![None, of_second], settings)?,
        Member::join(1, second, vec![of_first, None], settings)?,
    ])
}

impl Rank {
    fn new(context: &Arc<CudaContext>, member: Member) -> Result<Self> {
        Ok(Self {
            member,
            stream: counted_stream(context)?,
            input: DeviceBlock::new(context, MOST_BYTES)?,
            output: DeviceBlock::new(context, MOST_BYTES)?,
        })
    }

    fn enqueue(&self, bytes: usize, plan: Plan) -> Result<()> {
        let call = Call {
            operation: Operation::AllReduce,
            dtype: DType::Bf16,
            op: ReduceOp::Sum,
            factor: 0,
            is_factor_in_memory: false,
            root: 0,
            count: bytes / 2,
            input: self.input.address(),
            output: self.output.address(),
            in_place: false,
            words: [bytes as u64, 0],
        };
        // SAFETY: input and output of the rank have at least `bytes` bytes, and only this stream
        // uses them. Both ranks make the same calls by the same plans. Two grids of at most 32 CTAs
        // fit on a GPU, so both kernels can run at the same time.
        unsafe { self.member.enqueue_as(plan, &call, &self.stream)? };
        Ok(())
    }
}

/// Microseconds of a call: the slower rank's, the fastest of some launches.
fn time(ranks: &[Rank], bytes: usize, plan: Plan) -> Result<f64> {
    let calls = if bytes > 1 << 20 { 10 } else { 100 };
    let capture = |rank: &Rank| {
        captured(&rank.stream, || {
            (0..calls).try_for_each(|_| rank.enqueue(bytes, plan))
        })
    };
    let graphs = ranks.iter().map(capture).collect::<Result<Vec<_>>>()?;
    let streams: Vec<_> = ranks.iter().map(|rank| &rank.stream).collect();
    let us = fastest(&graphs, &streams)?;
    ranks.iter().try_for_each(|rank| rank.member.check())?;
    Ok(us / f64::from(calls))
}

fn time_of_nothing(stream: &Arc<CudaStream>, nothing: &CudaFunction) -> Result<f64> {
    const CALLS: u32 = 100;
    let config = LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (32, 1, 1),
        shared_mem_bytes: 0,
    };
    let graph = captured(stream, || {
        (0..CALLS).try_for_each(|_| {
            // SAFETY: the kernel has no parameters, and touches no memory.
            unsafe { stream.launch_builder(nothing).launch(config)? };
            Ok(())
        })
    })?;
    Ok(fastest(&[graph], &[stream])? / f64::from(CALLS))
}

fn captured(stream: &Arc<CudaStream>, enqueue: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    enqueue()?;
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.ok_or("nothing was captured")?;
    graph.upload()?;
    stream.synchronize()?;
    Ok(graph)
}

/// Microseconds between the events around each graph; of the slowest graph, in the fastest launch.
fn fastest(graphs: &[CudaGraph], streams: &[&Arc<CudaStream>]) -> Result<f64> {
    let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let mut fastest = f64::INFINITY;
    for _ in 0..LAUNCHES {
        let mut events = Vec::new();
        for (graph, stream) in graphs.iter().zip(streams) {
            let begin = stream.record_event(flags)?;
            graph.launch()?;
            events.push((begin, stream.record_event(flags)?));
        }
        let mut slowest: f64 = 0.0;
        for ((begin, end), stream) in events.iter().zip(streams) {
            stream.synchronize()?;
            slowest = slowest.max(f64::from(elapsed_ms(begin, end)?) * 1e3);
        }
        fastest = fastest.min(slowest);
    }
    Ok(fastest)
}
