//! Measures in host memory, where every thread is a rank.

use spark_ccl::{Carrier, Communicator, DType, Element, PeerLink, Registered};

use crate::args::BuffersArg;
use crate::bench::{Bench, Platform, Runner};
use crate::buffer::Buffer;
use crate::check::{Check, Piece};
use crate::collective::Layout;
use crate::error::Error;
use crate::exact::{PERIOD, to_bits};
use crate::hosts;
use crate::invocation::{BufferMode, Case, Invocation};
use crate::memory::MemoryLimit;
use crate::options::Options;
use crate::report::Device;
use crate::size::human;
use crate::timing::{self, Buffers, Timed};

/// The bytes of a rank's buffers if the largest size is `bytes`.
pub(crate) fn need(options: &Options, ranks: usize, bytes: u64) -> u64 {
    let of_type = |dtype: &DType| {
        let layout = options.collective.layout(bytes, dtype.size(), ranks);
        let (send, recv) = lengths(options, &layout, dtype.size());
        (send.saturating_add(recv) as u64).saturating_mul(dtype.size() as u64)
    };
    options.dtypes.iter().map(of_type).max().unwrap_or(0)
}

/// The lengths of a rank's send and receive buffer if `layout` is that of the largest size.
fn lengths(options: &Options, layout: &Layout, element: usize) -> (usize, usize) {
    let room = match options.buffers {
        Some(BuffersArg::Rotating(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX) / element,
        _ => 0,
    };
    let length = |part: usize| part.max(room).saturating_add(options.unalign);
    (length(layout.send), length(layout.larger()))
}

/// This rank, and what all ranks have reported.
pub(crate) struct Host<'a> {
    comm: &'a Communicator,
    limits: Vec<Vec<MemoryLimit>>,
    devices: Vec<Device>,
}

impl<'a> Host<'a> {
    /// Collects the information of all ranks; a collective call.
    pub(crate) fn new(comm: &'a Communicator) -> Result<Self, Error> {
        let infos = hosts::exchange(comm)?;
        Ok(Self {
            comm,
            devices: hosts::devices(comm, &infos)?,
            limits: infos.into_iter().map(|info| info.limits).collect(),
        })
    }

    /// What the links are made of, and what they join as far as they are made.
    fn links(&self) -> String {
        let mut all: Vec<PeerLink> = Vec::new();
        for link in self.comm.links() {
            let says_more = |other: &PeerLink| {
                other.carrier == link.carrier && (link.route.is_none() || other.route == link.route)
            };
            if link.carrier != Carrier::Own && !all.iter().any(says_more) {
                all.retain(|other| other.carrier != link.carrier || other.route.is_some());
                all.push(link);
            }
        }
        if all.is_empty() {
            return "none".to_owned();
        }
        let texts: Vec<String> = all.iter().map(PeerLink::to_string).collect();
        texts.join(", ")
    }
}

impl Platform for Host<'_> {
    fn ranks(&self) -> usize {
        self.comm.size()
    }

    fn name(&self) -> &'static str {
        "host memory"
    }

    fn memory(&self, options: &Options) -> &'static str {
        if options.registered {
            "registered"
        } else {
            "ordinary"
        }
    }

    fn nccl_version(&self) -> Option<&str> {
        None
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The memory and the links of the run, and the algorithm for each of the sizes.
    fn lines(&self, options: &Options, sizes: &[u64]) -> Result<Vec<String>, Error> {
        let buffers = match options.buffers {
            None => "as the last size takes, used in turn".to_owned(),
            Some(BuffersArg::Hot) => "hot, the same in every call".to_owned(),
            Some(BuffersArg::Rotating(bytes)) => format!("{} each, used in turn", human(bytes)),
        };
        let mut lines = vec![format!(
            "# Backend: host; memory: {}; buffers: {buffers}; links: {}",
            self.memory(options),
            self.links()
        )];
        let operation = options.collective.operation();
        if !operation.has_schedule() {
            return Ok(lines);
        }
        let dtype = options.dtypes[0];
        for &size in sizes {
            let layout = options
                .collective
                .layout(size, dtype.size(), self.comm.size());
            let registered = options.registered;
            let choice = self
                .comm
                .explain(operation, dtype, layout.count, registered)?;
            lines.push(format!("# Algorithm for {}: {choice}", human(size)));
        }
        Ok(lines)
    }

    fn limits(&self) -> &[Vec<MemoryLimit>] {
        &self.limits
    }

    fn need(&self, options: &Options, bytes: u64) -> u64 {
        need(options, self.comm.size(), bytes)
    }

    fn measure<T: Element>(&mut self, bench: &mut Bench<'_>) -> Result<(), Error> {
        let (comm, options) = (self.comm, bench.options);
        if options.registered {
            bench.sweeps(&mut Memory::<Registered<T>>::new::<T>(comm, options)?)
        } else {
            bench.sweeps(&mut Memory::<Vec<T>>::new::<T>(comm, options)?)
        }
    }
}

