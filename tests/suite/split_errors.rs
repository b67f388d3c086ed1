//! Wrong arguments: each is an error before anything moves, and the communicator continues.

use spark_ccl::{Blocks, Communicator, DType, Error, Net, Operation, RedOp};

use super::collectives_model::Case;
use super::ranks::run;

/// Checks the operation of a call's error, and its text.
fn refused<R>(operation: &str, parts: &[&str], result: Result<R, Error>) {
    let Err(Error::Invalid {
        operation: named,
        problem,
    }) = result.map(drop)
    else {
        panic!("{operation} was not refused, or otherwise");
    };
    assert_eq!(named, operation);
    for part in parts {
        assert!(
            problem.contains(part),
            "{operation}: no {part:?} in {problem:?}"
        );
    }
}

fn wrong_lengths(comm: &Communicator) {
    let send = vec![0_f32; 10];
    let mut recv = vec![0_f32; 11];
    let sum = RedOp::Sum;
    let (ten, eleven) = (&["10"][..], &["11"][..]);
    refused(
        "all_reduce",
        &["10", "11"],
        comm.all_reduce(&send, &mut recv, sum).run(),
    );
    refused(
        "all_gather",
        &["30", "11"],
        comm.all_gather(&send, &mut recv).run(),
    );
    refused(
        "reduce_scatter",
        &["33", "10"],
        comm.reduce_scatter(&send, &mut recv, sum).run(),
    );
    refused(
        "all_to_all",
        &["10", "11"],
        comm.all_to_all(&send, &mut recv).run(),
    );
    refused(
        "all_to_all",
        &["10", "3 ranks"],
        comm.all_to_all(&send, &mut recv[..10]).run(),
    );
    refused(
        "all_gather",
        eleven,
        comm.all_gather_in_place(&mut recv).run(),
    );
    refused(
        "reduce_scatter",
        eleven,
        comm.reduce_scatter_in_place(&mut recv, sum).run(),
    );
    refused(
        "all_to_all",
        eleven,
        comm.all_to_all_in_place(&mut recv).run(),
    );
    refused(
        "all_reduce",
        ten,
        comm.all_reduce(&send, &mut [0.0; 0], sum).run(),
    );
}

/// Only the root's other buffer is checked.
fn wrong_lengths_at_the_root(comm: &Communicator) {
    let send = vec![0_f32; 10];
    let mut recv = vec![0_f32; 11];
    let (root, eleven) = (comm.rank(), &["11"][..]);
    refused("gather", eleven, comm.gather_in_place(&mut recv, 0).run());
    refused("scatter", eleven, comm.scatter_in_place(&mut recv, 0).run());
    refused(
        "broadcast",
        &["10", "11"],
        comm.broadcast(&send, &mut recv, root).run(),
    );
    refused(
        "reduce",
        &["10", "11"],
        comm.reduce(&send, &mut recv, RedOp::Sum, root).run(),
    );
    refused(
        "gather",
        &["30", "11"],
        comm.gather(&send, &mut recv, root).run(),
    );
    refused(
        "scatter",
        &["33", "10"],
        comm.scatter(&send, &mut recv, root).run(),
    );
}

fn wrong_ranks(comm: &Communicator) {
    let send = vec![0_i32; 3];
    let mut recv = vec![0; 3];
    for rank in [3, usize::MAX] {
        let text = rank.to_string();
        let parts = [text.as_str(), "0 to 2"];
        refused(
            "broadcast",
            &parts,
            comm.broadcast(&send, &mut recv, rank).run(),
        );
        refused(
            "broadcast",
            &parts,
            comm.broadcast_in_place(&mut recv, rank).run(),
        );
        refused(
            "reduce",
            &parts,
            comm.reduce(&send, &mut recv, RedOp::Max, rank).run(),
        );
        refused("gather", &parts, comm.gather(&send, &mut recv, rank).run());
        refused(
            "scatter",
            &parts,
            comm.scatter(&send, &mut recv, rank).run(),
        );
        refused("send", &parts, comm.send(&send, rank).run());
        refused("recv", &parts, comm.recv(&mut recv, rank).run());
        refused(
            "send_recv",
            &parts,
            comm.send_recv(&send, rank, &mut recv, 0).run(),
        );
        refused(
            "send_recv",
            &parts,
            comm.send_recv(&send, 0, &mut recv, rank).run(),
        );
        refused("peer", &[&text], comm.peer(rank));
    }
}

