//! What only the engine of our own kernels does: it compares each call, names who is late, and lets
//! ranks share a GPU.

use std::path::Path;
use std::time::Duration;

use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, DType, Error, GpuLayout, Operation, RedOp};
use spark_ccl_config::{KernelEntry, KernelStep, Tuning};
use spark_ccl_testing::{Need, has, scramble};

use super::late::assert_names_the_late;
use super::support::{Gpus, lack_of_gpus_is_said};
use super::{BACKEND, builder, gpus, stream_of, text};

const LEN: usize = 10_007;

/// A rank's elements, each with a value of its own.
fn values(rank: usize) -> Vec<u64> {
    let value = |place| scramble(rank as u64, place);
    (0..LEN as u64).map(value).collect()
}

fn sums(ranks: usize) -> Vec<u64> {
    let mut sums = vec![0_u64; LEN];
    for rank in 0..ranks {
        let values = values(rank);
        let all = sums.iter_mut().zip(values);
        all.for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    sums
}

fn memory(comm: &Communicator) -> DeviceMemory<u64> {
    let mut memory = comm.alloc_device(LEN).unwrap();
    memory.write(&values(comm.rank())).unwrap();
    memory
}

fn read(memory: &DeviceMemory<u64>) -> Vec<u64> {
    let mut seen = vec![0; memory.len()];
    memory.read(&mut seen).unwrap();
    seen
}

/// Sums up all ranks' values, and checks the sums.
fn sum(comm: &Communicator) {
    let mut memory = memory(comm);
    comm.all_reduce_in_place(&mut memory, RedOp::Sum)
        .run()
        .unwrap();
    assert!(read(&memory) == sums(comm.size()));
}

/// The sums are long enough for lines.
#[test]
fn sums_are_the_same_where_only_packets_are_passed() {
    let Some(gpus) = gpus(2) else { return };
    for protocol in ["auto", "packets"] {
        let builder = builder().set("SPARK_CCL_GPU_PROTOCOL", protocol);
        gpus.each(&builder, |comm| {
            sum(&comm);
            comm.finalize().unwrap();
        });
    }
}

/// A file that says that a kernel is always the fastest for `all_reduce`.
fn file(path: &Path, layout: &GpuLayout, kernel: &str) {
    let mut tuning = Tuning::default();
    tuning.put_kernels(KernelEntry {
        layout: layout.clone(),
        collective: Operation::AllReduce,
        steps: vec![KernelStep {
            up_to: 0,
            kernel: kernel.to_owned(),
        }],
    });
    tuning.save(path).unwrap();
}

/// Each rank has a file of its own, or none. Fake GPUs will do.
#[test]
fn all_take_the_kernels_that_rank_0_has_measured() {
    if !has(Need::Gpus(1)) {
        return;
    }
    let gpus = Gpus::alone(2);
    let off = builder().set("SPARK_CCL_TUNING", "off");
    let found = gpus.each(&off, |comm| comm.device_kernels(Operation::AllReduce));
    let count = gpus.count;
    let (layout, kernels) = found[0].clone().expect("GPUs of one model");
    assert!(kernels.contains(&"two_shots_packets"), "{kernels:?}");
    let folder = tempfile::tempdir().unwrap();
    let [two, one, bad] = ["two", "one", "bad"].map(|name| folder.path().join(name));
    file(&two, &layout, "two_shots_packets");
    file(&one, &layout, "one_shot_packets");
    file(&bad, &layout, "side_by_side_packets");
    let off = Path::new("off");
    for (first, others, chosen) in [
        (&*two, &*one, "kernel two_shots_packets"),
        (&*two, off, "(measured by spark-perf tune"),
        (off, &*two, "all peers"),
        (&*bad, &*two, "all peers"),
    ] {
        let id = &builder().unique_id().unwrap();
        std::thread::scope(|scope| {
            for rank in 0..count {
                let file = if rank == 0 { first } else { others };
                let builder = builder().set("SPARK_CCL_TUNING", file.to_str().unwrap());
                scope.spawn(move || {
                    let comm = builder.connect(id, rank, count).unwrap();
                    let said = comm.explain_device(Operation::AllReduce, DType::U64, LEN);
                    assert!(
                        said.as_ref().unwrap().contains(chosen),
                        "{chosen}: {said:?}"
                    );
                    sum(&comm);
                    comm.finalize().unwrap();
                });
            }
        });
    }
}

#[test]
fn a_call_that_differs_is_named_with_both_ranks_words() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        sum(&comm);
        let (stream, mut memory) = (stream_of(&comm), memory(&comm));
        let op = if comm.rank() == 0 {
            RedOp::Max
        } else {
            RedOp::Sum
        };
        comm.all_reduce_in_place(&mut memory, op)
            .on(&stream)
            .unwrap();
        let error = comm.wait(&stream).unwrap_err();
        let said = error.to_string();
        for part in ["rank 0", "max", "sum", "#2 on the device", "10007"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let again = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
        assert!(matches!(again.on(&stream), Err(Error::Failed(_))));
    });
    // The GPUs are none the worse.
    gpus.each(&builder(), |comm| sum(&comm));
}

#[test]
fn a_rank_that_is_late_is_named() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().operation_timeout(Duration::from_secs(2));
    gpus.each(&builder, |comm| {
        sum(&comm);
        let (stream, mut memory) = (stream_of(&comm), memory(&comm));
        if comm.rank() > 0 {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        assert_names_the_late(&comm, &stream, 0);
    });
    gpus.each(&super::builder(), |comm| sum(&comm));
}

