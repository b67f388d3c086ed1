//! Operations in flight: the order of waiting, and the return of buffers.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spark_ccl::{Communicator, Error, ExitClass, Pending, RedOp, ScopedPending};

use super::processes::WATCHDOG;
use super::ranks::{Watchdog, each, narrow, run, run_with};
use super::values::{message, sum_of_messages};

/// All orders of `0..len`.
fn permutations(len: usize) -> Vec<Vec<usize>> {
    if len == 0 {
        return vec![vec![]];
    }
    let shorter = permutations(len - 1);
    let insert = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, len - 1);
        order
    };
    shorter
        .iter()
        .flat_map(|order| (0..len).map(move |at| insert(order, at)))
        .collect()
}

#[test]
fn any_order_of_waiting() {
    run_with(&narrow(), 3, |comm| {
        // Each rank waits in another order.
        let orders = permutations(4);
        for first in 0..orders.len() {
            let order = &orders[(first + comm.rank() * 7) % orders.len()];
            let start = |i: usize| {
                let buffer = message::<i32>(comm.rank(), i, 50 * i + 20);
                comm.all_reduce_in_place(buffer, RedOp::Sum).start().ok()
            };
            let mut pending: Vec<_> = (0..4).map(start).collect();
            for &i in order {
                let sums = pending[i].take().unwrap().wait().unwrap();
                assert_eq!(sums, sum_of_messages::<i32>(3, i, 50 * i + 20));
            }
        }
    });
}

#[test]
fn testing_makes_progress() {
    run_with(&narrow(), 2, |comm| {
        let pending = comm
            .all_reduce(vec![1_u64; 5000], vec![0; 5000], RedOp::Sum)
            .start()
            .unwrap();
        while !pending.test() {
            std::thread::yield_now();
        }
        assert!(pending.test());
        let (ones, twos) = pending.wait().unwrap();
        assert!(ones.iter().all(|&x| x == 1) && twos.iter().all(|&x| x == 2));
    });
}

/// Buffers passed by value come back; borrowed ones do not.
#[test]
fn owned_buffers_come_back() {
    run(1, |comm| {
        let (own, mut all) = (vec![7_u8; 3], [0_u8; 3]);
        let mut memory = comm.alloc::<u8>(3).unwrap();
        let mut calls = || -> Result<(), Error> {
            comm.all_reduce(&own, &mut all, RedOp::Sum).run()?;
            comm.all_gather(&own[..], memory.view_mut(0..3)?).run()
        };
        calls().unwrap();
        let sent = comm.all_gather(own.clone(), &mut all).run().unwrap();
        let received = comm.all_gather(&own, memory).run().unwrap();
        assert_eq!((&sent[..], &received[..]), (&own[..], &own[..]));
        let pending = comm.all_gather(sent, vec![0; 3]).start().unwrap();
        assert_eq!(pending.wait().unwrap(), (own.clone(), own));
    });
}

#[test]
fn a_wait_may_be_limited() {
    run(2, |comm| {
        let other = 1 - comm.rank();
        let pending = comm.recv(vec![0_u8], other).start().unwrap();
        for limit in [Duration::ZERO, Duration::from_millis(30)] {
            assert!(!pending.wait_for(limit), "nobody has sent yet");
        }
        let pending = pending.try_wait().expect_err("nobody has sent yet");
        comm.barrier().run().unwrap();
        comm.send(&[7_u8], other).run().unwrap();
        assert!(pending.wait_for(Duration::MAX));
        let outcome = pending.try_wait().expect("it is done");
        assert_eq!(outcome.unwrap(), [7]);
    });
}

#[test]
fn what_has_failed_is_done() {
    let both_have = Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        let pending = comm.recv(vec![0_u8], 1 - comm.rank()).start().unwrap();
        both_have.wait();
        comm.abort("on purpose");
        assert!(pending.wait_for(Duration::MAX));
        let outcome = pending.try_wait().expect("it is done");
        assert_eq!(outcome.unwrap_err().buffers, [0]);
    });
}

