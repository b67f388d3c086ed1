//! Waits so long that the waiter blocks in the kernel: anything it waits for ends them.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use spark_ccl::{Builder, Communicator, RedOp};

use crate::processes::{WATCHDOG, assert_all_ok, assert_contains, place, world};
use crate::ranks::{connected, each, run_with};

/// Longer than a waiter spins and yields.
const LONG: Duration = Duration::from_millis(30);
const TCP: &[(&str, &str)] = &[("SPARK_CCL_SHM", "0")];
const SHM: &[(&str, &str)] = &[];

fn builders() -> [Builder; 2] {
    let sockets = Communicator::builder().shared_memory(false);
    [Communicator::builder(), sockets]
}

/// Each rank in turn is late for a sum of this many elements.
fn sum_late(comm: &Communicator, count: usize) {
    for late in 0..comm.size() {
        if comm.rank() == late {
            std::thread::sleep(LONG);
        }
        let mut buffer = vec![comm.rank() as u64 + 1; count];
        comm.all_reduce_in_place(&mut buffer, RedOp::Sum)
            .run()
            .unwrap();
        let expected = comm.size() * (comm.size() + 1) / 2;
        assert!(buffer.iter().all(|&sum| sum == expected as u64));
    }
}

#[test]
fn threads_wait_for_a_late_message() {
    for builder in builders() {
        for size in [2, 3] {
            run_with(&builder, size, |comm| {
                for count in [1, 1000, 100_000] {
                    sum_late(comm, count);
                }
            });
            each(connected(&builder, size), |comm| sum_late(&comm, 1000));
        }
    }
}

#[test]
fn processes_wait_for_a_late_message() {
    let _place = place();
    for env in [SHM, TCP] {
        let mut ranks = world(3, env);
        for late in 0..ranks.len() {
            for (number, rank) in ranks.iter_mut().enumerate() {
                if number == late {
                    rank.order("sleep 30");
                    assert_eq!(rank.hear(), "ok");
                }
                rank.order("call f32 all_reduce sum 1000");
            }
            for rank in &ranks {
                assert_eq!(rank.hear(), "ok");
            }
        }
        assert_all_ok(&mut ranks, "finalize");
    }
}

/// More than fits into a link, copied (a little at a time) or lent (all at once).
#[test]
fn a_sender_waits_for_a_late_receiver() {
    for builder in builders() {
        for count in [100_000, 4_000_000] {
            run_with(&builder, 2, |comm| {
                let mut buffer = vec![comm.rank() as u32; count];
                if comm.rank() == 0 {
                    comm.send(&buffer, 1).run().unwrap();
                } else {
                    std::thread::sleep(LONG);
                    comm.recv(&mut buffer, 0).run().unwrap();
                }
                assert!(buffer.iter().all(|&x| x == 0));
            });
        }
    }
}

/// The broadcast ends for its root when the others have read what it lends.
#[test]
fn a_root_waits_for_late_readers() {
    for builder in builders() {
        run_with(&builder, 3, |comm| {
            for root in 0..3 {
                if comm.rank() != root {
                    std::thread::sleep(LONG);
                }
                let mut buffer = vec![comm.rank() as u8; 1 << 20];
                comm.broadcast_in_place(&mut buffer, root).run().unwrap();
                assert!(buffer.iter().all(|&x| usize::from(x) == root));
            }
        });
    }
}

/// Messages in both directions, while other messages are there that nobody asks for yet.
#[test]
fn messages_for_later_calls_end_no_wait() {
    for builder in builders() {
        run_with(&builder, 2, |comm| {
            let (rank, peer) = (comm.rank(), 1 - comm.rank());
            let early = comm.send(vec![7_u8; 100], peer).start().unwrap();
            for late in 0..2 {
                if rank == late {
                    std::thread::sleep(LONG);
                }
                comm.barrier().run().unwrap();
            }
            let got = comm.recv(vec![0_u8; 100], peer).run().unwrap();
            assert_eq!(got, vec![7; 100]);
            early.wait().unwrap();
        });
    }
}

