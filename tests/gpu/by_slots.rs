//! Collectives of all kinds and lengths, one after the other, with any root: at once and in graphs.

use std::sync::Arc;

use spark_ccl::cuda::DeviceSlice;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use spark_ccl::{Builder, Communicator, DType, Operation, RedOp};
use spark_ccl_testing::{Need, has};

use super::by_host::{memory, read, sums, values};
use super::{BACKEND, builder, gpus, in_another_process, of_fakes, stream_of, text};

/// Elements of a block: of several pieces, with an end at an odd place.
const LEN: usize = 40_001;

type Memory = DeviceSlice<u64>;

/// For calls in graphs.
fn raw(comm: &Communicator, of: &CudaSlice<u64>, stream: &CudaStream) -> Memory {
    let (address, device) = (of.device_ptr(stream).0, comm.device().unwrap());
    // SAFETY: each test drops the buffer only after the graph that uses it, and uses it in one
    // stream only.
    unsafe { DeviceSlice::from_raw(address, of.len(), device) }
}

/// The lengths of all outputs.
fn lens(ranks: usize, len: usize) -> Vec<usize> {
    let rooted = [len, len, len * ranks, len];
    let common = [len, len, len * ranks, len * ranks];
    [rooted.repeat(ranks), common.to_vec()].concat()
}

/// Makes all calls.
fn call(
    comm: &Communicator,
    [own, all]: [Memory; 2],
    outputs: &[Memory],
    stream: &Arc<CudaStream>,
) {
    let mut next = outputs.iter().copied();
    let mut next = || next.next().unwrap();
    let sum = RedOp::Sum;
    for root in 0..comm.size() {
        comm.broadcast(own, next(), root).on(stream).unwrap();
        comm.reduce(own, next(), sum, root).on(stream).unwrap();
        comm.gather(own, next(), root).on(stream).unwrap();
        comm.scatter(all, next(), root).on(stream).unwrap();
    }
    comm.all_reduce(own, next(), sum).on(stream).unwrap();
    comm.reduce_scatter(all, next(), sum).on(stream).unwrap();
    comm.all_gather(own, next()).on(stream).unwrap();
    comm.all_to_all(all, next()).on(stream).unwrap();
}

/// What they are to leave; `None` where a rank has no output.
fn expected(rank: usize, ranks: usize, len: usize) -> Vec<Option<Vec<u64>>> {
    let block = |of: &[u64], rank: usize| of[rank * len..][..len].to_vec();
    let everyone = 0..ranks;
    let gathered: Vec<_> = everyone
        .clone()
        .flat_map(|from| values(from, len))
        .collect();
    let blocks = everyone.clone().map(|from| values(from, len * ranks));
    let blocks: Vec<_> = blocks.collect();
    let of_root = everyone.flat_map(|root| {
        let at_root = |output: Vec<u64>| (root == rank).then_some(output);
        [
            Some(values(root, len)),
            at_root(sums(ranks, len, 1)),
            at_root(gathered.clone()),
            Some(block(&blocks[root], rank)),
        ]
    });
    let common = [
        sums(ranks, len, 1),
        block(&sums(ranks, len * ranks, 1), rank),
        gathered.clone(),
        blocks.iter().flat_map(|of| block(of, rank)).collect(),
    ];
    of_root.chain(common.map(Some)).collect()
}

/// By slots, by pieces that the host reduces, and by whichever is faster.
#[test]
fn all_operations_follow_each_other_at_once_and_in_graphs() {
    let Some(gpus) = gpus(2) else { return };
    for (protocol, shm) in [
        ("slots", "0"),
        ("slots", "1"),
        ("proxy", "0"),
        ("proxy", "1"),
    ] {
        let builder = builder().set("SPARK_CCL_GPU_PROTOCOL", protocol);
        gpus.each(&builder.set("SPARK_CCL_SHM", shm), |comm| {
            // By packets, by pieces that the host reduces, and by slots.
            for len in [1, 100, 2000, LEN] {
                at_once_and_in_graphs(&comm, len);
            }
            comm.finalize().unwrap();
        });
    }
}

/// For ranks with settings of their own, which have none of the RDMA devices of tests.
fn apart() -> Builder {
    Communicator::builder()
        .backend(BACKEND)
        .set("SPARK_CCL_SHARE_GPU", "1")
}

/// Otherwise some would fill slots where others ring for pieces.
#[test]
fn ranks_whose_settings_differ_agree_on_the_way() {
    let Some(gpus) = gpus(2) else { return };
    let count = gpus.count;
    for (first, others, is_through) in [
        ("slots", "proxy", true),
        ("proxy", "slots", true),
        ("auto", "proxy", false),
        ("slots", "pieces", false),
    ] {
        let same = apart();
        let id = &same.unique_id().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..count {
                let protocol = if rank == 0 { first } else { others };
                let builder = same.clone().set("SPARK_CCL_GPU_PROTOCOL", protocol);
                scope.spawn(move || {
                    let comm = builder.connect(id, rank, count).unwrap();
                    let said = comm.explain_device(Operation::AllReduce, DType::U64, LEN);
                    let said = said.unwrap();
                    assert_eq!(said.contains("through slots"), is_through, "{said}");
                    for len in [1, LEN] {
                        let mut sum = memory(&comm, &values(rank, len));
                        comm.all_reduce_in_place(&mut sum, RedOp::Sum)
                            .run()
                            .unwrap();
                        assert!(read(&sum) == sums(count, len, 1), "{first} {others} {len}");
                    }
                    comm.finalize().unwrap();
                });
            }
        });
    }
}

