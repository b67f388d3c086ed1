//! Messages between pairs by our own kernels: alone, in groups, in graphs, and with ends that
//! differ or do not come.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, Error, ExitClass, RedOp};
use spark_ccl_testing::scramble;

use super::{builder, gpus, stream_of, text};

/// More than the slots between two ranks hold, in packets as in lines.
pub(super) const LONG: usize = 1_000_003;
pub(super) const SHORT: usize = 37;

/// The values that a rank sends to another.
pub(super) fn values(from: usize, to: usize, len: usize) -> Vec<u64> {
    let seed = (from * 8 + to) as u64;
    (0..len as u64).map(|place| scramble(seed, place)).collect()
}

pub(super) fn sent(comm: &Communicator, to: usize, len: usize) -> DeviceMemory<u64> {
    let mut memory = comm.alloc_device(len).unwrap();
    memory.write(&values(comm.rank(), to, len)).unwrap();
    memory
}

/// What a rank has received from another.
pub(super) fn check(memory: &DeviceMemory<u64>, from: usize, to: usize) {
    let mut seen = vec![0; memory.len()];
    memory.read(&mut seen).unwrap();
    assert!(
        seen == values(from, to, memory.len()),
        "from {from} to {to}"
    );
}

pub(super) fn raw(comm: &Communicator, memory: &DeviceMemory<u64>) -> DeviceSlice<u64> {
    // SAFETY: each test keeps `memory` until its streams have been waited for, and uses it in one
    // stream, or in one call.
    unsafe { DeviceSlice::from_raw(memory.address(), memory.len(), comm.device().unwrap()) }
}

pub(super) fn neighbours(comm: &Communicator) -> [usize; 2] {
    let (rank, size) = (comm.rank(), comm.size());
    [(rank + 1) % size, (rank + size - 1) % size]
}

/// Rank 0 sends first and then receives, and the others the other way around.
#[test]
fn a_message_goes_around_all_ranks() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (stream, [next, previous]) = (stream_of(&comm), neighbours(&comm));
        for len in [0, 1, 37, 5000, LONG] {
            let own = sent(&comm, next, len);
            let mut other = comm.alloc_device(len).unwrap();
            if comm.rank() == 0 {
                comm.send(&own, next).on(&stream).unwrap();
                comm.recv(&mut other, previous).on(&stream).unwrap();
            } else {
                comm.recv(&mut other, previous).on(&stream).unwrap();
                comm.send(&own, next).on(&stream).unwrap();
            }
            comm.wait(&stream).unwrap();
            check(&other, previous, comm.rank());
        }
        comm.finalize().unwrap();
    });
}

/// Rank 0 sends the same message to rank 1, `times` times, waits until its part has run, and
/// leaves. The receiver gets there late: its stream is behind a call of another communicator.
fn leave_after_sending(times: usize, send: impl Fn(&Communicator, &Arc<CudaStream>) + Sync) {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let (stream, rank) = (stream_of(&comm), comm.rank());
        let mut total = comm.alloc_device::<u64>(1).unwrap();
        total.write(&[1]).unwrap();
        let mut comm = Some(comm);
        if rank == 0 {
            send(comm.as_ref().unwrap(), &stream);
            drop(comm.take());
            // By then, a call would have failed that needs more of a rank that has left.
            std::thread::sleep(Duration::from_secs(3));
        }
        let sum = other.all_reduce_in_place(&mut total, RedOp::Sum);
        sum.on(&stream).unwrap();
        if let Some(comm) = comm.filter(|_| rank == 1) {
            for _ in 0..times {
                let mut received = comm.alloc_device(SHORT).unwrap();
                comm.recv(&mut received, 0).on(&stream).unwrap();
                comm.wait(&stream).unwrap();
                check(&received, 0, 1);
            }
        }
        other.wait(&stream).unwrap();
        other.finalize().unwrap();
    });
}

#[test]
fn a_message_arrives_whose_sender_has_left() {
    leave_after_sending(1, |comm, stream| {
        comm.send(&sent(comm, 1, SHORT), 1).on(stream).unwrap();
        comm.wait(stream).unwrap();
    });
}

/// The graph sends once, and is launched several times.
#[test]
fn messages_of_a_graph_arrive_whose_sender_has_left() {
    const TIMES: usize = 3;
    leave_after_sending(TIMES, |comm, stream| {
        let own = sent(comm, 1, SHORT);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).unwrap();
        comm.send(raw(comm, &own), 1).on(stream).unwrap();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        let graph = graph.unwrap();
        for _ in 0..TIMES {
            graph.launch().unwrap();
        }
        stream.synchronize().unwrap();
    });
}