/// One of two threads blocks for the links, and does the other's work, too.
#[test]
fn two_threads_wait_on_one_communicator() {
    for builder in builders() {
        run_with(&builder, 2, |comm| {
            let peer = 1 - comm.rank();
            for round in 0..4_u8 {
                std::thread::scope(|scope| {
                    let receive = || comm.recv(vec![0_u8; 50], peer).run().unwrap();
                    let receiver = scope.spawn(receive);
                    let summing = scope.spawn(|| {
                        if usize::from(round % 2) == comm.rank() {
                            std::thread::sleep(LONG);
                        }
                        comm.barrier().run().unwrap();
                    });
                    std::thread::sleep(LONG * u32::from(round % 3));
                    comm.send(vec![round; 50], peer).run().unwrap();
                    assert_eq!(receiver.join().unwrap(), vec![round; 50]);
                    summing.join().unwrap();
                });
            }
        });
    }
}

/// While a thread blocks for one communicator, it advances the others that need it.
#[test]
fn a_thread_waits_on_one_of_two_communicators() {
    for builder in builders() {
        let firsts = builder.local(2).unwrap();
        let seconds = builder.local(2).unwrap();
        let pairs: Vec<_> = firsts.into_iter().zip(seconds).collect();
        std::thread::scope(|scope| {
            for (first, second) in pairs {
                scope.spawn(move || {
                    let sum = |comm: &Communicator| {
                        let ones = vec![1_u32; 100_000];
                        comm.all_reduce_in_place(ones, RedOp::Sum).start().unwrap()
                    };
                    // The peer waits for the other communicator first.
                    let (one, other) = (sum(&first), sum(&second));
                    let (sooner, later) = match first.rank() {
                        0 => (one, other),
                        _ => (other, one),
                    };
                    for pending in [sooner, later] {
                        assert!(pending.wait().unwrap().iter().all(|&x| x == 2));
                        std::thread::sleep(LONG);
                    }
                });
            }
        });
    }
}

#[test]
fn an_abort_ends_a_long_wait() {
    for builder in builders() {
        for by in 0..2 {
            each(builder.local(2).unwrap(), |comm| {
                if comm.rank() == 0 && by == 0 {
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            std::thread::sleep(LONG);
                            comm.abort("enough");
                        });
                        let error = comm.barrier().run().unwrap_err().to_string();
                        assert_contains(&error, &["aborted the communicator: enough"]);
                    });
                } else if comm.rank() == 0 {
                    let error = comm.barrier().run().unwrap_err().to_string();
                    assert_contains(&error, &["aborted the communicator: enough"]);
                } else if by == 1 {
                    std::thread::sleep(LONG);
                    comm.abort("enough");
                } else {
                    // In no call until the news arrives: a rank that leaves before would be the
                    // cause.
                    while comm.check().is_ok() {
                        std::thread::sleep(LONG / 10);
                    }
                }
            });
        }
    }
}

#[test]
fn a_long_wait_ends_at_its_deadline() {
    const DEADLINE: Duration = Duration::from_millis(300);
    for builder in builders() {
        let builder = builder.operation_timeout(DEADLINE);
        let waited = each(builder.local(2).unwrap(), |comm| {
            let begin = Instant::now();
            let result = comm.recv(vec![0_u8; 10], 1 - comm.rank()).run();
            let error = result.unwrap_err().to_string();
            assert_contains(&error, &["gave up after ", "recv(count 10"]);
            begin.elapsed()
        });
        // The first to give up ends the call of one that begins later.
        assert!(waited.iter().max() >= Some(&DEADLINE), "{waited:?}");
    }
}

#[test]
fn ranks_that_share_a_thread_are_told_from_late_ones() {
    let builder = Communicator::builder().operation_timeout(Duration::from_secs(1));
    let comms = builder.local(2).unwrap();
    let text = comms[0].barrier().run().unwrap_err().to_string();
    for part in ["rank 1 (", "each rank needs a thread of its own"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    // Here each rank has its own thread, and one does something else.
    let gave_up = Barrier::new(2);
    each(builder.local(2).unwrap(), |comm| {
        comm.barrier().timeout(WATCHDOG).run().unwrap();
        if comm.rank() == 0 {
            let text = comm.barrier().run().unwrap_err().to_string();
            assert!(text.contains("rank 1 ("), "{text}");
            assert!(!text.contains("each rank needs"), "{text}");
        }
        gave_up.wait();
    });
}