#[test]
fn calls_in_several_streams_run_one_after_the_other() {
    const ROUNDS: u32 = 60;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let mut lanes = [(); 3].map(|()| (stream_of(&comm), memory(&comm)));
        for round in 0..ROUNDS as usize {
            let (stream, memory) = &mut lanes[round % 3];
            comm.all_reduce_in_place(memory, RedOp::Sum)
                .on(stream)
                .unwrap();
        }
        // The first call adds up different values; each later one, as many equal ones as there are
        // ranks.
        let times = (comm.size() as u64).wrapping_pow(ROUNDS / 3 - 1);
        let expected: Vec<_> = sums(comm.size())
            .iter()
            .map(|sum| sum.wrapping_mul(times))
            .collect();
        for (stream, memory) in &lanes {
            comm.wait(stream).unwrap();
            assert!(read(memory) == expected);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn two_communicators_may_be_used_in_opposite_orders() {
    call_in_opposite_orders(20, |_| || {});
}

/// Calls two communicators in this many rounds, odd ranks the other way round than even ones. In
/// each round, a rank also does what was made for it.
pub(super) fn call_in_opposite_orders<D: FnMut()>(
    rounds: u64,
    make: impl Fn(&Communicator) -> D + Sync,
) {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let mut beside = make(&comm);
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let mut lanes = [&comm, &other].map(|comm| (comm, stream_of(comm), memory(comm)));
        if comm.rank() % 2 == 1 {
            lanes.reverse();
        }
        let (first, size) = (sums(comm.size()), comm.size() as u64);
        for round in 0..rounds {
            beside();
            for (comm, stream, memory) in &mut lanes {
                comm.all_reduce_in_place(memory, RedOp::Sum)
                    .on(stream)
                    .unwrap();
            }
            for (comm, stream, memory) in &lanes {
                comm.wait(stream).unwrap();
                let times = size.wrapping_pow(round as u32);
                let expected = first.iter().map(|sum| sum.wrapping_mul(times));
                assert!(read(memory).into_iter().eq(expected), "round {round}");
            }
        }
        other.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

/// One thread's group has the calls of one rank before those of the others, and more than a stream
/// takes in.
#[test]
fn a_group_fills_no_stream_before_all_ranks_have_their_turn() {
    const CALLS: usize = 3000;
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let lanes: Vec<_> = comms
        .iter()
        .map(|comm| (comm, stream_of(comm), memory(comm)))
        .collect();
    comms[0]
        .group(|group| {
            for (comm, stream, memory) in &lanes {
                let device = comm.device().unwrap();
                // SAFETY: `lanes` keeps the memory until the streams have been waited for, and only
                // these calls use it, all in one stream.
                let raw = unsafe { DeviceSlice::from_raw(memory.address(), LEN, device) };
                for _ in 0..CALLS {
                    comm.all_reduce_in_place::<u64, _>(raw, RedOp::Max)
                        .within(group, stream);
                }
            }
            Ok(())
        })
        .unwrap();
    let most = |place| {
        let all = (0..comms.len()).map(|rank| scramble(rank as u64, place));
        all.max().unwrap_or_default()
    };
    let expected: Vec<_> = (0..LEN as u64).map(most).collect();
    for (comm, stream, memory) in &lanes {
        comm.wait(stream).unwrap();
        assert!(read(memory) == expected);
    }
}

#[test]
fn finalizing_gives_memory_back_and_ends_calls() {
    const TIMES: usize = 8;
    let Some(gpus) = gpus(2) else { return };
    let finalized = || {
        gpus.each(&builder(), |comm| {
            sum(&comm);
            comm.finalize().unwrap();
            comm
        })
    };
    let first = finalized();
    let context = first[0].context().unwrap();
    let before = context.mem_get_info().unwrap().0;
    let kept: Vec<_> = (0..TIMES).map(|_| finalized()).collect();
    let after = context.mem_get_info().unwrap().0;
    // Each has had more than 10 MiB for each rank.
    let lost = before.saturating_sub(after);
    assert!(
        lost < (TIMES * first.len() / 2) * (10 << 20),
        "{lost} bytes"
    );
    for comm in first.iter().chain(kept.iter().flatten()) {
        let mut memory = comm.alloc_device::<u64>(LEN).unwrap();
        let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
        let said = text(call.on(&stream_of(comm)));
        assert!(said.contains("has been finalized"), "{said}");
    }
}

#[test]
fn large_and_odd_messages_arrive() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        for len in [1_usize, 7, 4096, 100_003, (5 << 20) + 3] {
            let value = |rank: usize, place: usize| scramble(rank as u64, place as u64) as u8;
            let own: Vec<u8> = (0..len).map(|place| value(comm.rank(), place)).collect();
            let mut memory = comm.alloc_device::<u8>(len).unwrap();
            memory.write(&own).unwrap();
            let mut all = comm.alloc_device::<u8>(len * comm.size()).unwrap();
            comm.all_gather(&memory, &mut all).on(&stream).unwrap();
            comm.wait(&stream).unwrap();
            let mut seen = vec![0; len * comm.size()];
            all.read(&mut seen).unwrap();
            for (rank, block) in seen.chunks_exact(len).enumerate() {
                let expected = (0..len).map(|place| value(rank, place));
                assert!(
                    block.iter().copied().eq(expected),
                    "{len} bytes of rank {rank}"
                );
            }
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn ranks_share_a_gpu_only_where_that_is_allowed() {
    let Some(gpus) = gpus(1) else { return };
    let too_many = spark_ccl::cuda::devices().unwrap().len() + 1;
    if too_many > 8 {
        return;
    }
    let said = text(Communicator::builder().backend(BACKEND).local(too_many));
    assert!(said.contains("SPARK_CCL_SHARE_GPU=1"), "{said}");
    drop(gpus);
}

#[test]
fn what_is_missing_is_said() {
    lack_of_gpus_is_said(&builder());
}
