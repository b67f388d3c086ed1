//! One-sided operations: ranks that read memory late, when its owner has failed and has it back,
//! and ranks that mean different memory. Links that fail.

mod far;
mod flush;

use std::collections::HashMap;
use std::sync::Barrier;

use spark_ccl_compute::{Compute, Cpu, Job, Started, Ticket};
use spark_ccl_types::{DType, Operation, RedOp, Reducer, Reduction};

use super::*;
use crate::api::call::{Call, InPlace, Operands, OutOfPlace, OwnedOperands};
use crate::api::communicator::Communicator;
use crate::memory::buffer::Region;
use crate::memory::registered::Registered;
use crate::task::Spec;

/// Elements that a rank contributes, at the least: too many for the links.
const LEN: usize = 5000;

type Buffer = Registered<i32>;
type Make<O> = for<'c> fn(&'c Communicator, Buffer, Buffer) -> Call<'c, i32, O>;

/// Stops before its first job, says so, and goes on when it is told to.
struct Gated {
    cpu: Cpu,
    gate: Option<Arc<Gate>>,
}

struct Gate {
    reached: Barrier,
    opened: Barrier,
}

impl Compute for Gated {
    unsafe fn start(&mut self, job: &Job<'_>) -> Started {
        if let Some(gate) = self.gate.take() {
            gate.reached.wait();
            gate.opened.wait();
        }
        // SAFETY: the caller passes a job that has a source, and none of whose destinations
        // overlaps another operand partly. Operands stay readable, or writable, for its whole
        // length. The caller lets nothing else touch them until `poll` reports the job done, which
        // is once `self.cpu` does.
        unsafe { self.cpu.start(job) }
    }

    fn poll(&mut self, ticket: Ticket) -> bool {
        self.cpu.poll(ticket)
    }
}

/// Buffers of the given lengths. All elements are 1 more than the rank.
fn allocate(comm: &Communicator, lens: [usize; 2]) -> [Buffer; 2] {
    lens.map(|len| {
        let mut buffer = comm.alloc(len).unwrap();
        buffer.fill(comm.rank() as i32 + 1);
        buffer
    })
}

/// Rank 0 gives up after it has done all that rank 1 needs, and gets its memory back. Rank 1, which
/// is about to read it, has heard nothing of that. Its error.
fn read_late<O>(lens: [usize; 2], make: Make<O>, refill: fn(&mut O::Back)) -> Result<(), Error>
where
    O: Operands<i32> + OwnedOperands,
{
    let gate = Arc::new(Gate {
        reached: Barrier::new(2),
        opened: Barrier::new(2),
    });
    let mut comms = Communicator::local(2).unwrap();
    let (late, early) = (comms.remove(1), comms.remove(0));
    let reader = std::thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            let [give, take] = allocate(&late, lens);
            let gated = Gated {
                cpu: Cpu::default(),
                gate: Some(gate),
            };
            let replaced = late
                .membership()
                .with(|engine| engine.wires.compute = Box::new(gated));
            replaced.unwrap();
            make(&late, give, take).run().map(drop)
        }
    });
    let [give, take] = allocate(&early, lens);
    let pending = make(&early, give, take).start().unwrap();
    gate.reached.wait();
    assert!(!pending.test(), "it waits for the other rank");
    early.abort("enough");
    let Err(mut failed) = pending.wait() else {
        panic!("it was aborted");
    };
    refill(&mut failed.buffers);
    gate.opened.wait();
    reader.join().unwrap()
}

fn assert_fails<O>(name: &str, lens: [usize; 2], make: Make<O>, refill: fn(&mut O::Back))
where
    O: Operands<i32> + OwnedOperands,
{
    let error = read_late(lens, make, refill).expect_err(name);
    assert!(error.to_string().contains("enough"), "{name}: {error}");
}

#[test]
fn what_was_read_after_its_owner_has_given_up_is_no_result() {
    type Out = OutOfPlace<Buffer, Buffer>;
    let double = [LEN, 2 * LEN];
    let cases: [(&str, [usize; 2], Make<Out>); 7] = [
        ("all_reduce", [LEN; 2], |comm, give, take| {
            comm.all_reduce(give, take, RedOp::Sum)
        }),
        ("reduce_scatter", [2 * LEN, LEN], |comm, give, take| {
            comm.reduce_scatter(give, take, RedOp::Sum)
        }),
        ("broadcast", [LEN; 2], |comm, give, take| {
            comm.broadcast(give, take, 0)
        }),
        ("reduce", [LEN; 2], |comm, give, take| {
            comm.reduce(give, take, RedOp::Sum, 1)
        }),
        ("gather", double, |comm, give, take| {
            comm.gather(give, take, 1)
        }),
        ("all_gather", double, |comm, give, take| {
            comm.all_gather(give, take)
        }),
        ("all_to_all", [2 * LEN; 2], |comm, give, take| {
            comm.all_to_all(give, take)
        }),
    ];
    for (name, lens, make) in cases {
        assert_fails(name, lens, make, |(give, take)| {
            give.fill(-1);
            take.fill(-1);
        });
    }
}

