//! Part 3: every operation, compared bit by bit with what is computed here.

use super::Check;
use super::bench::Bench;

/// The collectives that are checked: all that spark-perf measures, except the hypercube, which
/// needs a power of two of ranks. Public for a test of `perf`, which knows all of them.
pub const COLLECTIVES: [&str; 10] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "sendrecv",
];

/// Sizes mixed, out of place and in place, off the alignment.
const SIZES: &str = "-b 8 -e 4M -f 8 -n 3 -c 2 -u 1 -T 60";

pub(super) fn checks(bench: &Bench<'_>) -> Vec<Check> {
    let exact = "every element right";
    let of_each = |more: &str| -> Vec<_> {
        let all = COLLECTIVES.iter();
        all.map(|one| format!("{one} {more} {SIZES}")).collect()
    };
    let types = "all_reduce --backend host -d all -o all -b 64K -e 64K -n 2 -T 60";
    let buffers = ["hot", "256M"].map(|kind| {
        format!("all_reduce --backend host --buffers {kind} -b 1M -e 16M -f 4 -n 20 -T 60")
    });
    let host = [
        ("all operations, host memory", of_each("--backend host")),
        (
            "all types and reductions, host memory",
            vec![types.to_owned()],
        ),
        ("buffers in and out of the caches", buffers.to_vec()),
    ];
    let gpu = [
        ("all operations, GPU memory", of_each("--backend engine")),
        (
            "the same in graphs that are launched again",
            of_each("--backend engine -G 3"),
        ),
    ];
    let host = host
        .into_iter()
        .map(|(what, programs)| run(bench, Check::new(what, exact), &programs, None));
    let obstacle = no_gpu(bench);
    let gpu = gpu
        .into_iter()
        .map(|(what, programs)| run(bench, Check::new(what, exact), &programs, obstacle));
    host.chain(gpu).collect()
}

/// Runs programs, unless there is an obstacle to these, or to all.
pub(super) fn run(
    bench: &Bench<'_>,
    check: Check,
    programs: &[String],
    obstacle: Option<&str>,
) -> Check {
    match bench.obstacle().or_else(|| obstacle.map(str::to_owned)) {
        Some(why) => check.by(bench.line(&programs[0])).could_not(why),
        None => bench.verified(check, programs),
    }
}

/// The reason why nothing runs on GPUs, if so.
pub(super) fn no_gpu(bench: &Bench<'_>) -> Option<&'static str> {
    let has_none = |host: &spark_ccl_topology::Host| host.gpus.iter().all(|gpu| gpu.cuda.is_none());
    bench
        .cluster
        .hosts
        .iter()
        .any(has_none)
        .then_some("not every host has a GPU that CUDA lists")
}
