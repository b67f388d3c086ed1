//! Kinds of device memory.

use spark_ccl::RedOp;
use spark_ccl::cuda::{DeviceMemory, DevicePart, DeviceSlice, Registration};
use spark_ccl_testing::{Need, has};

use super::{builder, gpus, text};

#[test]
fn memory_of_nccl_with_and_without_registration() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        for kind in [
            None,
            Some(Registration::Local),
            Some(Registration::Symmetric),
        ] {
            let mut memory: DeviceMemory<u32> = comm.alloc_device(1 << 18).unwrap();
            if let Some(kind) = kind {
                let used = comm.register_device(&memory, kind).unwrap();
                println!("rank {}: {kind:?} is used: {used}", comm.rank());
            }
            memory.write(&vec![1; 1 << 18]).unwrap();
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.wait(&stream).unwrap();
            let mut sums = vec![0; 1 << 18];
            memory.read(&mut sums).unwrap();
            assert!(
                sums.iter().all(|&sum| sum == comm.size() as u32),
                "{kind:?}"
            );
        }
        let mut memory: DeviceMemory<u32> = comm.alloc_device(2).unwrap();
        assert!(text(memory.write(&[1; 3])).contains("3 values for 2"));
        comm.finalize().unwrap();
    });
}

#[test]
fn streams_take_turns_with_memory() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        const ROUNDS: usize = 40;
        let context = comm.context().unwrap();
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        // Of NCCL's and of cudarc's: each call must find what the one before, in the other stream,
        // has left.
        let mut ours: DeviceMemory<u64> = comm.alloc_device(1 << 20).unwrap();
        ours.write(&vec![1; 1 << 20]).unwrap();
        let mut theirs = streams[0].clone_htod(&vec![1_u64; 1 << 20]).unwrap();
        for round in 0..ROUNDS {
            let stream = &streams[round % 2];
            comm.all_reduce_in_place(&mut ours, RedOp::Sum)
                .on(stream)
                .unwrap();
            comm.all_reduce_in_place(&mut theirs, RedOp::Sum)
                .on(stream)
                .unwrap();
        }
        for stream in &streams {
            comm.wait(stream).unwrap();
        }
        let expected = (comm.size() as u64).wrapping_pow(ROUNDS as u32);
        let mut seen = vec![0; 1 << 20];
        ours.read(&mut seen).unwrap();
        assert!(seen.iter().all(|&value| value == expected));
        let seen = streams[1].clone_dtoh(&theirs).unwrap();
        assert!(seen.iter().all(|&value| value == expected));
        comm.finalize().unwrap();
    });
}