#[test]
fn so_it_is_in_place() {
    type In = InPlace<Buffer>;
    let cases: [(&str, Make<In>); 6] = [
        ("all_reduce", |comm, it, _| {
            comm.all_reduce_in_place(it, RedOp::Sum)
        }),
        ("reduce_scatter", |comm, it, _| {
            comm.reduce_scatter_in_place(it, RedOp::Sum)
        }),
        ("broadcast", |comm, it, _| comm.broadcast_in_place(it, 0)),
        ("gather", |comm, it, _| comm.gather_in_place(it, 1)),
        ("scatter", |comm, it, _| comm.scatter_in_place(it, 0)),
        ("all_gather", |comm, it, _| comm.all_gather_in_place(it)),
    ];
    for (name, make) in cases {
        assert_fails(name, [2 * LEN, 0], make, |it| it.fill(-1));
    }
}

/// Two places in the memory that the digest in messages' tags does not tell apart.
fn alike(comm: &Communicator, memory: &Registered<u8>) -> [usize; 2] {
    let planner = comm.planner();
    let sum = Reduction::new(Reducer::<u8>::Op(RedOp::Sum), planner.size);
    let spec = Spec::reducing(Operation::AllReduce, DType::U8, sum).in_place();
    let mut seen = HashMap::new();
    for offset in 0..=memory.len() - LEN {
        let region = Region::registered(memory.segment(), offset, LEN);
        let mut task = spec.task((region.clone(), region));
        task.signature.count = LEN as u64;
        planner.locate(&mut task).unwrap();
        if let Some(other) = seen.insert(task.signature.digest(), offset) {
            return [other, offset];
        }
    }
    panic!("all digests differ");
}

#[test]
fn a_digest_is_not_enough_to_reach_into_memory() {
    let ranks = Communicator::local(2).unwrap().into_iter().map(|comm| {
        std::thread::spawn(move || {
            let mut memory = comm.alloc::<u8>(2 << 20).unwrap();
            let start = alike(&comm, &memory)[comm.rank()];
            let view = memory.view_mut(start..start + LEN).unwrap();
            let outcome = comm.all_reduce_in_place(view, RedOp::Sum).run();
            (start, outcome.map(drop).unwrap_err().to_string())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    for (_, error) in &ranks {
        assert!(error.contains("differs between the ranks"), "{error}");
        for (start, _) in &ranks {
            let place = format!("allocations 0 and 0 from bytes {start} and {start} on");
            assert!(error.contains(&place), "{place}: {error}");
        }
    }
}

#[test]
fn a_link_that_fails_within_a_host_is_no_matter_of_the_network() {
    let ranks = Communicator::local(2).unwrap();
    let broken = Barrier::new(2);
    let text = std::thread::scope(|scope| {
        scope.spawn(|| {
            ranks[0].barrier().run().unwrap();
            let withdraw = |engine: &mut Core| engine.wires.withdraw();
            ranks[0].membership().with(withdraw).unwrap();
            broken.wait();
        });
        ranks[1].barrier().run().unwrap();
        broken.wait();
        ranks[1].barrier().run().unwrap_err().to_string()
    });
    assert!(text.contains("the link between rank 1 "), "{text}");
    assert!(text.contains("on one host"), "{text}");
    assert!(!text.contains("check the network"), "{text}");
}

#[test]
fn the_wait_for_a_message_ends_with_the_link() {
    let ranks = Communicator::local(2).unwrap();
    ranks[1]
        .set_timeout(std::time::Duration::from_secs(20))
        .unwrap();
    ranks[0].send(&[1_u8], 1).run().unwrap();
    assert_eq!(ranks[1].recv_vec::<u8>(0).unwrap(), [1]);
    let withdraw = |engine: &mut Core| engine.wires.withdraw();
    ranks[0].membership().with(withdraw).unwrap();
    let text = ranks[1].probe_wait(0).unwrap_err().to_string();
    assert!(text.contains("the link between rank 1 "), "{text}");
    assert!(text.contains("on one host"), "{text}");
}

#[test]
fn the_wait_for_a_message_tells_of_a_rank_that_no_thread_runs() {
    let ranks = Communicator::local(2).unwrap();
    ranks[0]
        .set_timeout(std::time::Duration::from_millis(300))
        .unwrap();
    let error = ranks[0].probe_wait(1).unwrap_err();
    let Some(spark_ccl_control::Fault::TimedOut { late, .. }) = error.fault() else {
        panic!("{error}");
    };
    assert!(late[0].needs_thread, "{error}");
}
