//! Messages of a group that are sent out of memory where others are received.

use std::sync::Arc;

use spark_ccl::Communicator;
use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};

use super::messages::{LONG, SHORT, captured, check, neighbours, raw, sent, values};
use super::{builder, gpus, stream_of, text};

/// A shift by one rank in place: each rank receives `len` elements into the memory of those that it
/// sends, `shift` elements further on.
#[derive(Clone, Copy)]
struct InPlace {
    len: usize,
    shift: usize,
}

impl InPlace {
    fn write(self, comm: &Communicator, own: &mut DeviceMemory<u64>) {
        let values = values(comm.rank(), neighbours(comm)[0], self.len);
        own.write(&[values, vec![0; self.shift]].concat()).unwrap();
    }

    /// Rank 0 receives first.
    fn enqueue(self, comm: &Communicator, own: &DeviceMemory<u64>, stream: &Arc<CudaStream>) {
        let part = |begin: usize| {
            let start = own.address() + 8 * begin as u64;
            // SAFETY: the test keeps `own` until the stream has been waited for, and uses it in
            // this stream only. What is received over what is sent is of the same group, which
            // sends the contents from before.
            unsafe { DeviceSlice::<u64>::from_raw(start, self.len, comm.device().unwrap()) }
        };
        let [next, previous] = neighbours(comm);
        let ended = comm.group(|group| {
            let receive = || comm.recv(part(self.shift), previous).within(group, stream);
            let send = || comm.send(part(0), next).within(group, stream);
            if comm.rank() == 0 {
                receive();
                send();
            } else {
                send();
                receive();
            }
            Ok(())
        });
        ended.unwrap();
    }

    fn check(self, comm: &Communicator, own: &DeviceMemory<u64>, stream: &Arc<CudaStream>) {
        let (rank, [next, previous]) = (comm.rank(), neighbours(comm));
        comm.wait(stream).unwrap();
        let mut seen = vec![0; own.len()];
        own.read(&mut seen).unwrap();
        let Self { len, shift } = self;
        let kept = values(rank, next, len).into_iter().take(shift);
        let expected: Vec<_> = kept.chain(values(previous, rank, len)).collect();
        assert!(seen == expected, "{len} elements, by {shift}");
    }
}

#[test]
fn rings_shift_in_place() {
    const SHIFTS: [[usize; 2]; 5] = [[1, 0], [5000, 3], [LONG, 0], [LONG, 40_000], [SHORT, 1]];
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let shifts = SHIFTS.map(|[len, shift]| {
            let shift = InPlace { len, shift };
            let mut own = comm.alloc_device(shift.len + shift.shift).unwrap();
            shift.write(&comm, &mut own);
            shift.enqueue(&comm, &own, &stream);
            shift.check(&comm, &own, &stream);
            let graph = captured(&stream, || shift.enqueue(&comm, &own, &stream));
            (shift, own, graph)
        });
        // Also of the memory for copies that longer messages did not fit into.
        for (shift, mut own, graph) in shifts {
            shift.write(&comm, &mut own);
            graph.launch().unwrap();
            shift.check(&comm, &own, &stream);
        }
        comm.finalize().unwrap();
    });
}

/// Two messages would be in the same memory. Nothing of the group begins.
#[test]
fn messages_that_are_received_in_the_same_place_are_refused() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (rank, stream, [next, previous]) = (comm.rank(), stream_of(&comm), neighbours(&comm));
        let (own, other) = (sent(&comm, next, SHORT), comm.alloc_device(SHORT).unwrap());
        let said = text(comm.group(|group| {
            for _ in 0..2 {
                comm.send(&own, next).within(group, &stream);
                comm.recv(raw(&comm, &other), previous)
                    .within(group, &stream);
            }
            Ok(())
        }));
        let expected = format!("from rank {previous} (296 bytes at {:#x})", other.address());
        assert!(
            said.contains(&expected) && said.contains("overlap"),
            "{said}"
        );
        comm.group(|group| {
            comm.send(&own, next).within(group, &stream);
            comm.recv(raw(&comm, &other), previous)
                .within(group, &stream);
            Ok(())
        })
        .unwrap();
        comm.wait(&stream).unwrap();
        check(&other, previous, rank);
        comm.finalize().unwrap();
    });
}
