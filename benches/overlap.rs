//! Shows whether a GPU computes in one stream while NCCL works in another: a timeline of both.
//!
//! `cargo bench -p spark-ccl --bench overlap`, with two GPUs. Rank 1 may call later than rank 0
//! (`late`): until then rank 0's call runs without an end, and its computing should not wait for
//! it.

#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Arc, Barrier};
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::sys::CUevent_flags;
use spark_ccl::cuda::cudarc::driver::{CudaEvent, CudaSlice, CudaStream};
use spark_ccl::{Backend, Communicator, Error, RedOp};

const RANKS: usize = 2;
/// Elements of each rank's block: 256 MiB.
const LEN: usize = 1 << 26;
/// Parts of the computing, each of which sets 1 GiB to zeros.
const PIECES: usize = 20;
const PIECE: usize = 1 << 30;
const LATES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(50)];

fn main() {
    let ranks = match Communicator::builder().backend(Backend::Nccl).local(RANKS) {
        Ok(ranks) => ranks,
        Err(error) => return println!("{RANKS} GPUs are needed: {error}"),
    };
    let meet = Barrier::new(RANKS);
    std::thread::scope(|scope| {
        for comm in ranks {
            let meet = &meet;
            scope.spawn(move || {
                let mut bench = Bench::new(comm);
                for late in LATES {
                    bench.measure("all_gather", late, meet, Bench::all_gather);
                    bench.measure("reduce_scatter", late, meet, Bench::reduce_scatter);
                }
                bench.comm.finalize().unwrap();
            });
        }
    });
}

/// A rank's streams and buffers.
struct Bench {
    comm: Communicator,
    compute: Arc<CudaStream>,
    calls: Arc<CudaStream>,
    block: CudaSlice<f32>,
    all: CudaSlice<f32>,
    scratch: CudaSlice<u8>,
}

impl Bench {
    fn new(comm: Communicator) -> Self {
        let context = comm.context().unwrap();
        let [compute, calls] = [(); 2].map(|()| context.new_stream().unwrap());
        Self {
            block: compute.alloc_zeros(LEN).unwrap(),
            all: compute.alloc_zeros(LEN * RANKS).unwrap(),
            scratch: compute.alloc_zeros(PIECE).unwrap(),
            comm,
            compute,
            calls,
        }
    }

    fn all_gather(&mut self) -> Result<(), Error> {
        let call = self.comm.all_gather(&self.block, &mut self.all);
        call.on(&self.calls)
    }

    fn reduce_scatter(&mut self) -> Result<(), Error> {
        let call = self
            .comm
            .reduce_scatter(&self.all, &mut self.block, RedOp::Sum);
        call.on(&self.calls)
    }

    /// Computes beside a call, and prints when each part began and ended.
    fn measure(
        &mut self,
        name: &str,
        late: Duration,
        meet: &Barrier,
        call: fn(&mut Self) -> Result<(), Error>,
    ) {
        // Not the first call of its kind, for which NCCL connects the ranks.
        call(self).unwrap();
        self.comm.wait(&self.calls).unwrap();
        self.compute.synchronize().unwrap();
        meet.wait();
        if self.comm.rank() > 0 {
            std::thread::sleep(late);
        }
        let start = self.now(&self.calls);
        call(self).unwrap();
        let called = self.now(&self.calls);
        let begin = self.now(&self.compute);
        let pieces: Vec<_> = (0..PIECES).map(|_| self.piece()).collect();
        self.comm.wait(&self.calls).unwrap();
        self.compute.synchronize().unwrap();
        if self.comm.rank() == 0 {
            let at = |event| spark_ccl_cuda::elapsed_ms(&start, event).unwrap();
            let computed = &pieces[PIECES - 1];
            println!(
                "{name}, rank 1 calls {late:?} later: call 0.00 to {:.2} ms, computing {:.2} to \
                 {:.2} ms",
                at(&called),
                at(&begin),
                at(computed)
            );
            let ends: Vec<_> = pieces
                .iter()
                .map(|event| format!("{:.2}", at(event)))
                .collect();
            println!("  pieces end at {} ms", ends.join(" "));
        }
        meet.wait();
    }

    /// Computes for a while; returns the event at its end.
    fn piece(&mut self) -> CudaEvent {
        self.compute.memset_zeros(&mut self.scratch).unwrap();
        self.now(&self.compute)
    }

    fn now(&self, stream: &CudaStream) -> CudaEvent {
        let context = self.comm.context().unwrap();
        let event = context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let event = event.unwrap();
        event.record(stream).unwrap();
        event
    }
}
