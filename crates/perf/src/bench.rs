//! The sweep: every type, operation, root and size.

use spark_ccl::{Communicator, DType, Element, RedOp, Registered};

use crate::args::BuffersArg;
use crate::buffer::Buffer;
use crate::check::Check;
use crate::collective::Layout;
use crate::error::Error;
use crate::invocation::{Invocation, Way};
use crate::op::Op;
use crate::options::Options;
use crate::report::{Key, Measure, Row};
use crate::timing::{self, Buffers};

/// Where rows go as they are measured. Ranks other than 0 drop them.
pub(crate) trait Sink {
    /// A line of the table is complete.
    fn row(&mut self, row: Row) -> Result<(), Error>;
}

/// What a run found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Checks, over all ranks, that found something wrong.
    pub(crate) out_of_bounds: u64,
    bus_bw: f64,
    measures: u64,
}

impl Findings {
    /// Mean bus bandwidth of all measures, GB/s.
    pub(crate) fn average_bus_bw(&self) -> f64 {
        if self.measures == 0 {
            0.0
        } else {
            self.bus_bw / self.measures as f64
        }
    }
}

/// Runs everything.
pub(crate) fn run(
    comm: &Communicator,
    options: &Options,
    sink: &mut dyn Sink,
) -> Result<Findings, Error> {
    let mut bench = Bench {
        comm,
        options,
        sink,
        findings: Findings::default(),
        checks: 0,
    };
    for &dtype in &options.dtypes {
        match dtype {
            DType::I8 => bench.dtype::<i8>(),
            DType::U8 => bench.dtype::<u8>(),
            DType::I32 => bench.dtype::<i32>(),
            DType::U32 => bench.dtype::<u32>(),
            DType::I64 => bench.dtype::<i64>(),
            DType::U64 => bench.dtype::<u64>(),
            DType::F16 => bench.dtype::<spark_ccl::f16>(),
            DType::F32 => bench.dtype::<f32>(),
            DType::F64 => bench.dtype::<f64>(),
            DType::Bf16 => bench.dtype::<spark_ccl::bf16>(),
            DType::F8E4M3 => bench.dtype::<spark_ccl::F8E4M3>(),
            DType::F8E5M2 => bench.dtype::<spark_ccl::F8E5M2>(),
        }?;
    }
    Ok(bench.findings)
}

/// Bytes of a rank's buffers if the largest size is `bytes`.
pub(crate) fn need(options: &Options, ranks: usize, bytes: u64) -> u64 {
    let of_type = |dtype: &DType| {
        let layout = options.collective.layout(bytes, dtype.size(), ranks);
        let (send, recv) = lengths(options, &layout, dtype.size());
        (send.saturating_add(recv) as u64).saturating_mul(dtype.size() as u64)
    };
    options.dtypes.iter().map(of_type).max().unwrap_or(0)
}

/// Elements of a rank's send and receive buffer if `layout` is that of the largest size.
fn lengths(options: &Options, layout: &Layout, element: usize) -> (usize, usize) {
    let room = match options.buffers {
        Some(BuffersArg::Rotating(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX) / element,
        _ => 0,
    };
    let length = |part: usize| part.max(room).saturating_add(options.unalign);
    (length(layout.send), length(layout.larger()))
}

struct Bench<'a> {
    comm: &'a Communicator,
    options: &'a Options,
    sink: &'a mut dyn Sink,
    findings: Findings,
    /// Number of checks so far: each gets its own data.
    checks: u64,
}

