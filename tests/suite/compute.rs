//! Reductions that are not done at once, as on a GPU.

use std::sync::Barrier;

use spark_ccl::{Communicator, RedOp, ReduceOp};

use super::buffers::Memory;
use super::collectives_model::{COLLECTIVES, Case};
use super::ranks::{each, narrow, run_with};
use super::values::{message, sum_of_messages};

/// Every collective, on both kinds of memory.
fn check_all(comm: &Communicator) {
    for collective in COLLECTIVES {
        let ops = if collective.reduces() {
            &ReduceOp::ALL[..]
        } else {
            &ReduceOp::ALL[..1]
        };
        for &op in ops {
            for in_place in [false, true] {
                for memory in [Memory::Ordinary, Memory::Registered] {
                    let case = Case {
                        op,
                        in_place,
                        memory,
                        root: comm.size() - 1,
                        ..Case::new(collective, 401)
                    };
                    case.check::<f32>(comm);
                }
            }
        }
    }
}

#[test]
fn late_reductions_are_waited_for() {
    for polls in [0, 1, 7] {
        for n in [1, 2, 3, 5] {
            run_with(&narrow().compute_delay(polls), n, check_all);
        }
    }
}

#[test]
fn every_algorithm_waits() {
    for algorithm in [
        "ring",
        "direct",
        "recursive-doubling",
        "halving-doubling",
        "hierarchical",
        "double-tree",
        "binomial",
    ] {
        let builder = narrow().compute_delay(3).set("SPARK_CCL_ALGO", algorithm);
        run_with(&builder, 4, check_all);
    }
}

#[test]
fn messages_and_collectives_in_flight_wait_for_their_own() {
    run_with(&narrow().compute_delay(5), 2, |comm| {
        let peer = 1 - comm.rank();
        for _ in 0..10 {
            let reduce = comm
                .all_reduce_in_place(message::<i32>(comm.rank(), 2, 700), RedOp::Sum)
                .start()
                .unwrap();
            let sent = message::<u8>(comm.rank(), peer, 700);
            let exchange = comm
                .send_recv(sent, peer, vec![99; 700], peer)
                .start()
                .unwrap();
            assert_eq!(
                exchange.wait().unwrap().1,
                message::<u8>(peer, comm.rank(), 700)
            );
            assert_eq!(reduce.wait().unwrap(), sum_of_messages::<i32>(2, 2, 700));
        }
    });
}

#[test]
fn an_abort_waits_only_for_the_reduction_that_touches_the_buffers() {
    let started = Barrier::new(2);
    let comms = narrow().compute_delay(10_000).local(2).unwrap();
    each(comms, |comm| {
        let call = comm.all_reduce_in_place(vec![1_i32; 700], RedOp::Sum);
        let pending = call.start().unwrap();
        started.wait();
        if comm.rank() == 0 {
            comm.abort("too slow");
        }
        let failed = pending.wait().unwrap_err();
        assert!(failed.error.to_string().contains("too slow"), "{failed}");
        assert_eq!(failed.buffers.len(), 700);
    });
}
