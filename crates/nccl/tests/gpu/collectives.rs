use spark_ccl_nccl::{Communicator, Config, DType, DeviceSlice, Error, Library, RedOp, Stream};
use spark_ccl_testing::scramble;

use crate::cuda::Gpu;
use crate::{Machine, machine, nonblocking, wait};

/// A collective, and each rank's expected result.
struct Case {
    name: &'static str,
    /// Whether the send and the receive buffer have a part for each rank.
    parts: (bool, bool),
    call: fn(&Communicator, &Buffers) -> Result<(), Error>,
    expected: fn(Element) -> f64,
}

struct Buffers {
    library: Library,
    send: DeviceSlice,
    recv: DeviceSlice,
    stream: Stream,
}

/// An element of a receive buffer.
#[derive(Clone, Copy)]
struct Element {
    ranks: usize,
    rank: usize,
    /// The length of a part.
    len: usize,
    index: usize,
}

impl Element {
    /// The values that the ranks sent at this position.
    fn sent(self) -> impl Iterator<Item = f64> {
        (0..self.ranks).map(move |rank| sent(rank, self.index))
    }

    /// The rank whose part this is, and the position in the part.
    fn part(self) -> (usize, usize) {
        (self.index / self.len, self.index % self.len)
    }

    fn is_at_root(self) -> bool {
        self.rank == self.ranks - 1
    }
}

/// Small whole numbers, whose product over 8 ranks is exact.
fn sent(rank: usize, index: usize) -> f64 {
    (scramble(rank as u64, index as u64) % 13) as f64 + 1.0
}

const UNTOUCHED: f64 = -1.0;

fn reductions() -> Vec<Case> {
    let of = |name, call, expected| Case {
        name,
        parts: (false, false),
        call,
        expected,
    };
    vec![
        of(
            "sum",
            |c, b| all_reduce(c, b, RedOp::Sum),
            |e| e.sent().sum(),
        ),
        of(
            "product",
            |c, b| all_reduce(c, b, RedOp::Prod),
            |e| e.sent().product(),
        ),
        of(
            "largest",
            |c, b| all_reduce(c, b, RedOp::Max),
            |e| e.sent().fold(0.0, f64::max),
        ),
        of(
            "smallest",
            |c, b| all_reduce(c, b, RedOp::Min),
            |e| e.sent().fold(99.0, f64::min),
        ),
        of(
            "average",
            |c, b| all_reduce(c, b, RedOp::Avg),
            |e| e.sent().sum::<f64>() / e.ranks as f64,
        ),
        of("sum with factors", pre_multiplied, |e| {
            let scaled = |(rank, value)| (rank + 1) as f64 * value;
            e.sent().enumerate().map(scaled).sum()
        }),
        of(
            "reduce",
            |c, b| c.reduce(b.send, at_root(c, b.recv)?, RedOp::Sum, root(c)?, b.stream),
            |e| {
                if e.is_at_root() {
                    e.sent().sum()
                } else {
                    UNTOUCHED
                }
            },
        ),
        Case {
            name: "reduce_scatter",
            parts: (true, false),
            call: |c, b| c.reduce_scatter(b.send, b.recv, RedOp::Sum, b.stream),
            expected: |e| {
                let place = e.rank * e.len + e.index;
                (0..e.ranks).map(|rank| sent(rank, place)).sum()
            },
        },
    ]
}

fn moves() -> Vec<Case> {
    let of = |name, parts, call, expected| Case {
        name,
        parts,
        call,
        expected,
    };
    vec![
        of(
            "broadcast",
            (false, false),
            |c, b| c.broadcast(at_root(c, b.send)?, b.recv, root(c)?, b.stream),
            |e| sent(e.ranks - 1, e.index),
        ),
        of(
            "all_gather",
            (false, true),
            |c, b| c.all_gather(b.send, b.recv, b.stream),
            |e| sent(e.part().0, e.part().1),
        ),
        of(
            "all_to_all",
            (true, true),
            |c, b| c.all_to_all(b.send, b.recv, b.stream),
            |e| sent(e.part().0, e.rank * e.len + e.part().1),
        ),
        of(
            "gather",
            (false, true),
            |c, b| c.gather(b.send, at_root(c, b.recv)?, root(c)?, b.stream),
            |e| {
                if e.is_at_root() {
                    sent(e.part().0, e.part().1)
                } else {
                    UNTOUCHED
                }
            },
        ),
        of(
            "scatter",
            (true, false),
            |c, b| c.scatter(at_root(c, b.send)?, b.recv, root(c)?, b.stream),
            |e| sent(e.ranks - 1, e.rank * e.len + e.index),
        ),
        of("send and receive", (false, false), ring, |e| {
            sent((e.rank + e.ranks - 1) % e.ranks, e.index)
        }),
    ]
}