#[test]
fn a_scope_has_the_same_waits() {
    run(2, |comm| {
        let other = 1 - comm.rank();
        let mut received = [[0_u8; 2]; 2];
        let [late, early] = &mut received;
        let waits = comm.scope(|scope| {
            let early = comm.recv(early, other).start_in(scope)?;
            let late = comm.recv(late, other).start_in(scope)?;
            assert!(!early.wait_for(Duration::from_millis(30)));
            comm.barrier().run()?;
            comm.send(&[1_u8, 2], other).run()?;
            let both = [late, early];
            assert_eq!(ScopedPending::wait_any(both.iter().rev()), Some(0));
            let [late, early] = both;
            early.try_wait().expect("it is done")?;
            let late = late.try_wait().expect_err("it is under way");
            comm.barrier().run()?;
            comm.send(&[3_u8, 4], other).run()?;
            late.wait().map(drop)
        });
        waits.unwrap();
        assert_eq!(received, [[3, 4], [1, 2]]);
    });
}

#[test]
fn the_first_of_several_to_be_done_is_named() {
    run(2, |comm| {
        let other = 1 - comm.rank();
        assert_eq!(Pending::<()>::wait_any(&[]), None);
        let late = comm.recv(vec![0_i32; 3], other).start().unwrap();
        let early = comm.all_reduce_in_place(vec![1.5_f64; 3], RedOp::Sum);
        let early = early.start().unwrap();
        let mut both = vec![late.map(Message::Late), early.map(Message::Early)];
        assert_eq!(Pending::wait_any(&both), Some(1), "nobody has sent yet");
        assert_eq!(Pending::wait_any(both.iter().rev()), Some(0));
        assert_eq!(both.remove(1).wait().unwrap(), Message::Early(vec![3.0; 3]));
        // Waits until the other rank gets here.
        comm.barrier().run().unwrap();
        comm.send(vec![7_i32; 3], other)
            .start()
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(Pending::wait_any(&both), Some(0));
        assert_eq!(both.remove(0).wait().unwrap(), Message::Late(vec![7; 3]));
    });
}

#[derive(Debug, PartialEq)]
enum Message {
    Early(Vec<f64>),
    Late(Vec<i32>),
}

#[test]
fn operations_of_several_communicators_are_waited_for_together() {
    run(2, |comm| {
        let split = comm.split(Some(0), 0).unwrap().unwrap();
        let waits = comm.recv(vec![0_u8; 1], 1 - comm.rank()).start().unwrap();
        let sum = split.all_reduce_in_place(vec![2_u8], RedOp::Sum);
        let both = [waits, sum.start().unwrap()];
        assert_eq!(Pending::wait_any(&both), Some(1));
        // Waits until the other rank gets here.
        comm.barrier().run().unwrap();
        comm.send(&[1_u8], 1 - comm.rank()).run().unwrap();
        let [waits, sum] = both;
        assert_eq!(
            (waits.wait().unwrap(), sum.wait().unwrap()),
            (vec![1], vec![4])
        );
    });
}

/// A late rank's operation is not the first in the list, and nobody waits for it alone.
#[test]
fn operations_that_are_waited_for_together_have_their_timeouts() {
    let has_waited = Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        let split = comm.split(Some(0), 0).unwrap().unwrap();
        comm.barrier().run().unwrap();
        if comm.rank() == 1 {
            // A rank that leaves would end the first operation's wait.
            has_waited.wait();
            return;
        }
        comm.set_timeout(WATCHDOG).unwrap();
        split.set_timeout(Duration::from_secs(1)).unwrap();
        let both = [&comm, &split].map(|comm| comm.recv(vec![0_u8; 1], 1).start().unwrap());
        assert_eq!(Pending::wait_any(&both), Some(1));
        let [_, late] = both;
        let error = late.wait().unwrap_err().error;
        has_waited.wait();
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
    });
}