impl Bench<'_> {
    fn dtype<T: Element>(&mut self) -> Result<(), Error> {
        if self.options.registered {
            self.memory::<T, Registered<T>>()
        } else {
            self.memory::<T, Vec<T>>()
        }
    }

    fn memory<T: Element, B: Buffer<T>>(&mut self) -> Result<(), Error> {
        let options = self.options;
        let layout =
            options
                .collective
                .layout(options.sweep.last(), size_of::<T>(), self.comm.size());
        let (send, recv) = lengths(options, &layout, size_of::<T>());
        let mut buffers: Buffers<B> = Buffers {
            send: B::allocate(self.comm, send)?,
            recv: B::allocate(self.comm, recv)?,
            base: options.unalign,
        };
        // Collectives that do not reduce run once; the operation says nothing to them.
        let ops = if options.ops.is_empty() {
            &[Op::Sum]
        } else {
            options.ops.as_slice()
        };
        for &op in ops {
            for root in options.roots(self.comm.size()) {
                self.sweep(&mut buffers, op, root)?;
            }
        }
        Ok(())
    }

    fn sweep<T: Element, B: Buffer<T>>(
        &mut self,
        buffers: &mut Buffers<B>,
        op: Op,
        root: usize,
    ) -> Result<(), Error> {
        let invocation =
            |size| Invocation::<T>::new(self.comm, self.options.collective, size, op, root);
        for size in self.options.sweep.warm_up() {
            timing::warm_up(self.comm, &invocation(size), buffers, self.options)?;
        }
        let mut cycle = 0;
        while self.options.cycles == 0 || cycle < self.options.cycles {
            for size in self.options.sweep.sizes() {
                let call = Invocation::new(self.comm, self.options.collective, size, op, root);
                self.line(buffers, &call)?;
            }
            cycle += 1;
        }
        Ok(())
    }

    fn line<T: Element, B: Buffer<T>>(
        &mut self,
        buffers: &mut Buffers<B>,
        call: &Invocation<T>,
    ) -> Result<(), Error> {
        let out_of_place = self.measure(buffers, call, Way::OutOfPlace)?;
        let in_place = self.measure(buffers, call, Way::InPlace)?;
        let collective = call.collective;
        let key = Key {
            size: (call.layout.larger() * size_of::<T>()) as u64,
            count: call.layout.count as u64,
            dtype: T::DTYPE.name(),
            op: if collective.reduces() {
                call.op.name()
            } else {
                collective.label()
            },
            root: if collective.has_root() {
                call.root as i64
            } else {
                -1
            },
        };
        self.sink.row(Row {
            key,
            out_of_place,
            in_place,
            timestamp: crate::clock::now(),
        })
    }

    fn measure<T: Element, B: Buffer<T>>(
        &mut self,
        buffers: &mut Buffers<B>,
        call: &Invocation<T>,
        way: Way,
    ) -> Result<Measure, Error> {
        let timed = timing::time(self.comm, call, buffers, way, self.options)?;
        let (algorithm_bw, bus_bw) =
            call.collective
                .bandwidth(&call.layout, size_of::<T>(), call.ranks, timed.seconds);
        self.findings.bus_bw += bus_bw;
        self.findings.measures += 1;
        let mut wrong = None;
        for _ in 0..self.options.checks {
            let found = self.check(buffers, call, way)?;
            wrong = Some(wrong.unwrap_or(0) + found);
            if found > 0 {
                break;
            }
        }
        Ok(Measure {
            time_us: timed.seconds * 1e6,
            cpu_us: timed.cpu_seconds * 1e6,
            algorithm_bw,
            bus_bw,
            wrong,
            per_iteration: timed.per_iteration,
        })
    }

    /// Runs the call on known data; wrong elements over all ranks.
    fn check<T: Element, B: Buffer<T>>(
        &mut self,
        buffers: &mut Buffers<B>,
        call: &Invocation<T>,
        way: Way,
    ) -> Result<u64, Error> {
        self.checks += 1;
        let check = Check::new(call, way, self.checks, buffers.base);
        check.fill(&mut buffers.send, &mut buffers.recv);
        call.run(
            self.comm,
            &mut buffers.send,
            &mut buffers.recv,
            buffers.base,
            0,
            way,
        )?;
        if let Some(plant) = self.options.plant
            && plant.rank == call.rank
        {
            check.plant(&mut buffers.recv, plant.index);
        }
        let own = check.wrong(&buffers.recv);
        let mut sums = [own, u64::from(own > 0)];
        self.comm
            .all_reduce_in_place(&mut sums, RedOp::Sum)
            .by_any_path()
            .run()?;
        self.findings.out_of_bounds += sums[1];
        Ok(sums[0])
    }
}