fn all_reduce(comm: &Communicator, buffers: &Buffers, op: RedOp<'_>) -> Result<(), Error> {
    comm.all_reduce(buffers.send, buffers.recv, op, buffers.stream)
}

/// The reduction is freed before it has run.
fn pre_multiplied(comm: &Communicator, buffers: &Buffers) -> Result<(), Error> {
    let op = comm.pre_mul_sum((comm.rank()? + 1) as f64)?;
    all_reduce(comm, buffers, RedOp::PreMulSum(&op))?;
    comm.destroy_op(op)
}

/// Sends to the next rank, and receives from the previous one.
fn ring(comm: &Communicator, buffers: &Buffers) -> Result<(), Error> {
    let (ranks, rank) = (comm.size()?, comm.rank()?);
    buffers.library.group(|| {
        comm.send(buffers.send, (rank + 1) % ranks, buffers.stream)?;
        comm.recv(buffers.recv, (rank + ranks - 1) % ranks, buffers.stream)
    })
}

/// The last rank, which is no default.
fn root(comm: &Communicator) -> Result<usize, Error> {
    Ok(comm.size()? - 1)
}

fn at_root(comm: &Communicator, buffer: DeviceSlice) -> Result<Option<DeviceSlice>, Error> {
    Ok((comm.rank()? == root(comm)?).then_some(buffer))
}

/// A few elements, an odd number of them, and more than a chunk.
const LENGTHS: [usize; 3] = [1, 1003, 1 << 18];

fn cases() -> impl Iterator<Item = (Case, usize)> {
    let all = || reductions().into_iter().chain(moves());
    LENGTHS
        .into_iter()
        .flat_map(move |len| all().map(move |case| (case, len)))
}

impl Case {
    fn prepare(&self, machine: &Machine, rank: usize, len: usize) -> Buffers {
        let gpu = &machine.gpus[rank];
        let total = |parts| if parts { machine.gpus.len() * len } else { len };
        let values: Vec<_> = (0..total(self.parts.0)).map(|i| sent(rank, i)).collect();
        Buffers {
            library: machine.library,
            send: gpu.buffer(&values),
            recv: gpu.buffer(&vec![UNTOUCHED; total(self.parts.1)]),
            stream: gpu.stream(),
        }
    }

    fn check(&self, gpu: &Gpu, comm: &Communicator, buffers: &Buffers, len: usize) {
        wait(gpu, comm);
        let (ranks, rank) = (comm.size().unwrap(), comm.rank().unwrap());
        let seen: Vec<f64> = gpu.read(buffers.recv);
        for (index, seen) in seen.into_iter().enumerate() {
            let element = Element {
                ranks,
                rank,
                len,
                index,
            };
            let expected = (self.expected)(element);
            let name = self.name;
            // Sums of small integers are exact; an average may be rounded twice.
            assert!(
                (seen - expected).abs() < 1e-12 * expected.abs(),
                "{name} of {len}, rank {rank}: element {index} is {seen}, not {expected}"
            );
        }
    }
}

