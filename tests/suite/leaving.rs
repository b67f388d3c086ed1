//! Communicators dropped while operations are in flight.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use spark_ccl::{Builder, Communicator, Error, Fault, RedOp};

use crate::processes::{self, place, world};
use crate::ranks::{each, narrow};

/// Over shared memory and TCP, for more data than a link holds.
fn transports() -> [Builder; 2] {
    [narrow(), narrow().shared_memory(false)]
}

const COUNT: usize = 20_000;

#[test]
fn what_is_in_flight_goes_on_when_all_handles_are_dropped() {
    for builder in transports() {
        for communicator_first in [false, true] {
            each(builder.local(3).unwrap(), |comm| {
                let rank = comm.rank();
                let call = comm.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
                let pending = call.start().unwrap();
                match (rank, communicator_first) {
                    (0, false) => {
                        drop(pending);
                        drop(comm);
                    }
                    (0, true) => {
                        drop(comm);
                        drop(pending);
                    }
                    _ => assert_eq!(pending.wait().unwrap(), vec![3; COUNT]),
                }
            });
        }
    }
}

#[test]
fn a_message_whose_sender_has_left_arrives() {
    for builder in transports() {
        each(builder.local(2).unwrap(), |comm| {
            if comm.rank() == 0 {
                drop(comm.send(vec![7_u64; COUNT], 1).start().unwrap());
            } else {
                let mut got = vec![0_u64; COUNT];
                comm.recv(&mut got, 0).run().unwrap();
                assert_eq!(got, vec![7; COUNT]);
            }
        });
    }
}

#[test]
fn registered_memory_in_flight_outlives_its_handles() {
    each(Communicator::local(3).unwrap(), |comm| {
        let mut memory = comm.alloc(100 * COUNT).unwrap();
        memory.fill(1_i32);
        let call = comm.all_reduce_in_place(memory, RedOp::Sum);
        let pending = call.start().unwrap();
        if comm.rank() == 0 {
            drop(pending);
        } else {
            assert!(pending.wait().unwrap().iter().all(|&x| x == 3));
        }
    });
}

#[test]
fn a_part_that_is_dropped_in_flight_goes_on() {
    each(narrow().local(4).unwrap(), |comm| {
        let color = comm.rank() as u32 % 2;
        let part = comm.split(Some(color), 0).unwrap().unwrap();
        let call = part.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
        let pending = call.start().unwrap();
        drop(comm);
        if part.rank() == 0 {
            drop(part);
            drop(pending);
        } else {
            assert_eq!(pending.wait().unwrap(), vec![2; COUNT]);
        }
    });
}

/// Unlike a thread, a process may end at once.
#[test]
fn what_is_in_flight_goes_on_when_the_process_ends() {
    let _place = place();
    for shm in ["0", "1"] {
        let mut ranks = world(2, &[("SPARK_CCL_SHM", shm)]);
        ranks[0].order("leave-in-flight 3000000");
        ranks[0].order("exit");
        assert_eq!(ranks[1].ask("call f32 all_reduce sum 3000000"), "ok");
        assert_eq!(ranks[0].hear(), "ok");
        assert_eq!(ranks[0].ended(), Some(0));
        processes::assert_all_ok(&mut ranks[1..], "drop");
    }
}

/// Threads of one process push each other's operations; processes do not.
#[test]
fn the_progress_thread_ends_what_is_forgotten_when_the_communicator_is_dropped() {
    let _place = place();
    let env = [
        ("SPARK_CCL_PROGRESS_THREAD", "1"),
        ("SPARK_CCL_TIMEOUT", "20"),
    ];
    let mut ranks = world(2, &env);
    assert_eq!(ranks[0].ask("forget-in-flight 3000000"), "ok");
    // By now the thread has checked whether it must end.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ranks[1].ask("call f32 all_reduce sum 3000000"), "ok");
}

fn fault(error: Error) -> Fault {
    match error {
        Error::Failed(fault) => (*fault).clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn nobody_waits_for_ranks_that_have_left() {
    each(narrow().local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            let call = comm.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
            drop(call.start().unwrap());
        }
    });
}

/// Longer than any of these tests takes, unless a rank waits until its operations time out.
const WATCHDOG: Duration = Duration::from_secs(60);

/// As in a function that returns early. The others learn of it at once, and it no longer waits for
/// them.
#[test]
fn a_rank_that_leaves_with_something_in_flight_says_so_at_once() {
    for builder in transports() {
        let has_left = Barrier::new(3);
        each(
            builder.operation_timeout(WATCHDOG).local(3).unwrap(),
            |comm| {
                comm.barrier().run().unwrap();
                if comm.rank() == 0 {
                    let call = comm.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
                    drop(call.start().unwrap());
                    drop(comm);
                    has_left.wait();
                    return;
                }
                // Rank 2 waits in the call that rank 0 has in flight, for rank 1, which makes
                // another call.
                let error = if comm.rank() == 1 {
                    comm.recv(&mut [0_u8; 4], 0).run().unwrap_err()
                } else {
                    let mut values = vec![1_i32; COUNT];
                    let call = comm.all_reduce_in_place(&mut values, RedOp::Sum);
                    call.run().unwrap_err()
                };
                // Of the two causes, rank 0's leaving is reported.
                match fault(error) {
                    Fault::Left {
                        rank,
                        last_sequence,
                        ..
                    } => assert_eq!((rank.rank, last_sequence), (0, 2)),
                    other => panic!("{other}"),
                }
                // They still have their communicators after rank 0 has dropped its own.
                has_left.wait();
            },
        );
    }
}