/// All send at once, more than there is room for: only as a group, or as `send_recv`, they do not
/// wait for each other.
#[test]
fn rings_do_not_wait_for_themselves() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (stream, [next, previous]) = (stream_of(&comm), neighbours(&comm));
        let own = sent(&comm, next, LONG);
        let mut other = comm.alloc_device(LONG).unwrap();
        comm.group(|group| {
            comm.send(&own, next).within(group, &stream);
            comm.recv(&mut other, previous).within(group, &stream);
            Ok(())
        })
        .unwrap();
        comm.wait(&stream).unwrap();
        check(&other, previous, comm.rank());
        let mut again = comm.alloc_device(LONG).unwrap();
        comm.send_recv(&own, next, &mut again, previous)
            .run()
            .unwrap();
        check(&again, previous, comm.rank());
        comm.finalize().unwrap();
    });
}

/// All ranks send each other several messages, in an order of each rank's own but for those to one
/// rank; in streams of their own, and with a collective between them.
#[test]
fn groups_pass_all_messages_at_once() {
    const LENS: [usize; 3] = [300_000, 5, 4000];
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let streams = [stream_of(&comm), stream_of(&comm)];
        let mut total = comm.alloc_device::<u64>(1).unwrap();
        total.write(&[rank as u64]).unwrap();
        let peers: Vec<_> = (0..size).map(|peer| (peer + rank * 3) % size).collect();
        let own: Vec<_> = peers
            .iter()
            .map(|&peer| LENS.map(|len| sent(&comm, peer, len)))
            .collect();
        let mut others: Vec<_> = peers
            .iter()
            .map(|_| LENS.map(|len| comm.alloc_device(len).unwrap()))
            .collect();
        comm.group(|group| {
            for (place, ((&peer, own), others)) in
                peers.iter().zip(&own).zip(&mut others).enumerate()
            {
                if place == rank {
                    let sum = comm.all_reduce_in_place(raw(&comm, &total), RedOp::Sum);
                    sum.within(group, &streams[0]);
                }
                for (own, other) in own.iter().zip(others) {
                    comm.send(own, peer).within(group, &streams[place % 2]);
                    comm.recv(other, peer).within(group, &streams[0]);
                }
            }
            Ok(())
        })
        .unwrap();
        for stream in &streams {
            comm.wait(stream).unwrap();
        }
        for (&peer, others) in peers.iter().zip(&others) {
            for other in others {
                check(other, peer, rank);
            }
        }
        let mut sum = [0];
        total.read(&mut sum).unwrap();
        assert_eq!(sum[0], (0..size as u64).sum::<u64>());
        comm.finalize().unwrap();
    });
}

/// One thread works for all ranks.
#[test]
fn a_group_has_the_messages_of_all_ranks() {
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let streams: Vec<_> = comms.iter().map(stream_of).collect();
    let own: Vec<_> = comms
        .iter()
        .map(|comm| sent(comm, neighbours(comm)[0], LONG))
        .collect();
    let mut others: Vec<_> = comms
        .iter()
        .map(|comm| comm.alloc_device(LONG).unwrap())
        .collect();
    comms[0]
        .group(|group| {
            for (rank, other) in others.iter_mut().enumerate() {
                let (comm, stream) = (&comms[rank], &streams[rank]);
                let [next, previous] = neighbours(comm);
                comm.send(&own[rank], next).within(group, stream);
                comm.recv(other, previous).within(group, stream);
            }
            Ok(())
        })
        .unwrap();
    for ((comm, stream), other) in comms.iter().zip(&streams).zip(&others) {
        comm.wait(stream).unwrap();
        check(other, neighbours(comm)[1], comm.rank());
    }
}

#[test]
fn blocks_of_any_length_and_of_none() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (rank, size, stream) = (comm.rank(), comm.size(), stream_of(&comm));
        let count = |from: usize, to: usize| match (from + 2 * to) % 3 {
            0 => 0,
            1 => 7 + from,
            _ => 100_000 + to,
        };
        let to: Vec<_> = (0..size).map(|peer| count(rank, peer)).collect();
        let from: Vec<_> = (0..size).map(|peer| count(peer, rank)).collect();
        let blocks = |from: usize, to: usize| values(from, to, count(from, to));
        let all: Vec<_> = (0..size).flat_map(|peer| blocks(rank, peer)).collect();
        let mut own = comm.alloc_device::<u64>(all.len()).unwrap();
        own.write(&all).unwrap();
        let mut others = comm.alloc_device::<u64>(from.iter().sum()).unwrap();
        for _ in 0..3 {
            comm.all_to_all_v(&own, &to, &mut others, &from)
                .on(&stream)
                .unwrap();
            comm.wait(&stream).unwrap();
            let mut seen = vec![0; others.len()];
            others.read(&mut seen).unwrap();
            let expected: Vec<_> = (0..size).flat_map(|peer| blocks(peer, rank)).collect();
            assert!(seen == expected);
        }
        comm.finalize().unwrap();
    });
}