fn on_threads(config: &Config) {
    let Some(machine) = machine(1) else { return };
    machine.each_rank(config, |gpu, comm| {
        for (case, len) in cases() {
            let buffers = case.prepare(&machine, comm.rank().unwrap(), len);
            (case.call)(&comm, &buffers).unwrap();
            case.check(gpu, &comm, &buffers, len);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn collectives_of_threads() {
    on_threads(&Config::default());
}

#[test]
fn collectives_that_do_not_block() {
    on_threads(&nonblocking(Config::default().timeout));
}

#[test]
fn collectives_of_one_thread() {
    let Some(machine) = machine(1) else { return };
    let devices: Vec<_> = machine.gpus.iter().map(|gpu| gpu.number).collect();
    let comms = Communicator::init_all(machine.library, &devices).unwrap();
    for (case, len) in cases() {
        let ranks = 0..comms.len();
        let buffers: Vec<_> = ranks
            .map(|rank| case.prepare(&machine, rank, len))
            .collect();
        let all = || comms.iter().zip(&buffers);
        machine
            .library
            .group(|| all().try_for_each(|(comm, buffers)| (case.call)(comm, buffers)))
            .unwrap();
        for ((comm, buffers), gpu) in all().zip(machine.gpus) {
            case.check(gpu, comm, buffers, len);
        }
    }
    Communicator::finalize_all(comms).unwrap();
}

#[test]
fn in_place() {
    const LEN: usize = 1003;
    let Some(machine) = machine(1) else { return };
    machine.each_rank(&Config::default(), |gpu, comm| {
        let (ranks, rank) = (comm.size().unwrap(), comm.rank().unwrap());
        let values: Vec<_> = (0..ranks * LEN).map(|i| sent(rank, i)).collect();
        let all = gpu.buffer(&values);
        let own = all.part(rank * LEN, LEN).unwrap();
        let sum = |i| (0..ranks).map(|rank| sent(rank, i)).sum::<f64>();
        let sums: Vec<_> = (0..ranks * LEN).map(sum).collect();

        comm.reduce_scatter(all, own, RedOp::Sum, gpu.stream())
            .unwrap();
        wait(gpu, &comm);
        assert_eq!(gpu.read::<f64>(own), sums[rank * LEN..][..LEN]);
        comm.all_gather(own, all, gpu.stream()).unwrap();
        wait(gpu, &comm);
        assert_eq!(gpu.read::<f64>(all), sums);
        comm.all_reduce(all, all, RedOp::Max, gpu.stream()).unwrap();
        comm.broadcast(Some(all), all, 0, gpu.stream()).unwrap();
        wait(gpu, &comm);
        assert_eq!(gpu.read::<f64>(all), sums);
        comm.finalize().unwrap();
    });
}

#[test]
fn every_type_is_summed() {
    let Some(machine) = machine(1) else { return };
    machine.each_rank(&Config::default(), |gpu, comm| {
        let ranks = comm.size().unwrap();
        for dtype in DType::ALL {
            let ones = bits(dtype, 1).repeat(100);
            let bytes = gpu.buffer(&ones);
            // SAFETY: `buffer` has allocated 100 elements of this type, and nothing frees them.
            let buffer =
                unsafe { DeviceSlice::from_raw(bytes.start(), 100, dtype, bytes.device()) };
            match comm.all_reduce(buffer, buffer, RedOp::Sum, gpu.stream()) {
                Err(error) if error.is_unsupported() => println!("{error}"),
                result => {
                    result.unwrap();
                    wait(gpu, &comm);
                    let sum = bits(dtype, ranks as u64);
                    for seen in gpu.read::<u8>(bytes).chunks(dtype.size()) {
                        assert_eq!(seen, sum, "{dtype}");
                    }
                }
            }
        }
        comm.finalize().unwrap();
    });
}

/// A small positive integer, as the bytes of a type.
fn bits(dtype: DType, number: u64) -> Vec<u8> {
    let bits = match dtype {
        DType::F16 => float(number, 5, 10),
        DType::F32 => float(number, 8, 23),
        DType::F64 => float(number, 11, 52),
        DType::Bf16 => float(number, 8, 7),
        DType::F8E4M3 => float(number, 4, 3),
        DType::F8E5M2 => float(number, 5, 2),
        _ => number,
    };
    bits.to_le_bytes()[..dtype.size()].to_vec()
}

/// An integer as a float with the given number of exponent and fraction bits, which must represent
/// it exactly.
fn float(number: u64, exponent_bits: u32, fraction_bits: u32) -> u64 {
    let exponent = number.ilog2();
    let fraction = (number << fraction_bits >> exponent) - (1 << fraction_bits);
    let biased = u64::from(exponent) + (1 << (exponent_bits - 1)) - 1;
    biased << fraction_bits | fraction
}
