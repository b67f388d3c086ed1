//! Every element type: each collective of device memory gives what it gives on host memory.

use std::sync::Arc;

use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream};
use spark_ccl::{
    Backend, Blocks, Communicator, DType, Element, Error, F8E4M3, F8E5M2, RedOp, Reducer, bf16, f16,
};
use spark_ccl_testing::{Need, has, scramble};

use super::{BACKEND, builder, gpus, of_fakes};

/// Elements for each rank; not a multiple of anything.
const COUNT: usize = 131;

/// A type with small whole numbers.
trait Number: Element {
    fn of(number: u8) -> Self;
}

macro_rules! numbers {
    ($($type:ty: $of:expr;)+) => {
        $(impl Number for $type {
            fn of(number: u8) -> Self {
                $of(number)
            }
        })+

        /// Runs a body for each type.
        macro_rules! for_every_type {
            ($body:ident($comm:expr)) => {{
                let tried = [$({
                    $body::<$type>($comm);
                    <$type>::DTYPE
                }),+];
                assert_eq!(tried, DType::ALL);
            }};
        }
    };
}

numbers! {
    i8: |number| number as i8;
    u8: u8::from;
    i32: i32::from;
    u32: u32::from;
    i64: i64::from;
    u64: u64::from;
    f16: f16::from;
    f32: f32::from;
    f64: f64::from;
    bf16: bf16::from;
    F8E4M3: |number| F8E4M3::from_f32(f32::from(number));
    F8E5M2: |number| F8E5M2::from_f32(f32::from(number));
}

/// A rank's elements for a reduction, whose result every type has for up to 8 ranks.
fn values<T: Number>(comm: &Communicator, len: usize, op: Reducer<T>) -> Vec<T> {
    let value = |i| match (op, scramble(comm.rank() as u64, i) % 2) {
        (Reducer::Op(RedOp::Prod), bit) => bit + 1,
        (Reducer::Op(RedOp::Avg), bit) => bit * comm.size() as u64,
        (_, bit) => bit,
    };
    (0..len as u64).map(|i| T::of(value(i) as u8)).collect()
}

/// Makes a call with host memory and with device memory, and compares what they leave behind.
macro_rules! compare {
    ($comm:ident, $values:expr, $len:expr, |$send:ident, $recv:ident| $call:expr) => {{
        let (values, mut host) = ($values, vec![T::of(3); $len]);
        let mut source = $comm.alloc_device::<T>(values.len()).unwrap();
        let mut target = $comm.alloc_device::<T>($len).unwrap();
        source.write(&values).unwrap();
        target.write(&host).unwrap();
        let ($send, $recv) = (&values[..], &mut host[..]);
        $call.run().unwrap();
        let ($send, $recv) = (&source, &mut target);
        $call.run().unwrap();
        let mut device = vec![T::of(0); $len];
        target.read(&mut device).unwrap();
        assert_eq!(device, host, "{} {}", T::DTYPE, stringify!($call));
    }};
}

fn reduce<T: Number>(comm: &Communicator) {
    let (size, root) = (comm.size(), comm.size() - 1);
    let factor = Reducer::PreMulSum(T::of(2));
    let plain = [RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max, RedOp::Avg];
    for op in plain.map(Reducer::Op).into_iter().chain([factor]) {
        if op == RedOp::Avg.into() && !T::DTYPE.is_integer() && !size.is_power_of_two() {
            // Where their number has no exact inverse, roundings may differ.
            continue;
        }
        if BACKEND == Backend::Nccl && op == factor && size == 1 && is_float8::<T>() {
            let said = refusal::<T>(comm, op).unwrap();
            assert!(said.contains("one rank"), "{said}");
            continue;
        }
        let [own, all] = [COUNT, COUNT * size].map(|len| values(comm, len, op));
        compare!(comm, own.clone(), COUNT, |send, recv| comm
            .all_reduce(send, recv, op));
        compare!(comm, own, COUNT, |send, recv| comm
            .reduce(send, recv, op, root));
        compare!(comm, all, COUNT, |send, recv| comm
            .reduce_scatter(send, recv, op));
    }
}

fn displacements(counts: &[usize]) -> Vec<usize> {
    let begins = counts.iter().scan(0, |next, count| {
        *next += count;
        Some(*next - count)
    });
    begins.collect()
}

fn move_all<T: Number>(comm: &Communicator) {
    let (size, root) = (comm.size(), comm.size() - 1);
    let [own, all] = [COUNT, COUNT * size].map(|len| values::<T>(comm, len, RedOp::Sum.into()));
    compare!(comm, own.clone(), COUNT * size, |send, recv| comm
        .all_gather(send, recv));
    compare!(comm, own.clone(), COUNT, |send, recv| comm
        .broadcast(send, recv, root));
    compare!(comm, own.clone(), COUNT * size, |send, recv| comm
        .gather(send, recv, root));
    compare!(comm, all.clone(), COUNT, |send, recv| comm
        .scatter(send, recv, root));
    compare!(comm, all.clone(), COUNT * size, |send, recv| comm
        .all_to_all(send, recv));
    if BACKEND == Backend::Nccl {
        move_messages::<T>(comm);
    }
}

