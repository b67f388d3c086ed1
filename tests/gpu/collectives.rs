//! Every collective, on device memory, gives what it gives on host memory.

use std::sync::Arc;

use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use spark_ccl::{Backend, Blocks, Communicator, Element, Error, RedOp, Reducer};
use spark_ccl_testing::scramble;

use super::{BACKEND, Gpus, builder, gpus, text};

/// Elements for each rank; not a multiple of anything.
const COUNT: usize = 1037;

/// A rank's values: small and whole, so that sums and products of them are exact.
fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (scramble(rank as u64, i as u64) % 5 + 1) as f32)
        .collect()
}

/// A rank with its stream.
struct Rank {
    comm: Communicator,
    stream: Arc<CudaStream>,
}

impl Rank {
    fn new(comm: Communicator) -> Self {
        let stream = comm.context().unwrap().new_stream().unwrap();
        Self { comm, stream }
    }

    fn device<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    fn host<T: DeviceRepr + Clone + Default>(&self, memory: &CudaSlice<T>) -> Vec<T> {
        self.comm.wait(&self.stream).unwrap();
        self.stream.clone_dtoh(memory).unwrap()
    }

    /// Compares what a call leaves in a receive buffer of `len` elements: once of the host, once of
    /// the device.
    fn compare(
        &self,
        send: &[f32],
        len: usize,
        on_host: impl Fn(&[f32], &mut [f32]) -> Result<(), Error>,
        on_device: impl Fn(&CudaSlice<f32>, &mut CudaSlice<f32>) -> Result<(), Error>,
    ) {
        let mut expected = vec![-1.0; len];
        on_host(send, &mut expected).unwrap();
        let send = self.device(send);
        let mut memory = self.device(&vec![-1.0; len]);
        on_device(&send, &mut memory).unwrap();
        assert_eq!(self.host(&memory), expected);
    }
}

fn each(gpus: &Gpus, body: impl Fn(Rank) + Sync) {
    gpus.each(&builder(), |comm| body(Rank::new(comm)));
}

#[test]
fn reductions() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
        let own = values(comm.rank(), COUNT);
        let all = values(comm.rank(), COUNT * size);
        for op in [RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max] {
            rank.compare(
                &own,
                COUNT,
                |send, recv| comm.all_reduce(send, recv, op).run(),
                |send, recv| comm.all_reduce(send, recv, op).on(stream),
            );
            rank.compare(
                &all,
                COUNT,
                |send, recv| comm.reduce_scatter(send, recv, op).run(),
                |send, recv| comm.reduce_scatter(send, recv, op).on(stream),
            );
            rank.compare(
                &own,
                COUNT,
                |send, recv| comm.reduce(send, recv, op, size - 1).run(),
                |send, recv| comm.reduce(send, recv, op, size - 1).on(stream),
            );
        }
        let factor = Reducer::PreMulSum(comm.rank() as f32 + 2.0);
        rank.compare(
            &own,
            COUNT,
            |send, recv| comm.all_reduce(send, recv, factor).run(),
            |send, recv| comm.all_reduce(send, recv, factor).on(stream),
        );
        comm.barrier().run().unwrap();
    });
}

#[test]
fn movements() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
        let own = values(comm.rank(), COUNT);
        let all = values(comm.rank(), COUNT * size);
        let root = size - 1;
        rank.compare(
            &own,
            COUNT * size,
            |send, recv| comm.all_gather(send, recv).run(),
            |send, recv| comm.all_gather(send, recv).on(stream),
        );
        rank.compare(
            &own,
            COUNT,
            |send, recv| comm.broadcast(send, recv, root).run(),
            |send, recv| comm.broadcast(send, recv, root).on(stream),
        );
        rank.compare(
            &own,
            COUNT * size,
            |send, recv| comm.gather(send, recv, root).run(),
            |send, recv| comm.gather(send, recv, root).on(stream),
        );
        rank.compare(
            &all,
            COUNT,
            |send, recv| comm.scatter(send, recv, root).run(),
            |send, recv| comm.scatter(send, recv, root).on(stream),
        );
        comm.barrier().run().unwrap();
    });
}

