//! Point-to-point messages, and exchanges of blocks of different lengths.

use spark_ccl::{Blocks, Communicator, Error};

use super::ranks::{each, narrow, run, run_with};
use super::values;

fn message(from: usize, to: usize, len: usize) -> Vec<i32> {
    values::message(from, to, len)
}

#[test]
fn a_ring_of_messages() {
    for n in [1, 2, 3, 8] {
        for builder in [
            Communicator::builder(),
            narrow(),
            Communicator::builder().shared_memory(false),
        ] {
            run_with(&builder, n, |comm| {
                let (rank, next, last) = (
                    comm.rank(),
                    (comm.rank() + 1) % n,
                    (comm.rank() + n - 1) % n,
                );
                for len in [0, 1, 100, 5000] {
                    let mut got = vec![0; len];
                    comm.send_recv(&message(rank, next, len), next, &mut got, last)
                        .run()
                        .unwrap();
                    assert_eq!(got, message(last, rank, len));
                }
            });
        }
    }
}

#[test]
fn messages_arrive_in_order() {
    run(2, |comm| {
        for len in (0..200).chain([40_000]) {
            if comm.rank() == 0 {
                comm.send(&message(0, len, len), 1).run().unwrap();
            } else {
                let mut got = vec![0; len];
                comm.recv(&mut got, 0).run().unwrap();
                assert_eq!(got, message(0, len, len));
            }
        }
    });
}

#[test]
fn a_rank_sends_to_itself() {
    run_with(&narrow(), 2, |comm| {
        let rank = comm.rank();
        let mut got = vec![0; 3000];
        comm.send_recv(&message(rank, rank, 3000), rank, &mut got, rank)
            .run()
            .unwrap();
        assert_eq!(got, message(rank, rank, 3000));

        // A message that fits into the link may be sent before it is received.
        comm.send(&[7_i32], rank).run().unwrap();
        let mut one = [0];
        comm.recv(&mut one, rank).run().unwrap();
        assert_eq!(one, [7]);
    });
}

#[test]
fn a_scope_is_a_group() {
    for n in [1, 2, 5] {
        run_with(&narrow(), n, |comm| {
            let rank = comm.rank();
            let sent: Vec<_> = (0..n).map(|to| message(rank, to, 700 + to)).collect();
            let mut got = vec![vec![0; 700 + rank]; n];
            // All sends come first, each larger than the link: only together do they succeed.
            comm.scope(|scope| {
                for (to, message) in sent.iter().enumerate() {
                    comm.send(message, to).start_in(scope)?;
                }
                for (from, buffer) in got.iter_mut().enumerate() {
                    comm.recv(buffer, from).start_in(scope)?;
                }
                Ok(())
            })
            .unwrap();
            for (from, got) in got.iter().enumerate() {
                assert_eq!(*got, message(from, rank, 700 + rank));
            }
        });
    }
}

/// The number of elements from one rank to another: uneven, often 0.
fn uneven(from: usize, to: usize, round: usize) -> usize {
    match (from * 5 + to * 3 + round) % 4 {
        0 => 0,
        1 => from + 1,
        2 => 40 + to,
        _ => 150 * (round + 1) + from,
    }
}

/// The starts of blocks with gaps of `gap` elements between them, and the length of it all.
fn displacements(counts: &[usize], gap: usize) -> (Vec<usize>, usize) {
    let mut end = 0;
    let begins = counts
        .iter()
        .map(|count| {
            let begin = end + gap;
            end = begin + count;
            begin
        })
        .collect();
    (begins, end + gap)
}