fn wrong_tables(comm: &Communicator) {
    let send = vec![0_u8; 9];
    let call = |send_counts: &[usize],
                send_displs: &[usize],
                recv_counts: &[usize],
                recv_displs: &[usize]| {
        let mut recv = vec![0_u8; 9];
        let send_blocks = Blocks::at(send_counts, send_displs);
        let recv_blocks = Blocks::at(recv_counts, recv_displs);
        comm.all_to_all_v(&send, send_blocks, &mut recv, recv_blocks)
            .run()
    };
    let (three, at) = (&[3; 3][..], &[0, 3, 6][..]);
    let name = "all_to_all_v";
    refused(
        name,
        &["send", "2", "3 ranks"],
        call(&[3, 3], at, three, at),
    );
    refused(
        name,
        &["send", "4", "3 ranks"],
        call(three, &[0; 4], three, at),
    );
    refused(name, &["receive", "3 ranks"], call(three, at, &[], at));
    refused(name, &["receive", "3 ranks"], call(three, at, three, &[0]));
    refused(
        name,
        &["send", "rank 2", "7", "9"],
        call(three, &[0, 3, 7], three, at),
    );
    refused(
        name,
        &["receive", "rank 0", "9"],
        call(three, at, &[10, 0, 0], &[0; 3]),
    );
    refused(name, &["send"], call(three, &[usize::MAX, 0, 0], three, at));
    for begins in [[0, 2, 6], [6, 4, 0]] {
        let overlap = call(three, at, three, &begins);
        refused(name, &["receive blocks", "0", "1", "overlap"], overlap);
    }
    let own = comm.rank();
    let mut other = [3; 3];
    other[own] = 2;
    refused(name, &["itself", "3", "2"], call(three, at, &other, at));
}

#[test]
fn wrong_arguments_are_named_and_change_nothing() {
    run(3, |comm| {
        wrong_lengths(comm);
        wrong_lengths_at_the_root(comm);
        wrong_ranks(comm);
        wrong_tables(comm);
        refused(
            "explain",
            &["send_recv"],
            comm.explain(Operation::SendRecv, DType::F32, 1, false),
        );
        comm.check().unwrap();
        Case::new(Operation::AllReduce, 1009).check::<f32>(comm);
    });
}

#[test]
fn buffers_of_a_call_that_cannot_start_come_back() {
    run(2, |comm| {
        let (send, recv) = (vec![1_u8; 3], vec![2_u8; 4]);
        let at = send.as_ptr();
        let failed = comm
            .all_reduce(send, recv, RedOp::Sum)
            .start()
            .err()
            .unwrap();
        assert!(matches!(failed.error, Error::Invalid { .. }));
        let (send, recv) = failed.buffers;
        assert_eq!((send.as_ptr(), send, recv), (at, vec![1; 3], vec![2; 4]));
    });
}

#[test]
fn no_ranks_are_refused() {
    assert!(Communicator::local(0).is_err());
    let id = Communicator::builder().unique_id().unwrap();
    for (rank, size) in [(0, 0), (1, 1), (usize::MAX, 2), (5, usize::MAX)] {
        let error = Communicator::connect(&id, rank, size).unwrap_err();
        assert_eq!(error.exit_class(), spark_ccl::ExitClass::Usage, "{error}");
    }
}

#[test]
fn settings_that_cannot_be_understood_are_refused() {
    let wrong = [
        ("SPARK_CCL_SLOT_BYTES", "100"),
        ("SPARK_CCL_SLOTS", "1"),
        ("SPARK_CCL_PATH", "fast"),
        ("SPARK_CCL_ALGO", "magic"),
        ("SPARK_CCL_TIMEOUT", "-1"),
        ("SPARK_CCL_PROGRESS_THREAD", "perhaps"),
    ];
    for (name, value) in wrong {
        let error = Communicator::builder()
            .set(name, value)
            .local(1)
            .unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert!(text.contains(name) && text.contains(value), "{text}");
    }
}

#[test]
fn rdma_that_is_demanded_and_is_not_there_is_an_error_that_says_why() {
    let error = Communicator::builder()
        .network(Net::Rdma)
        .shared_memory(false)
        .set("SPARK_CCL_IBVERBS_LIBRARY", "/nowhere/libibverbs.so.1")
        .local(2)
        .unwrap_err();
    let text = error.to_string();
    for part in [
        "setting up RDMA: rank 0",
        "/nowhere/libibverbs.so.1",
        "SPARK_CCL_NET=tcp",
    ] {
        assert!(text.contains(part), "{text}");
    }
}