/// The other end of a block that has elements expects none, or sends none: the next call must not
/// take it for its own.
#[test]
fn a_block_of_nothing_at_one_end_is_named() {
    let Some(gpus) = gpus(2) else { return };
    for sender_has_none in [false, true] {
        gpus.each(&builder(), |comm| {
            let (rank, size, stream) = (comm.rank(), comm.size(), stream_of(&comm));
            let count = |from: usize, to: usize, is_sender: bool| {
                usize::from((from, to) != (0, 1) || is_sender != sender_has_none) * 5
            };
            let to: Vec<_> = (0..size).map(|peer| count(rank, peer, true)).collect();
            let from: Vec<_> = (0..size).map(|peer| count(peer, rank, false)).collect();
            let own = comm.alloc_device::<u64>(to.iter().sum()).unwrap();
            let mut others = comm.alloc_device::<u64>(from.iter().sum()).unwrap();
            let call = comm.all_to_all_v(&own, &to, &mut others, &from);
            drop(call.on(&stream));
            let said = error_of(&comm, &stream).to_string();
            let counts = [5, 0].map(|count| format!("all_to_all_v(count {count}, uint64)"));
            for part in ["rank 0", "rank 1", &counts[0], &counts[1]] {
                assert!(said.contains(part), "{part}: {said}");
            }
        });
    }
}

pub(super) fn captured(
    stream: &Arc<CudaStream>,
    enqueue: impl FnOnce(),
) -> spark_ccl::cuda::cudarc::driver::CudaGraph {
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    enqueue();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    graph.unwrap()
}

#[test]
fn graphs_pass_messages_whenever_they_are_launched() {
    const LEN: usize = 50_000;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (stream, [next, previous]) = (stream_of(&comm), neighbours(&comm));
        let (own, mut other) = (
            sent(&comm, next, LEN),
            comm.alloc_device::<u64>(LEN).unwrap(),
        );
        let graph = captured(&stream, || {
            comm.group(|group| {
                let (own, other) = (raw(&comm, &own), raw(&comm, &other));
                comm.send(own, next).within(group, &stream);
                comm.recv(other, previous).within(group, &stream);
                Ok(())
            })
            .unwrap();
        });
        for _ in 0..50 {
            other.write(&vec![0; LEN]).unwrap();
            graph.launch().unwrap();
            graph.launch().unwrap();
            comm.send_recv(raw(&comm, &own), next, raw(&comm, &other), previous)
                .on(&stream)
                .unwrap();
            comm.wait(&stream).unwrap();
            check(&other, previous, comm.rank());
        }
        let strange = stream_of(&comm);
        captured(&stream, || {
            let said = text(comm.group(|group| {
                let (own, other) = (raw(&comm, &own), raw(&comm, &other));
                comm.send(own, next).within(group, &stream);
                comm.recv(other, previous).within(group, &strange);
                Ok(())
            }));
            assert!(said.contains("put them in one stream"), "{said}");
        });
        drop(graph);
        comm.finalize().unwrap();
    });
}

#[test]
fn a_message_that_differs_is_named_with_both_ends() {
    let Some(gpus) = gpus(2) else { return };
    for type_differs in [false, true] {
        gpus.each(&builder(), |comm| {
            let stream = stream_of(&comm);
            let mut memory = comm.alloc_device::<u64>(100).unwrap();
            let mut others = comm.alloc_device::<f64>(100).unwrap();
            match comm.rank() {
                0 => drop(comm.send(&memory, 1).on(&stream)),
                1 if type_differs => drop(comm.recv(&mut others, 0).on(&stream)),
                1 => drop(comm.recv(memory.view_mut(0..99).unwrap(), 0).on(&stream)),
                _ => {}
            }
            let said = error_of(&comm, &stream).to_string();
            let received = if type_differs {
                "recv(count 100, double)"
            } else {
                "recv(count 99, uint64)"
            };
            for part in ["rank 0", "rank 1", "send(count 100, uint64)", received] {
                assert!(said.contains(part), "{part}: {said}");
            }
        });
    }
}

/// Waits for the error that all ranks get.
fn error_of(comm: &Communicator, stream: &CudaStream) -> Error {
    loop {
        match comm.wait(stream) {
            Err(error) => return error,
            Ok(()) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[test]
fn an_end_that_does_not_come_is_named() {
    let Some(gpus) = gpus(2) else { return };
    for is_sender_late in [false, true] {
        let builder = builder().operation_timeout(Duration::from_secs(2));
        gpus.each(&builder, |comm| {
            let stream = stream_of(&comm);
            let mut memory = comm.alloc_device::<u64>(LONG).unwrap();
            match (comm.rank(), is_sender_late) {
                (1, false) => drop(comm.send(&memory, 0).on(&stream)),
                (1, true) => drop(comm.recv(&mut memory, 0).on(&stream)),
                _ => {}
            }
            let error = error_of(&comm, &stream);
            assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
            assert_eq!(error.ranks(), [0], "{error}");
        });
    }
}
