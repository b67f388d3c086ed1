//! Means of device memory have the same bits as those of host memory, by the algorithm that reduces
//! all ranks' elements at once, in the order of ranks. Fake GPUs will do.

use spark_ccl::{Communicator, Element, F8E4M3, F8E5M2, RedOp, bf16, f16};
use spark_ccl_testing::{Need, has, scramble};

use super::builder;
use super::support::Gpus;

/// A rank's elements: first the largest number, of which two have a sum beyond all numbers; then
/// any bits.
fn values<T: Element>(comm: &Communicator, largest: T, len: usize) -> Vec<T> {
    let any = |i: u64| {
        let bits = scramble(i, comm.rank() as u64).to_le_bytes();
        bytemuck::pod_read_unaligned(&bits[..size_of::<T>()])
    };
    let rest = (1..len as u64).map(any);
    std::iter::once(largest).chain(rest).collect()
}

/// Makes a call with host memory and with device memory, and compares the bits.
fn compare<T: Element>(comm: &Communicator, largest: T, count: usize) {
    let own = values(comm, largest, count);
    let mut host = own.clone();
    comm.all_reduce_in_place(&mut host[..], RedOp::Avg)
        .run()
        .unwrap();
    assert_eq!(host[0], largest, "{}", T::DTYPE);
    let mut device = comm.alloc_device::<T>(count).unwrap();
    device.write(&own).unwrap();
    comm.all_reduce_in_place(&mut device, RedOp::Avg)
        .run()
        .unwrap();
    let mut seen = own;
    device.read(&mut seen).unwrap();
    assert_same_bits(&seen, &host);

    let all = values(comm, largest, count * comm.size());
    let host = &mut host[..];
    comm.reduce_scatter(&all[..], &mut *host, RedOp::Avg)
        .run()
        .unwrap();
    let mut source = comm.alloc_device::<T>(all.len()).unwrap();
    source.write(&all).unwrap();
    comm.reduce_scatter(&source, &mut device, RedOp::Avg)
        .run()
        .unwrap();
    device.read(&mut seen).unwrap();
    assert_same_bits(&seen, host);
}

fn assert_same_bits<T: Element>(seen: &[T], expected: &[T]) {
    let bytes = |values: &[T], i: usize| bytemuck::bytes_of(&values[i]).to_vec();
    for i in 0..expected.len() {
        let [seen, expected] = [seen, expected].map(|values| bytes(values, i));
        assert_eq!(seen, expected, "{} {i}", T::DTYPE);
    }
}

#[test]
fn means_are_those_of_host_memory() {
    if !has(Need::Gpus(1)) {
        return;
    }
    let builder = builder().set("SPARK_CCL_ALGO", "direct");
    Gpus::alone(2).each(&builder, |comm| {
        for count in [131, 20_011] {
            compare(&comm, f32::MAX, count);
            compare(&comm, f64::MAX, count);
            compare(&comm, f16::MAX, count);
            compare(&comm, bf16::MAX, count);
            compare(&comm, F8E4M3::from_bits(0x7e), count);
            compare(&comm, F8E5M2::from_bits(0x7b), count);
        }
        comm.finalize().unwrap();
    });
}