fn exchange_uneven(comm: &Communicator, round: usize) {
    let (n, rank) = (comm.size(), comm.rank());
    let send_counts: Vec<_> = (0..n).map(|to| uneven(rank, to, round)).collect();
    let recv_counts: Vec<_> = (0..n).map(|from| uneven(from, rank, round)).collect();
    let (send_displs, send_len) = displacements(&send_counts, round);
    let (recv_displs, recv_len) = displacements(&recv_counts, 2);
    let mut send = vec![-1; send_len];
    for to in 0..n {
        let block = &mut send[send_displs[to]..][..send_counts[to]];
        block.copy_from_slice(&message(rank, to, send_counts[to]));
    }
    let mut expected = vec![-2; recv_len];
    for from in 0..n {
        let block = &mut expected[recv_displs[from]..][..recv_counts[from]];
        block.copy_from_slice(&message(from, rank, recv_counts[from]));
    }
    let mut recv = vec![-2; recv_len];
    let send_blocks = Blocks::at(&send_counts, &send_displs);
    let recv_blocks = Blocks::at(&recv_counts, &recv_displs);
    comm.all_to_all_v(&send, send_blocks, &mut recv, recv_blocks)
        .run()
        .unwrap();
    assert_eq!(recv, expected, "rank {rank} of {n}, round {round}");
}

#[test]
fn uneven_blocks() {
    for n in [1, 2, 3, 5, 8] {
        for builder in [Communicator::builder(), narrow()] {
            run_with(&builder, n, |comm| {
                (0..6).for_each(|round| exchange_uneven(comm, round));
            });
        }
    }
    let sockets = Communicator::builder().shared_memory(false);
    run_with(&sockets, 3, |comm| {
        (0..6).for_each(|round| exchange_uneven(comm, round));
    });
}

/// One block of the input goes to all ranks. Output blocks are in any order, some of them empty.
#[test]
fn send_blocks_may_overlap() {
    run(3, |comm| {
        let sent = message(comm.rank(), 0, 4);
        let mut recv = vec![0; 12];
        let all = Blocks::at(&[4; 3], &[0; 3]);
        comm.all_to_all_v(&sent, all, &mut recv, Blocks::at(&[4; 3], &[8, 0, 4]))
            .run()
            .unwrap();
        for (from, begin) in [8, 0, 4].into_iter().enumerate() {
            assert_eq!(recv[begin..][..4], message(from, 0, 4));
        }
    });
}

#[test]
fn only_one_pair_exchanges() {
    run(4, |comm| {
        let mut counts = [[0; 4]; 4];
        counts[2][0] = 10_000;
        let rank = comm.rank();
        let send = message(rank, 0, counts[rank].iter().sum());
        let recv_counts: Vec<_> = counts.iter().map(|row| row[rank]).collect();
        let mut recv = vec![0; recv_counts.iter().sum()];
        comm.all_to_all_v(&send, &counts[rank], &mut recv, &recv_counts)
            .run()
            .unwrap();
        if rank == 0 {
            assert_eq!(recv, message(2, 0, 10_000));
        }
    });
}

#[test]
fn a_message_of_another_length_or_type_is_an_error_on_both_sides() {
    let text = |result: Result<(), Error>| match result {
        Err(Error::Failed(fault)) => fault.to_string(),
        other => panic!("{other:?}"),
    };
    let comms = Communicator::local(2).unwrap();
    let errors = each(comms, |comm| {
        if comm.rank() == 0 {
            // The message fits into the link: the sender learns of it at its next call.
            let _ = comm.send(&[1_i32; 5], 1).run();
            text(comm.barrier().run())
        } else {
            text(comm.recv(&mut [0_i32; 6], 0).run())
        }
    });
    for error in errors {
        assert!(
            error.contains("count 5, int32") && error.contains("count 6, int32"),
            "{error}"
        );
    }
}

/// The one rank lends its blocks whole; the other can take them only as its own are sent.
#[test]
fn one_rank_exchanges_in_place_and_the_other_does_not() {
    let blocks = |from: [usize; 2], to: [usize; 2]| -> Vec<i32> {
        let block = |k: usize| message(from[k], to[k], 1_000_003);
        (0..2).flat_map(block).collect()
    };
    for builder in [Communicator::builder(), narrow()] {
        run_with(&builder, 2, |comm| {
            let own = comm.rank();
            let give = blocks([own; 2], [0, 1]);
            for in_place in [0, 1, 0, 1] {
                let mut got = give.clone();
                if own == in_place {
                    comm.all_to_all_in_place(&mut got).run().unwrap();
                } else {
                    comm.all_to_all(&give, &mut got).run().unwrap();
                }
                assert!(got == blocks([0, 1], [own; 2]), "rank {own}");
            }
        });
    }
}