fn move_messages<T: Number>(comm: &Communicator) {
    let (size, rank) = (comm.size(), comm.rank());
    let [own, all] = [COUNT, COUNT * size].map(|len| values::<T>(comm, len, RedOp::Sum.into()));
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    compare!(comm, own.clone(), COUNT, |send, recv| comm
        .send_recv(send, next, recv, previous));
    let (given, taken) = (vec![rank + 1; size], (1..=size).collect::<Vec<_>>());
    let (at, to) = (displacements(&given), displacements(&taken));
    let sent = all[..size * (rank + 1)].to_vec();
    compare!(comm, sent, taken.iter().sum(), |send, recv| comm
        .all_to_all_v(
            send,
            Blocks::at(&given, &at),
            recv,
            Blocks::at(&taken, &to)
        ));
    if size > 1 && rank < 2 {
        let mut memory = comm.alloc_device::<T>(COUNT).unwrap();
        memory.write(&own).unwrap();
        let mut host = own.clone();
        if rank == 0 {
            comm.send(&memory, 1).run().unwrap();
            comm.send(&host[..], 1).run().unwrap();
        } else {
            comm.recv(&mut memory, 0).run().unwrap();
            comm.recv(&mut host[..], 0).run().unwrap();
            let mut received = own.clone();
            memory.read(&mut received).unwrap();
            assert!(received == host && host != own);
        }
    }
}

/// What a reduction says where NCCL has none for the type.
fn refusal<T: Number>(comm: &Communicator, op: impl Into<Reducer<T>>) -> Option<String> {
    let mut memory = comm.alloc_device::<T>(COUNT).unwrap();
    memory.write(&[T::of(1); COUNT]).unwrap();
    let called = comm.all_reduce_in_place(&mut memory, op).run();
    let error = called.map(drop).err()?;
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let mut same = [T::of(0); COUNT];
    memory.read(&mut same).unwrap();
    assert_eq!(same, [T::of(1); COUNT]);
    Some(error.to_string())
}

fn reduce_or_refuse<T: Number>(comm: &Communicator) {
    let Some(said) = refusal::<T>(comm, RedOp::Sum) else {
        return reduce::<T>(comm);
    };
    assert!(is_float8::<T>() && !has(Need::FakeGpus), "{said}");
}

fn is_float8<T: Element>() -> bool {
    matches!(T::DTYPE, DType::F8E4M3 | DType::F8E5M2)
}

#[test]
fn all_are_reduced() {
    let Some(gpus) = gpus(1) else { return };
    let generation = of_fakes(c"fake_generation");
    let set = |major| generation.map(|generation| generation(major));
    set(9);
    gpus.each(&builder(), |comm| {
        for_every_type!(reduce_or_refuse(&comm));
        comm.finalize().unwrap();
    });
    set(8);
}

#[test]
fn those_of_one_rank_are_reduced() {
    let Some(_gpus) = gpus(1) else { return };
    let set = of_fakes(c"fake_generation");
    set.map(|set| set(9));
    let ranks = builder().local(1).unwrap();
    for_every_type!(reduce_or_refuse(&ranks[0]));
    set.map(|set| set(8));
}

#[test]
fn all_are_moved() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        for_every_type!(move_all(&comm));
        comm.finalize().unwrap();
    });
}

/// A slice of a type that cudarc allocates none of.
fn slice_of<T: Number>(stream: &Arc<CudaStream>, values: &[T]) -> CudaSlice<T> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let address = stream.clone_htod(bytes).unwrap().leak();
    // SAFETY: `clone_htod` allocated `address` for this stream with as many bytes as `values` has,
    // `leak` has passed it on, and nothing else has it.
    unsafe { stream.upgrade_device_ptr(address, values.len()) }
}

fn values_of<T: Number>(stream: &Arc<CudaStream>, slice: CudaSlice<T>) -> Vec<T> {
    let len = slice.len();
    // SAFETY: the memory of `slice` belongs to this stream and has this number of bytes, and `leak`
    // has passed it on, so nothing else has it.
    let bytes = unsafe { stream.upgrade_device_ptr::<u8>(slice.leak(), len * size_of::<T>()) };
    let mut values = vec![T::of(0); len];
    let into = bytemuck::cast_slice_mut::<T, u8>(&mut values);
    into.copy_from_slice(&stream.clone_dtoh(&bytes).unwrap());
    values
}

fn use_cudarcs_slices<T: Number>(comm: &Communicator) {
    let stream = comm.context().unwrap().new_stream().unwrap();
    let own = values::<T>(comm, COUNT, RedOp::Sum.into());
    let mut host = vec![T::of(0); COUNT * comm.size()];
    let (send, mut recv) = (slice_of(&stream, &own), slice_of(&stream, &host));
    comm.all_gather(&own[..], &mut host[..]).run().unwrap();
    comm.all_gather(&send, &mut recv).on(&stream).unwrap();
    comm.wait(&stream).unwrap();
    assert_eq!(values_of(&stream, recv), host);
}

#[test]
fn all_may_be_in_slices_of_cudarc() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        for_every_type!(use_cudarcs_slices(&comm));
        comm.finalize().unwrap();
    });
}

/// A reduction of 8-bit floats, and what is refused of it.
fn refused<T: Number>(comm: &Communicator) {
    let said = refusal::<T>(comm, RedOp::Sum).unwrap();
    for part in [
        T::DTYPE.name(),
        "compute capability 9.0",
        "rank 0",
        "is of 8.x",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn float8_is_not_reduced_before_hopper() {
    let Some(gpus) = gpus(1) else { return };
    // Only NCCL refuses them.
    if BACKEND != Backend::Nccl || !has(Need::FakeGpus) {
        return;
    }
    gpus.each(&builder(), |comm| {
        refused::<F8E4M3>(&comm);
        refused::<F8E5M2>(&comm);
        // The communicator is fine.
        reduce::<bf16>(&comm);
        comm.finalize().unwrap();
    });
}