#[test]
fn a_communicator_that_threads_share_can_be_finalized() {
    each(Communicator::local(2).unwrap(), |comm| {
        let comm = std::sync::Arc::new(comm);
        let other = std::sync::Arc::clone(&comm);
        comm.barrier().run().unwrap();
        other.finalize().unwrap();
    });
}

#[test]
fn a_failure_that_a_test_has_seen_is_told_by_the_wait() {
    let both_wait = Barrier::new(2);
    // Both communicators fail: no orderly end.
    each(Communicator::local(2).unwrap(), |comm| {
        let pending = comm.recv(vec![0_u8; 10], 1 - comm.rank()).start().unwrap();
        // Not a collective barrier: the first rank to leave it aborts, and would fail it for the
        // other.
        both_wait.wait();
        comm.abort("enough");
        while !pending.test() {
            std::thread::yield_now();
        }
        let failed = pending.wait().unwrap_err();
        assert!(matches!(failed.error, Error::Failed(_)));
    });
}

#[test]
fn buffers_come_back_as_they_were_passed() {
    run(2, |comm| {
        let vec = Vec::<f32>::with_capacity(100);
        let (at, capacity) = (vec.as_ptr(), vec.capacity());
        let vec = comm
            .all_reduce_in_place(vec, RedOp::Sum)
            .start()
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!((vec.as_ptr(), vec.capacity()), (at, capacity));

        let boxed = vec![1_u8; 40].into_boxed_slice();
        let at = boxed.as_ptr();
        let boxed = comm
            .broadcast_in_place(boxed, 0)
            .start()
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(
            (boxed.as_ptr(), boxed),
            (at, vec![1; 40].into_boxed_slice())
        );

        let shared: std::sync::Arc<[i8]> = vec![1; 30].into();
        let memory = comm.alloc::<i8>(30).unwrap();
        let at = memory.as_ptr();
        let call = comm.all_reduce(shared.clone(), memory, RedOp::Sum);
        let (same, memory) = call.start().unwrap().wait().unwrap();
        assert!(std::sync::Arc::ptr_eq(&same, &shared));
        assert_eq!(memory.as_ptr(), at);
        assert!(memory.iter().all(|&x| x == 2));

        let (_, got) = comm
            .all_gather(vec![1, 2, 3], vec![0; 6])
            .start()
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(got, [1, 2, 3, 1, 2, 3]);
    });
}

/// Both ranks send more than the link holds, before either receives.
fn cross(comm: &Communicator, receive_first: bool) {
    let (rank, peer, len) = (comm.rank(), 1 - comm.rank(), 10_000);
    let expected = [message::<u32>(rank, peer, len), message(peer, rank, len)];
    let message = expected[0].clone();
    let (sending, receiving) = if receive_first {
        let receiving = comm.recv(vec![0; len], peer).start().unwrap();
        (comm.send(message, peer).start().unwrap(), receiving)
    } else {
        let sending = comm.send(message, peer).start().unwrap();
        (sending, comm.recv(vec![0; len], peer).start().unwrap())
    };
    let (sent, got) = if receive_first {
        let sent = sending.wait().unwrap();
        (sent, receiving.wait().unwrap())
    } else {
        let got = receiving.wait().unwrap();
        (sending.wait().unwrap(), got)
    };
    assert!([sent, got] == expected);
}

#[test]
fn messages_larger_than_the_link_cross() {
    let sockets = narrow().shared_memory(false);
    for builder in [narrow(), sockets] {
        run_with(&builder, 2, |comm| {
            for receive_first in [false, true, comm.rank() == 0] {
                cross(comm, receive_first);
            }
        });
    }
}