#[test]
fn what_a_rank_that_leaves_has_begun_is_completed_and_what_comes_next_is_not() {
    for builder in transports() {
        each(
            builder.operation_timeout(WATCHDOG).local(2).unwrap(),
            |comm| {
                if comm.rank() == 0 {
                    drop(comm.send(vec![7_u64; COUNT], 1).start().unwrap());
                    let call = comm.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
                    drop(call.start().unwrap());
                    return;
                }
                // Longer than the control plane takes to name the cause of an unmet wait.
                std::thread::sleep(Duration::from_secs(2));
                let mut got = vec![0_u64; COUNT];
                comm.recv(&mut got, 0).run().unwrap();
                assert_eq!(got, vec![7; COUNT]);
                let mut sum = vec![1_i32; COUNT];
                comm.all_reduce_in_place(&mut sum, RedOp::Sum)
                    .run()
                    .unwrap();
                assert_eq!(sum, vec![2; COUNT]);
                let fault = fault(comm.recv(&mut got, 0).run().unwrap_err());
                assert!(
                    matches!(
                        fault,
                        Fault::Left {
                            last_sequence: 1,
                            ..
                        }
                    ),
                    "{fault}"
                );
                assert!(fault.to_string().contains("point-to-point #2"), "{fault}");
            },
        );
    }
}

#[test]
fn calls_after_finalize_are_refused() {
    let alone = narrow().local(1).unwrap();
    let together = transports().map(|builder| builder.local(2).unwrap());
    for comms in [alone].into_iter().chain(together) {
        let all_have = Barrier::new(comms.len());
        each(comms, |comm| {
            comm.finalize().unwrap();
            let started = comm.send(vec![0_u8], 0).start().map(drop);
            for outcome in [
                comm.barrier().run(),
                started.map_err(Error::from),
                comm.probe(0).map(drop),
                comm.check(),
                comm.finalize(),
            ] {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::Invalid { .. }), "{error}");
                assert!(error.to_string().contains("finalize"), "{error}");
            }
            // The others still have their communicators.
            all_have.wait();
        });
    }
}

#[test]
fn the_wait_for_a_rank_that_calls_nothing_ends_at_the_timeout() {
    let (gone, is_gone) = channel::<()>();
    let is_gone = std::sync::Mutex::new(is_gone);
    let gone = std::sync::Mutex::new(Some(gone));
    each(narrow().local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            comm.set_timeout(Duration::from_secs(1)).unwrap();
            let call = comm.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
            drop(call.start().unwrap());
            drop(comm);
            drop(gone.lock().unwrap().take());
        } else {
            // Disconnected: the other rank has dropped its communicator.
            is_gone.lock().unwrap().recv().unwrap_err();
            // Another thread learns of it; before that, the barrier would be a fault of its own.
            while comm.check().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let fault = fault(comm.barrier().run().unwrap_err());
            assert!(matches!(fault, Fault::TimedOut { .. }), "{fault}");
        }
    });
}

#[test]
fn a_thread_that_panics_does_not_wait() {
    each(narrow().local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let comm = comm;
                let call = comm.all_reduce_in_place(vec![1_i32; COUNT], RedOp::Sum);
                let _pending = call.start().unwrap();
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
        } else {
            // Calls something else than the other rank has in flight.
            let fault = fault(comm.recv(&mut [0_u8; 4], 0).run().unwrap_err());
            assert!(matches!(fault, Fault::Aborted { .. }), "{fault}");
            assert!(fault.to_string().contains("panicked"), "{fault}");
        }
    });
}

/// Its last call is done, and it has nothing in flight.
#[test]
fn who_needs_a_rank_that_panicked_hears_that_it_did() {
    for is_message in [false, true] {
        each(narrow().local(2).unwrap(), |comm| {
            comm.barrier().run().unwrap();
            if comm.rank() == 0 {
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _comm = comm;
                    std::panic::resume_unwind(Box::new("on purpose"));
                }));
                assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
                return;
            }
            let needs = if is_message {
                comm.recv(&mut [0_u8; 4], 0).run()
            } else {
                comm.barrier().run()
            };
            let fault = fault(needs.unwrap_err());
            assert!(matches!(fault, Fault::Aborted { .. }), "{fault}");
            let text = fault.to_string();
            assert!(text.starts_with("rank 0 ("), "{text}");
            assert!(text.contains("its thread panicked: look at"), "{text}");
        });
    }
}

#[test]
fn finalize_says_that_something_in_flight_has_failed() {
    each(narrow().local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            // Rank 1 never sends this.
            drop(comm.recv(vec![0_u8; 100], 1).start().unwrap());
            let fault = fault(comm.finalize().unwrap_err());
            assert!(matches!(fault, Fault::Left { .. }), "{fault}");
            assert!(fault.to_string().contains("rank 1"), "{fault}");
        } else {
            comm.finalize().unwrap();
        }
    });
}

/// The others may not have noticed yet that all have arrived.
#[test]
fn a_process_may_end_at_once_when_it_has_finalized() {
    let _place = place();
    for shm in ["0", "1"] {
        for _ in 0..10 {
            let mut ranks = world(4, &[("SPARK_CCL_SHM", shm)]);
            processes::assert_all_ok(&mut ranks, "finalize-and-exit");
            for rank in &mut ranks {
                assert_eq!(rank.ended(), Some(0));
            }
        }
    }
}