#[test]
fn memory_can_be_dropped_while_it_is_used() {
    let Some(gpus) = gpus(1) else { return };
    // Of ranks that share a GPU, the driver may let one's allocation wait for what the other has
    // freed behind its call, which waits for the first one.
    if !has(Need::Gpus(gpus.count)) {
        return;
    }
    gpus.each(&builder(), |comm| {
        let context = comm.context().unwrap();
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        for round in 0..20_i32 {
            let memory = streams[0].clone_htod(&vec![1_i32; 1 << 20]).unwrap();
            let memory = comm
                .all_reduce_in_place(memory, RedOp::Sum)
                .on(&streams[1])
                .unwrap();
            let view = DevicePart::of(&memory, 0..5);
            let mut sums = streams[1]
                .clone_htod(&vec![0_i32; 5 * comm.size()])
                .unwrap();
            comm.all_gather(view, &mut sums).on(&streams[1]).unwrap();
            drop(memory);
            // Where the pool puts this, the sums must not be seen to have changed.
            let other = streams[0].clone_htod(&vec![-round; 1 << 20]).unwrap();
            comm.wait(&streams[1]).unwrap();
            let seen = streams[1].clone_dtoh(&sums).unwrap();
            assert!(
                seen.iter().all(|&sum| sum == comm.size() as i32),
                "{seen:?}"
            );
            drop(other);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn two_communicators_may_read_one_buffer() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let context = comm.context().unwrap();
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        for _ in 0..10 {
            let mut shared: DeviceMemory<u32> = comm.alloc_device(1 << 20).unwrap();
            shared.write(&vec![1; 1 << 20]).unwrap();
            let mut sums: [DeviceMemory<u32>; 2] = [
                comm.alloc_device(1 << 20).unwrap(),
                comm.alloc_device(1 << 20).unwrap(),
            ];
            let [first, second] = &mut sums;
            // In turns: kernels of two communicators may not wait for each other.
            comm.all_reduce(&shared, first, RedOp::Sum)
                .on(&streams[0])
                .unwrap();
            comm.wait(&streams[0]).unwrap();
            other
                .all_reduce(&shared, second, RedOp::Sum)
                .on(&streams[1])
                .unwrap();
            drop(shared);
            other.wait(&streams[1]).unwrap();
            for sum in &sums {
                let mut seen = vec![0; 1 << 20];
                sum.read(&mut seen).unwrap();
                assert!(seen.iter().all(|&value| value == comm.size() as u32));
            }
        }
        other.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn raw_memory_has_parts() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let device = comm.device().unwrap();
        let mut memory: DeviceMemory<u32> = comm.alloc_device(10).unwrap();
        memory.write(&[1; 10]).unwrap();
        // SAFETY: `memory` outlives the calls, which are waited for, and all of them are in
        // `stream`.
        let raw = unsafe { DeviceSlice::<u32>::from_raw(memory.address(), 10, device) };
        assert!(raw.part(8, 3).is_none() && raw.part(usize::MAX, 2).is_none());
        let part = raw.part(4, 3).unwrap();
        comm.all_reduce_in_place(part, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        let mut seen = [0; 10];
        memory.read(&mut seen).unwrap();
        let sum = comm.size() as u32;
        assert_eq!(seen, [1, 1, 1, 1, sum, sum, sum, 1, 1, 1]);
        comm.finalize().unwrap();
    });
}

#[test]
fn parts_of_memory_are_buffers() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        const LEN: usize = 1000;
        let (rank, size) = (comm.rank(), comm.size());
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory: DeviceMemory<u32> = comm.alloc_device(LEN * (size + 1)).unwrap();
        let (mut own, all) = memory.split_at_mut(LEN).unwrap();
        assert_eq!((own.len(), all.len()), (LEN, LEN * size));
        own.write(&[rank as u32; LEN]).unwrap();
        assert!(text(own.write(&[0; LEN + 1])).contains("1001 values for 1000"));
        comm.all_gather(own, all).on(&stream).unwrap();
        let (_, mut all) = memory.split_at_mut(LEN).unwrap();
        let mut seen = vec![0; LEN * size];
        all.as_view().read(&mut seen).unwrap();
        for (rank, block) in seen.chunks_exact(LEN).enumerate() {
            assert_eq!(block, [rank as u32; LEN]);
        }
        // A part of a part; and what is beside it stays.
        all = all.view_mut(LEN * rank..LEN * (rank + 1)).unwrap();
        let (first, _) = all.split_at_mut(3).unwrap();
        comm.all_reduce_in_place(first, RedOp::Max).run().unwrap();
        let mine = memory.view(LEN * (rank + 1)..LEN * (rank + 2)).unwrap();
        let mut seen = [0; 5];
        mine.view(0..5).unwrap().read(&mut seen).unwrap();
        let (most, mine) = (size as u32 - 1, rank as u32);
        assert_eq!(seen, [most, most, most, mine, mine]);

        let len = memory.len();
        let start = memory.address();
        assert_eq!(memory.view(3..5).unwrap().address(), start + 12);
        assert!(memory.view(len..len).unwrap().is_empty());
        #[expect(clippy::reversed_empty_ranges)]
        for range in [0..len + 1, 5..3, len + 1..len + 1, 0..usize::MAX] {
            let said = text(memory.view(range.clone()));
            assert!(
                said.contains(&format!("memory of {len} elements")),
                "{said}"
            );
            assert!(memory.view_mut(range).is_err());
        }
        assert!(memory.split_at_mut(len + 1).is_err());
        comm.finalize().unwrap();
    });
}