#[test]
fn exchanges() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
        let all = values(comm.rank(), COUNT * size);
        rank.compare(
            &all,
            COUNT * size,
            |send, recv| comm.all_to_all(send, recv).run(),
            |send, recv| comm.all_to_all(send, recv).on(stream),
        );
        exchange_in_place(&rank);
        send_and_receive(&rank);
        exchange_blocks_of_any_length(&rank);
        comm.barrier().run().unwrap();
    });
}

/// Blocks of lengths that are no multiples of anything, also short ones that go by packets.
fn exchange_in_place(rank: &Rank) {
    if BACKEND == Backend::Nccl {
        return;
    }
    let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
    for count in [1, 37, COUNT, 40 * COUNT] {
        let mut host = values(comm.rank(), count * size);
        let mut device = rank.device(&host);
        comm.all_to_all_in_place(&mut host).run().unwrap();
        comm.all_to_all_in_place(&mut device).on(stream).unwrap();
        assert_eq!(rank.host(&device), host, "{count} elements a block");
    }
}

fn send_and_receive(rank: &Rank) {
    let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
    let own = values(comm.rank(), COUNT);
    let (next, previous) = ((comm.rank() + 1) % size, (comm.rank() + size - 1) % size);
    rank.compare(
        &own,
        COUNT,
        |send, recv| comm.send_recv(send, next, recv, previous).run(),
        |send, recv| comm.send_recv(send, next, recv, previous).on(stream),
    );
}

fn exchange_blocks_of_any_length(rank: &Rank) {
    let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
    let all = values(comm.rank(), COUNT * size);
    // Rank r sends r + 1 elements to each, which receives them one after the other.
    let counts = vec![comm.rank() + 1; size];
    let displs: Vec<_> = (0..size).map(|peer| peer * (comm.rank() + 1)).collect();
    let from: Vec<_> = (1..=size).collect();
    let at: Vec<_> = (0..size).map(|peer| peer * (peer + 1) / 2).collect();
    rank.compare(
        &all[..counts.iter().sum()],
        from.iter().sum(),
        |send, recv| {
            comm.all_to_all_v(
                send,
                Blocks::at(&counts, &displs),
                recv,
                Blocks::at(&from, &at),
            )
            .run()
        },
        |send, recv| {
            comm.all_to_all_v(
                send,
                Blocks::at(&counts, &displs),
                recv,
                Blocks::at(&from, &at),
            )
            .on(stream)
        },
    );
}

#[test]
fn reductions_in_place() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
        let own_block = comm.rank() * COUNT..(comm.rank() + 1) * COUNT;
        let all = values(comm.rank(), COUNT * size);

        let mut host = all.clone();
        comm.all_reduce_in_place(&mut host, RedOp::Sum)
            .run()
            .unwrap();
        let mut device = rank.device(&all);
        comm.all_reduce_in_place(&mut device, RedOp::Sum)
            .on(stream)
            .unwrap();
        assert_eq!(rank.host(&device), host);

        let mut device = rank.device(&all);
        comm.reduce_scatter_in_place(&mut device, RedOp::Sum)
            .on(stream)
            .unwrap();
        assert_eq!(rank.host(&device)[own_block.clone()], host[own_block]);

        let mut host = all.clone();
        comm.reduce_in_place(&mut host, RedOp::Max, 0)
            .run()
            .unwrap();
        let mut device = rank.device(&all);
        comm.reduce_in_place(&mut device, RedOp::Max, 0)
            .on(stream)
            .unwrap();
        assert_eq!(rank.host(&device), host);
        comm.barrier().run().unwrap();
    });
}

#[test]
fn movements_in_place() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
        let own_block = comm.rank() * COUNT..(comm.rank() + 1) * COUNT;
        let all = values(comm.rank(), COUNT * size);

        let mut host = all.clone();
        comm.all_gather_in_place(&mut host).run().unwrap();
        let mut device = rank.device(&all);
        comm.all_gather_in_place(&mut device).on(stream).unwrap();
        assert_eq!(rank.host(&device), host);

        let mut host = all.clone();
        comm.gather_in_place(&mut host, 0).run().unwrap();
        let mut device = rank.device(&all);
        comm.gather_in_place(&mut device, 0).on(stream).unwrap();
        assert_eq!(rank.host(&device), host);

        let mut host = all.clone();
        comm.scatter_in_place(&mut host, 0).run().unwrap();
        let mut device = rank.device(&all);
        comm.scatter_in_place(&mut device, 0).on(stream).unwrap();
        assert_eq!(rank.host(&device)[own_block.clone()], host[own_block]);

        let mut host = all.clone();
        comm.broadcast_in_place(&mut host, 0).run().unwrap();
        let mut device = rank.device(&all);
        comm.broadcast_in_place(&mut device, 0).on(stream).unwrap();
        assert_eq!(rank.host(&device), host);

        comm.barrier().run().unwrap();
    });
}