#[test]
fn all_go_by_pieces_where_a_rank_has_no_memory_for_slots() {
    let Some(_gpus) = gpus(2) else { return };
    if has(Need::FakeGpus) {
        // What other tests have set aside would do.
        in_another_process("by_slots::without_memory_for_slots");
    }
}

/// One rank is enough: it would wait for packets where others ring for pieces.
#[test]
#[ignore = "a process that another test starts"]
fn without_memory_for_slots() {
    let gpus = gpus(2).unwrap();
    of_fakes(c"fake_refuse_slots").unwrap()(0);
    // Slots on the GPUs need less of the host's memory.
    let builder = builder().set("SPARK_CCL_GPU_DMABUF", "0");
    gpus.each(&builder, |comm| {
        for len in [1, LEN] {
            let said = comm.explain_device(Operation::AllReduce, DType::U64, len);
            let said = said.unwrap();
            assert!(said.contains("each on the host by"), "{said}");
            let mut sum = memory(&comm, &values(comm.rank(), len));
            let call = comm.all_reduce_in_place(&mut sum, RedOp::Sum);
            call.run().unwrap();
            assert!(read(&sum) == sums(comm.size(), len, 1));
        }
        comm.finalize().unwrap();
    });
}

/// The number before these words in what a communicator says of its way.
fn said(comm: &Communicator, words: &str) -> usize {
    let said = comm.device_path().unwrap();
    let number = said.split(words).next().unwrap().rsplit(' ').next();
    number.unwrap().parse().unwrap()
}

/// The rank that allows the least decides: two slots for each lane, one, or none.
#[test]
fn memory_for_slots_is_as_little_as_any_rank_allows() {
    /// What is not for data.
    const MORE: usize = 256 << 10;
    let Some(gpus) = gpus(2) else { return };
    let count = gpus.count;
    let lanes = gpus.each(&builder(), |comm| said(&comm, " CTA").min(8))[0];
    // Each box has a lane for messages, too.
    let one = 2 * (lanes + 1) * (64 << 10);
    for (limits, most) in [
        ([9 << 20, 2 * one], 2 * one),
        ([one, one], one),
        ([one - 1, 9 << 20], 0),
    ] {
        let same = apart().set("SPARK_CCL_GPU_PROTOCOL", "slots");
        let id = &same.unique_id().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..count {
                let limit = limits[usize::from(rank > 0)].to_string();
                let builder = same.clone().set("SPARK_CCL_GPU_SLOTS", &limit);
                scope.spawn(move || {
                    let comm = builder.connect(id, rank, count).unwrap();
                    let (pinned, peers) = (said(&comm, " for slots"), count - 1);
                    let more = if most > 0 { MORE } else { 0 };
                    let expected = peers * most..=peers * (most + more);
                    assert!(expected.contains(&pinned), "{limits:?}: {pinned}");
                    for len in [1, LEN] {
                        at_once_and_in_graphs(&comm, len);
                    }
                    comm.finalize().unwrap();
                });
            }
        });
    }
}

#[test]
fn ranks_that_do_not_all_share_memory_are_named() {
    let Some(gpus) = gpus(2) else { return };
    let count = gpus.count;
    let same = apart();
    let id = &same.unique_id().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..count {
            let shm = if rank == 0 { "0" } else { "1" };
            let builder = same.clone().set("SPARK_CCL_SHM", shm);
            scope.spawn(move || {
                let said = text(builder.connect(id, rank, count));
                assert!(said.contains("shm is 0 on rank 0, 1 on rank 1"), "{said}");
            });
        }
    });
}

/// With blocks of this many elements.
pub(super) fn at_once_and_in_graphs(comm: &Communicator, len: usize) {
    let (stream, rank, ranks) = (stream_of(comm), comm.rank(), comm.size());
    let of = |len| stream.clone_htod(&values(rank, len)).unwrap();
    let (own, all) = (of(len), of(len * ranks));
    let new = |len| stream.clone_htod(&vec![7; len]).unwrap();
    let mut outputs: Vec<_> = lens(ranks, len).into_iter().map(new).collect();
    let raws: Vec<_> = outputs.iter().map(|of| raw(comm, of, &stream)).collect();
    let inputs = [&own, &all].map(|of| raw(comm, of, &stream));
    let expected = expected(rank, ranks, len);
    let check = |outputs: &mut [CudaSlice<u64>]| {
        comm.wait(&stream).unwrap();
        for (place, (output, expected)) in outputs.iter_mut().zip(&expected).enumerate() {
            let seen = stream.clone_dtoh(output).unwrap();
            let nothing = vec![7; seen.len()];
            let expected = expected.as_ref().unwrap_or(&nothing);
            assert!(seen == *expected, "output {place} of {len}, rank {rank}");
            stream.memcpy_htod(&nothing, output).unwrap();
        }
    };
    call(comm, inputs, &raws, &stream);
    check(&mut outputs);
    stream.synchronize().unwrap();
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    call(comm, inputs, &raws, &stream);
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    let graph = graph.unwrap();
    for _ in 0..3 {
        graph.launch().unwrap();
        check(&mut outputs);
    }
}
