//! Handles of operations in flight that are shared, dropped or forgotten.

use std::ops::Deref;
use std::sync::Arc;

use spark_ccl::{Communicator, Pending, RedOp};

use super::ranks::{each, narrow, run, run_with};
use super::values::message;

#[test]
fn closures_of_handles_that_are_dropped_go_at_once() {
    each(Communicator::local(2).unwrap(), |comm| {
        let comm = Arc::new(comm);
        let (other, kept) = (1 - comm.rank(), Arc::clone(&comm));
        let pending = comm.recv(vec![0_u8; 1], other).start().unwrap();
        drop(pending.map(move |buffer| (buffer, kept)));
        assert_eq!(Arc::strong_count(&comm), 1);
        comm.send(&[1_u8], other).run().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn handles_can_be_shared_by_threads() {
    fn shared(_: &impl Sync) {}
    run(2, |comm| {
        let pending = comm.barrier().start().unwrap();
        shared(&pending);
        pending.wait().unwrap();
        comm.scope(|scope| {
            let pending = comm.barrier().start_in(scope)?;
            shared(&pending);
            pending.wait()
        })
        .unwrap();
    });
}

#[test]
fn dropped_handles_let_the_operation_go_on() {
    fn end(pending: Pending<impl Deref<Target = [i32]>>, is_dropped: bool) {
        if is_dropped {
            drop(pending);
        } else {
            assert!(pending.wait().unwrap().iter().all(|&x| x == 3));
        }
    }
    for registered in [false, true] {
        run(3, |comm| {
            for round in 0..20 {
                let is_dropped = comm.rank() == round % 3;
                let buffer = vec![1_i32; 20_000];
                if registered {
                    let mut memory = comm.alloc(20_000).unwrap();
                    memory.copy_from_slice(&buffer);
                    let call = comm.all_reduce_in_place(memory, RedOp::Sum);
                    end(call.start().unwrap(), is_dropped);
                } else {
                    let call = comm.all_reduce_in_place(buffer, RedOp::Sum);
                    end(call.start().unwrap(), is_dropped);
                }
            }
            comm.barrier().run().unwrap();
        });
    }
}

#[test]
fn forgotten_handles_leak_their_buffers_and_nothing_else() {
    run_with(&narrow(), 3, |comm| {
        for round in 0..30 {
            let pending = comm
                .all_reduce(vec![1_i32; 2000], vec![0; 2000], RedOp::Sum)
                .start()
                .unwrap();
            if comm.rank() == round % 3 {
                std::mem::forget(pending);
                // Memory of the same size, which would be the same memory if that had been freed.
                let decoy = vec![-1_i32; 2000];
                comm.barrier().run().unwrap();
                assert!(decoy.iter().all(|&x| x == -1));
            } else {
                assert!(pending.wait().unwrap().1.iter().all(|&x| x == 3));
                comm.barrier().run().unwrap();
            }
        }
    });
}

#[test]
fn a_forgotten_exchange_ends_for_the_peer() {
    run_with(&narrow(), 2, |comm| {
        let (rank, peer) = (comm.rank(), 1 - comm.rank());
        for round in 0..20 {
            let sent = message::<u8>(rank, peer, 5000);
            let call = comm.send_recv(sent, peer, vec![99; 5000], peer);
            let pending = call.start().unwrap();
            if rank == round % 2 {
                std::mem::forget(pending);
            } else {
                assert!(pending.wait().unwrap().1 == message::<u8>(peer, rank, 5000));
            }
            comm.barrier().run().unwrap();
        }
    });
}