fn sum_of<T: Element + DeviceRepr>(rank: &Rank, one: T, expected: &[T]) {
    let mut memory = rank.device(&vec![one; expected.len()]);
    rank.comm
        .all_reduce_in_place(&mut memory, RedOp::Sum)
        .on(&rank.stream)
        .unwrap();
    assert_eq!(rank.host(&memory), expected);
}

#[test]
fn types() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let size = rank.comm.size();
        sum_of(&rank, 1_i8, &[size as i8; 5]);
        sum_of(&rank, 1_u8, &[size as u8; 5]);
        sum_of(&rank, -1_i32, &[-(size as i32); 5]);
        sum_of(&rank, 1_u32, &[size as u32; 5]);
        sum_of(&rank, -1_i64, &[-(size as i64); 5]);
        sum_of(&rank, 1_u64, &[size as u64; 5]);
        sum_of(&rank, 0.5_f64, &[size as f64 / 2.0; 5]);
        rank.comm.barrier().run().unwrap();
    });
}

#[test]
fn counts_of_nothing_and_little() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        for count in [1, 2, 3, 17] {
            sum_of(&rank, 1.0_f32, &vec![rank.comm.size() as f32; count]);
        }
        // SAFETY: the slice has no elements, so no call reads or writes any.
        let nothing = unsafe {
            spark_ccl::cuda::DeviceSlice::<f32>::from_raw(0, 0, rank.comm.device().unwrap())
        };
        rank.comm
            .all_reduce_in_place(nothing, RedOp::Sum)
            .on(&rank.stream)
            .unwrap();
        rank.comm.wait(&rank.stream).unwrap();
        rank.comm.barrier().run().unwrap();
    });
}

#[test]
fn run_waits_and_split_has_its_own_ranks() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let Rank { comm, stream } = rank;
        let mut memory = stream.clone_htod(&[1.0_f32; 9]).unwrap();
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        let sums = stream.clone_dtoh(&memory).unwrap();
        assert_eq!(sums, [comm.size() as f32; 9]);

        let alone = comm.split(Some(comm.rank() as u32), 0).unwrap().unwrap();
        assert_eq!(alone.device(), comm.device());
        alone
            .all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream)
            .unwrap();
        alone.wait(&stream).unwrap();
        assert_eq!(stream.clone_dtoh(&memory).unwrap(), sums);
        alone.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    let Some(gpus) = gpus(1) else { return };
    each(&gpus, |rank| {
        let (comm, stream, size) = (&rank.comm, &rank.stream, rank.comm.size());
        let short = rank.device(&[0.0_f32; 3]);
        let mut long = rank.device(&[0.0_f32; 4]);
        let said = text(comm.all_reduce(&short, &mut long, RedOp::Sum).on(stream));
        assert!(said.contains('3') && said.contains('4'), "{said}");
        let said = text(comm.broadcast_in_place(&mut long, size).on(stream));
        assert!(said.contains(&format!("root is rank {size}")), "{said}");
        if BACKEND == Backend::Nccl {
            let said = text(comm.all_to_all_in_place(&mut long).on(stream));
            assert!(said.contains("does not exchange memory in place"), "{said}");
        }
        let counts = vec![9; size];
        let displs = vec![0; size];
        let called = comm.all_to_all_v(
            &short,
            Blocks::at(&counts, &displs),
            &mut long,
            Blocks::at(&counts, &displs),
        );
        assert!(text(called.on(stream)).contains("exceeds"));
        // The communicator is fine.
        sum_of(&rank, 1_i32, &[size as i32; 2]);
        comm.barrier().run().unwrap();
    });
}
