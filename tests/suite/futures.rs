//! Handles as futures, polled by a single-threaded executor.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use spark_ccl::{Communicator, RedOp};

use super::ranks::{each, run, run_with};

/// Wakes a thread, and counts the wakes.
struct Waker {
    thread: Thread,
    wakes: AtomicUsize,
}

impl Wake for Waker {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Runs a future to its end. Also returns how often it was woken.
fn block_on<F: IntoFuture>(future: F) -> (F::Output, usize) {
    let waker = Arc::new(Waker {
        thread: std::thread::current(),
        wakes: AtomicUsize::new(0),
    });
    let context = Arc::clone(&waker).into();
    let mut context = Context::from_waker(&context);
    let mut future = pin!(future.into_future());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return (output, waker.wakes.load(Ordering::Relaxed)),
            Poll::Pending => std::thread::park(),
        }
    }
}

async fn exchange(comm: &Communicator) -> Vec<i32> {
    let other = 1 - comm.rank();
    let received = comm.recv(vec![0; 2], other).start().unwrap();
    let sum = comm.all_reduce_in_place(vec![1; 5_000], RedOp::Sum);
    assert_eq!(sum.start().unwrap().await.unwrap(), vec![2; 5_000]);
    let own = vec![comm.rank() as i32; 2];
    let exchanged = comm.send_recv(own.clone(), other, vec![0; 2], other);
    comm.send(own, other).start().unwrap().await.unwrap();
    let (_, again) = exchanged.start().unwrap().await.unwrap();
    let received = received.await.unwrap();
    assert_eq!(received, again);
    received
}

#[test]
fn a_progress_thread_wakes_whoever_awaits_a_call() {
    let builder = Communicator::builder().progress_thread(true);
    run_with(&builder, 2, |comm| {
        let (received, _) = block_on(exchange(comm));
        assert_eq!(received, [1 - comm.rank() as i32; 2]);
    });
}

#[test]
fn without_a_progress_thread_polls_make_progress() {
    run(2, |comm| {
        let (received, _) = block_on(exchange(comm));
        assert_eq!(received, [1 - comm.rank() as i32; 2]);
    });
}

/// It is woken once, for the end of the call.
#[test]
fn a_task_is_not_woken_for_nothing() {
    let builder = Communicator::builder().progress_thread(true);
    run_with(&builder, 2, |comm| {
        // Makes sure that the progress thread runs.
        block_on(comm.barrier().start().unwrap()).0.unwrap();
        let pending = comm.recv(vec![0_u8], 1 - comm.rank()).start().unwrap();
        let send = || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            comm.send(&[7_u8], 1 - comm.rank()).run().unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(send);
            let (received, wakes) = block_on(pending);
            assert_eq!(received.unwrap(), [7]);
            assert!(wakes <= 1, "{wakes} times");
        });
    });
}

#[test]
fn a_fault_wakes_as_well_and_gives_the_buffers_back() {
    let builder = Communicator::builder().progress_thread(true);
    let both_have = Barrier::new(2);
    each(builder.local(2).unwrap(), |comm| {
        let pending = comm.recv(vec![0_u8], 1 - comm.rank()).start().unwrap();
        both_have.wait();
        if comm.rank() == 1 {
            comm.abort("on purpose");
        }
        let failed = block_on(pending).0.unwrap_err();
        assert_eq!((failed.error.ranks(), failed.buffers), (vec![1], vec![0]));
    });
}

/// As in a loop with `select!`.
#[test]
fn a_future_is_polled_by_reference_and_stays_pending_after_its_outcome() {
    fn unpin(_: &impl Unpin) {}
    let builder = Communicator::builder().progress_thread(true);
    run_with(&builder, 2, |comm| {
        let peer = 1 - comm.rank();
        let mut received = comm.recv(vec![0_u8], peer).start().unwrap().into_future();
        unpin(&received);
        comm.send(&[7_u8], peer).run().unwrap();
        assert_eq!(block_on(&mut received).0.unwrap(), [7]);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(pin!(&mut received).poll(&mut context).is_pending());
    });
}