/// Polls do everything that a wait does.
#[test]
fn looks_of_no_length_end_at_the_timeout() {
    let is_over = Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            let short = Duration::from_millis(300);
            let barrier = comm.barrier().timeout(short).start().unwrap();
            while !barrier.wait_for(Duration::ZERO) {}
            let error = barrier.wait().unwrap_err().error;
            assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
            assert_eq!(error.ranks(), [1], "{error}");
        }
        is_over.wait();
    });
}

#[test]
fn messages_and_collectives_do_not_wait_for_each_other() {
    run_with(&narrow(), 2, |comm| {
        let (rank, peer) = (comm.rank(), 1 - comm.rank());
        // One rank reduces first, the other exchanges first.
        let reduce = || {
            comm.all_reduce_in_place(message::<i32>(rank, 2, 3000), RedOp::Sum)
                .start()
                .unwrap()
        };
        let exchange = || {
            comm.send_recv(message::<i64>(rank, peer, 3000), peer, vec![-1; 3000], peer)
                .start()
                .unwrap()
        };
        for _ in 0..20 {
            let (sums, (_, got)) = if rank == 0 {
                let (reducing, exchanging) = (reduce(), exchange());
                let sums = reducing.wait().unwrap();
                (sums, exchanging.wait().unwrap())
            } else {
                let (exchanging, reducing) = (exchange(), reduce());
                let got = exchanging.wait().unwrap();
                (reducing.wait().unwrap(), got)
            };
            assert!(sums == sum_of_messages::<i32>(2, 2, 3000));
            assert!(got == message::<i64>(peer, rank, 3000));
        }
    });
}

#[test]
fn the_progress_thread_completes_operations_without_calls() {
    let builder = narrow().progress_thread(true);
    let waited = AtomicUsize::new(0);
    run_with(&builder, 3, |comm| {
        let mut memory = vec![comm.rank() as i32; 10_000];
        let pending = comm
            .all_reduce_in_place(memory, RedOp::Sum)
            .start()
            .unwrap();
        if comm.rank() == 0 {
            // The others end even though this rank makes no calls meanwhile.
            while waited.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
            memory = pending.wait().unwrap();
        } else {
            memory = pending.wait().unwrap();
            waited.fetch_add(1, Ordering::Release);
        }
        assert!(memory.iter().all(|&x| x == 3));
    });
}

#[test]
fn threads_share_a_communicator() {
    let _watchdog = Watchdog::new();
    let comms = Communicator::local(2).unwrap();
    std::thread::scope(|scope| {
        for comm in &comms {
            let peer = 1 - comm.rank();
            // A thread for each direction of messages, and a third one for the collectives.
            scope.spawn(move || {
                for i in 0..200_u32 {
                    comm.send(&vec![i; 500], peer).run().unwrap();
                }
            });
            scope.spawn(move || {
                let mut got = vec![0_u32; 500];
                for i in 0..200 {
                    comm.recv(&mut got, peer).run().unwrap();
                    assert!(got.iter().all(|&x| x == i));
                }
            });
            scope.spawn(move || {
                for i in 0..100 {
                    let mut sum = [i; 10];
                    comm.all_reduce_in_place(&mut sum, RedOp::Sum)
                        .run()
                        .unwrap();
                    assert_eq!(sum, [2 * i; 10]);
                }
            });
        }
    });
}

#[test]
fn operations_in_flight_outlive_the_communicator_value() {
    each(Communicator::local(2).unwrap(), |comm| {
        let first = comm
            .all_reduce_in_place(vec![1_i32; 10], RedOp::Sum)
            .start()
            .unwrap();
        let second = comm
            .all_reduce_in_place(vec![2_i32; 50_000], RedOp::Sum)
            .start()
            .unwrap();
        drop(comm);
        // All ranks have made the call, so leaving does not take it back.
        assert_eq!(second.wait().unwrap(), vec![4; 50_000]);
        assert_eq!(first.wait().unwrap(), vec![2; 10]);
    });
}
