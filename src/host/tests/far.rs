//! Slots of a link whose cores share no cache.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use spark_ccl_compute::Streaming;
use spark_ccl_transport::{LinkError, LinkTx};

use super::*;

/// A link that takes its peer's core for a far one, or not, wherever that is.
struct Told(Box<dyn LinkTx>, bool);

impl LinkTx for Told {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.0.reserve(len)
    }

    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        self.0.commit(len, tag)
    }

    fn is_far(&self) -> bool {
        self.1
    }

    fn holds_back(&self) -> bool {
        self.0.holds_back()
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.0.flush()
    }
}

/// Counts the jobs whose last destination goes past the caches.
struct Counting(Cpu, Arc<AtomicUsize>);

impl Compute for Counting {
    unsafe fn start(&mut self, job: &Job<'_>) -> Started {
        if job.streaming == Streaming::Last {
            self.1.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller passes a job that has a source, and none of whose destinations
        // overlaps another operand partly. The caller keeps its operands valid, and lets nothing
        // else use them until the job is done, which is when `self.0` says so.
        unsafe { self.0.start(job) }
    }

    fn poll(&mut self, ticket: Ticket) -> bool {
        self.0.poll(ticket)
    }
}

/// The jobs of rank 0, of two, that go past the caches in an `all_reduce` of that many bytes.
fn streamed(bytes: usize, is_far: bool) -> usize {
    let (ranks, count) = (Communicator::local(2).unwrap(), Arc::default());
    let work = |rank: &Communicator| {
        let mut values = vec![rank.rank() as i32 + 1; bytes / 4];
        let mut sum = || rank.all_reduce_in_place(&mut values, RedOp::Sum).run();
        sum().unwrap();
        if rank.rank() == 0 {
            let compute = Counting(Cpu::default(), Arc::clone(&count));
            let change = |engine: &mut Core| {
                engine.wires.compute = Box::new(compute);
                engine
                    .wires
                    .wrap_tx((1, 0), |tx| Box::new(Told(tx, is_far)));
            };
            rank.membership().with(change).unwrap();
            assert_eq!(rank.links()[1].is_far, is_far);
        }
        sum().unwrap();
        assert!(values.iter().all(|&value| value == 6));
    };
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| work(rank));
        }
    });
    count.load(Relaxed)
}

#[test]
fn long_slots_of_a_far_peer_go_past_the_caches() {
    // By one message of each rank, by a schedule of short steps, and by one of long ones.
    for bytes in [16 << 10, 64 << 10, 1 << 20] {
        assert!(streamed(bytes, true) > 0, "{bytes}");
        assert_eq!(streamed(bytes, false), 0, "{bytes}");
    }
    assert_eq!(streamed(8 << 10, true), 0);
}
