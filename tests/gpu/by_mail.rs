//! What is particular to messages of device memory that go by way of the host: pieces, other links,
//! room, and launches.

use std::sync::Barrier;

use spark_ccl::Communicator;
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl_testing::scramble;

use super::by_host::{memory, read};
use super::{builder, gpus, stream_of};

/// More than a pair has slots.
const LONG: usize = 8 << 20;

/// What a rank sends as its message of this number.
fn values(from: usize, number: usize, len: usize) -> Vec<u8> {
    let seed = (from << 32 | number) as u64;
    (0..len as u64)
        .map(|place| scramble(seed, place) as u8)
        .collect()
}

/// The part of some memory from an address of any remainder on.
fn part(comm: &Communicator, memory: &DeviceMemory<u8>, shift: usize) -> DeviceSlice<u8> {
    let (start, len) = (memory.address() + shift as u64, memory.len() - shift);
    // SAFETY: each test keeps `memory` until its streams have been waited for, and uses a part of
    // it in one call only.
    unsafe { DeviceSlice::from_raw(start, len, comm.device().unwrap()) }
}

fn neighbours(comm: &Communicator) -> [usize; 2] {
    let (rank, size) = (comm.rank(), comm.size());
    [(rank + 1) % size, (rank + size - 1) % size]
}

#[test]
fn any_length_from_any_place_passes_over_each_link() {
    const PIECE: usize = 128 << 10;
    let Some(gpus) = gpus(2) else { return };
    let lens = [0, 1, 1000, 2 * PIECE - 1, 2 * PIECE + 1, LONG + 3];
    for (name, value) in [("SPARK_CCL_SHM", "1"), ("SPARK_CCL_SHM", "0")] {
        gpus.each(&builder().set(name, value), |comm| {
            let (stream, [next, previous]) = (stream_of(&comm), neighbours(&comm));
            for (number, len) in lens.into_iter().enumerate() {
                let (given, taken) = (number % 5, number % 3);
                let own = [vec![9; given], values(comm.rank(), number, len)].concat();
                let (own, other) = (memory(&comm, &own), memory(&comm, &vec![7; taken + len]));
                let (from, to) = (part(&comm, &own, given), part(&comm, &other, taken));
                comm.send_recv(from, next, to, previous)
                    .on(&stream)
                    .unwrap();
                comm.wait(&stream).unwrap();
                let expected = [vec![7; taken], values(previous, number, len)].concat();
                assert!(read(&other) == expected, "{len} over {name}={value}");
            }
            comm.finalize().unwrap();
        });
    }
}

/// Rank 0 sends and receives at once; the others first only send, and receive once that is done.
#[test]
fn a_direction_does_not_wait_for_the_other() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (rank, stream, [next, previous]) = (comm.rank(), stream_of(&comm), neighbours(&comm));
        let own = memory(&comm, &values(rank, 0, LONG));
        let mut other = memory(&comm, &vec![7; LONG]);
        if rank == 0 {
            comm.send_recv(&own, next, &mut other, previous)
                .on(&stream)
                .unwrap();
        } else {
            if rank % 2 == 0 {
                comm.recv(&mut other, previous).on(&stream).unwrap();
            }
            comm.send(&own, next).on(&stream).unwrap();
            comm.wait(&stream).unwrap();
            if rank % 2 == 1 {
                comm.recv(&mut other, previous).on(&stream).unwrap();
            }
        }
        comm.wait(&stream).unwrap();
        assert!(read(&other) == values(previous, 0, LONG));
        comm.finalize().unwrap();
    });
}

/// One rank has all in one group, and the others have a call for each.
#[test]
fn more_messages_than_a_launch_has_meet_those_of_single_calls() {
    const MANY: usize = 200;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (rank, stream, [next, previous]) = (comm.rank(), stream_of(&comm), neighbours(&comm));
        let own: Vec<_> = (0..MANY)
            .map(|number| memory(&comm, &values(rank, number, number)))
            .collect();
        let mut others: Vec<DeviceMemory<u8>> = (0..MANY)
            .map(|len| comm.alloc_device(len).unwrap())
            .collect();
        if rank == 0 {
            comm.group(|group| {
                for (own, other) in own.iter().zip(&mut others) {
                    comm.recv(other, previous).within(group, &stream);
                    comm.send(own, next).within(group, &stream);
                }
                Ok(())
            })
            .unwrap();
        } else {
            for (own, other) in own.iter().zip(&mut others) {
                comm.send_recv(own, next, other, previous)
                    .on(&stream)
                    .unwrap();
            }
        }
        comm.wait(&stream).unwrap();
        for (number, other) in others.iter().enumerate() {
            assert!(read(other) == values(previous, number, number), "{number}");
        }
        comm.finalize().unwrap();
    });
}

/// What is sent to a rank that is elsewhere meanwhile waits there; host memory's messages are
/// others.
#[test]
fn messages_of_host_memory_are_apart() {
    let Some(gpus) = gpus(2) else { return };
    let everyone = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let (rank, stream, [next, previous]) = (comm.rank(), stream_of(&comm), neighbours(&comm));
        let own = memory(&comm, &values(rank, 0, 1000));
        let mut other = memory(&comm, &vec![7; 1000]);
        comm.send(&own, next).on(&stream).unwrap();
        comm.wait(&stream).unwrap();
        everyone.wait();
        let mut seen = [0];
        comm.send_recv(&[rank as u64], next, &mut seen, previous)
            .run()
            .unwrap();
        assert_eq!(seen, [previous as u64]);
        comm.recv(&mut other, previous).on(&stream).unwrap();
        comm.wait(&stream).unwrap();
        assert!(read(&other) == values(previous, 0, 1000));
        comm.finalize().unwrap();
    });
}