/// This rank's buffers for one element type.
struct Memory<'a, B> {
    comm: &'a Communicator,
    options: &'a Options,
    buffers: Buffers<B>,
}

impl<'a, B> Memory<'a, B> {
    fn new<T: Element>(comm: &'a Communicator, options: &'a Options) -> Result<Self, Error>
    where
        B: Buffer<T>,
    {
        let layout = options
            .collective
            .layout(options.sweep.last(), size_of::<T>(), comm.size());
        let (send, recv) = lengths(options, &layout, size_of::<T>());
        let buffers = Buffers {
            send: B::allocate(comm, send)?,
            recv: B::allocate(comm, recv)?,
            base: options.unalign,
        };
        Ok(Self {
            comm,
            options,
            buffers,
        })
    }
}

impl<T: Element, B: Buffer<T>> Runner<T> for Memory<'_, B> {
    fn warm_up(&mut self, case: &Case) -> Result<(), Error> {
        let call = Invocation::new(case, self.comm.rank());
        timing::warm_up(self.comm, &call, &mut self.buffers, self.options)
    }

    fn time(&mut self, case: &Case, mode: BufferMode) -> Result<Timed, Error> {
        let call = Invocation::new(case, self.comm.rank());
        timing::time(self.comm, &call, &mut self.buffers, mode, self.options)
    }

    fn check(&mut self, case: &Case, mode: BufferMode, seed: u64) -> Result<u64, Error> {
        let Buffers { send, recv, base } = &mut self.buffers;
        let call = Invocation::<T>::new(case, self.comm.rank());
        let check = Check::new(&call, mode, seed, *base);
        let inputs = check.inputs();
        inputs
            .recv
            .iter()
            .for_each(|piece| write(&check, piece, recv));
        inputs
            .send
            .iter()
            .for_each(|piece| write(&check, piece, send));
        call.run(self.comm, send, recv, *base, 0, mode)?;
        if let Some(plant) = self.options.plant
            && plant.rank == call.rank
            && let Some(at) = check.result_index(plant.index)
        {
            recv[at] = check.spoiled(&recv[at]);
        }
        let results = check.results();
        Ok(results.iter().map(|piece| wrong(&check, piece, recv)).sum())
    }
}

/// Writes the values of a piece.
fn write<T: Element>(check: &Check<'_, T>, piece: &Piece, buffer: &mut [T]) {
    let pattern = check.pattern(piece);
    for copy in buffer[piece.range.clone()].chunks_mut(PERIOD) {
        copy.copy_from_slice(&pattern[..copy.len()]);
    }
}

/// Counts the elements of a piece that differ from the expected ones.
fn wrong<T: Element>(check: &Check<'_, T>, piece: &Piece, buffer: &[T]) -> u64 {
    let pattern = check.pattern(piece);
    let tolerance = check.tolerance(piece);
    let wrong = |chunk: &[T]| {
        let pattern = &pattern[..chunk.len()];
        // Compares bytes, because floats with different bits can be equal.
        if bytemuck::cast_slice::<T, u8>(chunk) == bytemuck::cast_slice::<T, u8>(pattern) {
            return 0;
        }
        let pairs = chunk.iter().zip(pattern);
        pairs
            .filter(|(got, expected)| to_bits(*got).abs_diff(to_bits(*expected)) > tolerance)
            .count() as u64
    };
    buffer[piece.range.clone()].chunks(PERIOD).map(wrong).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use spark_ccl::ReduceOp;

    #[test]
    fn wrong_elements_are_counted_in_every_period() {
        let case = Case {
            collective: Collective::Broadcast,
            bytes: (4 * (3 * PERIOD + 10)) as u64,
            op: ReduceOp::Sum,
            root: 0,
            ranks: 2,
        };
        let call = Invocation::<f32>::new(&case, 1);
        let check = Check::new(&call, BufferMode::OutOfPlace, 3, 0);
        let piece = &check.results()[0];
        let mut memory = vec![0f32; 3 * PERIOD + 10];
        write(&check, piece, &mut memory);
        assert_eq!(wrong(&check, piece, &memory), 0);
        for index in [0, 2, PERIOD - 1, PERIOD, 2 * PERIOD + 5, 3 * PERIOD + 9] {
            memory[index] = check.spoiled(&memory[index]);
        }
        assert_eq!(wrong(&check, piece, &memory), 6);
        // Data that is displaced by one message.
        memory.rotate_left(1 << 14);
        assert!(wrong(&check, piece, &memory) > PERIOD as u64);
    }
}
