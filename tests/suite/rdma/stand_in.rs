//! Ranks over fake RDMA devices, which carry data within the process as badly as RDMA allows: late,
//! in pieces, in any order. They need no emulated machine, so sanitizers see both the program and
//! its devices.

use spark_ccl::{Builder, Carrier, Communicator, Net, RedOp};
use spark_ccl_testing::seed;
use spark_ccl_verbs::testing;

use crate::buffers::Memory;
use crate::collectives_model::{COLLECTIVES, Case};
use crate::ranks::{Watchdog, run_with};
use crate::values::{message, sum_of_messages};

/// Links of two rails.
fn builder() -> Builder {
    Communicator::builder()
        .shared_memory(false)
        .network(Net::Rdma)
        .verbs(testing::network(seed()))
        // A rail is dropped after this timeout, and tried again.
        .set("NCCL_IB_TIMEOUT", "16")
}

fn check_everything(comm: &Communicator, memory: Memory, count: usize) {
    for collective in COLLECTIVES {
        for in_place in [false, true] {
            let case = Case {
                in_place,
                memory,
                root: comm.size() - 1,
                offset: count % 5,
                ..Case::new(collective, count)
            };
            case.check::<f32>(comm);
        }
    }
}

#[test]
fn every_collective_on_every_memory() {
    for n in [2, 3, 4] {
        run_with(&builder(), n, |comm| {
            for memory in [Memory::Ordinary, Memory::Registered, Memory::Own] {
                for count in [0, 1, 1009, 20_011] {
                    check_everything(comm, memory, count);
                }
            }
            let links = comm.links();
            let over_rdma = links
                .iter()
                .filter(|link| link.carrier == Carrier::Rdma)
                .count();
            assert_eq!(over_rdma, n - 1, "{links:?}");
            for link in links.iter().filter(|link| link.carrier == Carrier::Rdma) {
                let route = link.route.as_deref().unwrap();
                assert!(
                    route.contains("loop0") && route.contains("loop1"),
                    "{route}"
                );
            }
        });
    }
}

#[test]
fn small_slots() {
    let builder = builder()
        .set("SPARK_CCL_SLOTS", "2")
        .set("SPARK_CCL_SLOT_BYTES", "128");
    run_with(&builder, 3, |comm| {
        for memory in [Memory::Ordinary, Memory::Registered] {
            check_everything(comm, memory, 1009);
        }
    });
}

#[test]
fn calls_in_flight() {
    run_with(&builder(), 3, |comm| {
        let lengths = [0, 1, 7, 300, 9000, 40_000];
        let start = |(call, &len)| {
            let buffer = message::<u32>(comm.rank(), call, len);
            comm.all_reduce_in_place(buffer, RedOp::Sum)
                .start()
                .unwrap()
        };
        let pending: Vec<_> = lengths.iter().enumerate().map(start).collect();
        for (call, pending) in pending.into_iter().enumerate().rev() {
            let expected = sum_of_messages::<u32>(3, call, lengths[call]);
            assert!(pending.wait().unwrap() == expected, "call {call}");
        }
    });
}

#[test]
fn cables_that_are_cut_in_turn_change_no_result_and_are_used_again() {
    let _watchdog = Watchdog::new();
    let mut ranks = builder().local(2).unwrap();
    let other = ranks.pop().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || reduce_while_cables_are_cut(&other, |_, _| {}));
        // Devices belong to the thread that made the ranks.
        reduce_while_cables_are_cut(&ranks.pop().unwrap(), testing::cut);
    });
}

/// Reduces until both ranks have noticed that `cut` has cut a cable, and until they use it again;
/// one cable after the other.
fn reduce_while_cables_are_cut(comm: &Communicator, cut: impl Fn(usize, bool)) {
    let mut call = 0;
    let mut reduce_until_in_use = |rails: usize| {
        let mut is_so = vec![0_u32];
        while is_so != [1] {
            let buffer = message::<u32>(comm.rank(), call, 50_000);
            let sum = comm.all_reduce_in_place(buffer, RedOp::Sum).run().unwrap();
            assert!(
                sum == sum_of_messages::<u32>(2, call, 50_000),
                "call {call}"
            );
            call += 1;
            is_so[0] = u32::from(comm.rails()[1 - comm.rank()].in_use == rails);
            comm.all_reduce_in_place(&mut is_so, RedOp::Min)
                .run()
                .unwrap();
        }
    };
    reduce_until_in_use(2);
    for device in [0, 1] {
        cut(device, true);
        reduce_until_in_use(1);
        cut(device, false);
        reduce_until_in_use(2);
    }
    comm.finalize().unwrap();
}
