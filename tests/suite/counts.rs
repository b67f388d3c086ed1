//! Counts that differ between sender and receiver, on both sides of each size at which a link
//! changes its method. The ranks of the pair get an error that names both counts, and nobody takes
//! a part of a block for all of it.

use spark_ccl::{Builder, Communicator, Error, Fault, RedOp};

use super::ranks::{each, run_with};

/// The size of a slot in these tests, in bytes and in 4-byte elements.
const SLOT: usize = 64 << 10;
const SLOT_LEN: usize = SLOT / 4;

/// Lengths in 4-byte elements around which a link changes its method: in a header (40 and 104 B),
/// in a cell (8 KiB, also the most that TCP sends in place), lent (16 KiB), in one slot, in
/// several, in more than a link holds, in more than one loan (1 MiB).
const BORDERS: [usize; 18] = [
    0,
    1,
    10,
    11,
    26,
    27,
    2048,
    2049,
    4095,
    4096,
    SLOT_LEN,
    SLOT_LEN + 1,
    2 * SLOT_LEN,
    4 * SLOT_LEN,
    8 * SLOT_LEN,
    (1 << 20) / 4,
    (1 << 20) / 4 + 1,
    300_000,
];

/// Every length with the next one, and some that are far apart, in both orders.
fn pairs() -> Vec<[usize; 2]> {
    let near = BORDERS.windows(2).map(|pair| [pair[0], pair[1]]);
    let far = [[0, 300_000], [26, SLOT_LEN], [2048, 8 * SLOT_LEN]];
    near.chain(far)
        .flat_map(|[a, b]| [[a, b], [b, a]])
        .collect()
}

/// Shared memory, with and without single copies, and TCP.
fn transports() -> [Builder; 3] {
    let with = |key, value| {
        let builder = Communicator::builder().set("SPARK_CCL_SLOT_BYTES", &SLOT.to_string());
        builder.set(key, value)
    };
    [
        with("SPARK_CCL_SINGLE_COPY", "1"),
        with("SPARK_CCL_SINGLE_COPY", "0"),
        with("SPARK_CCL_SHM", "0"),
    ]
}

/// The text of a mismatch error.
#[track_caller]
fn mismatch(result: Result<(), Error>, what: &str) -> String {
    match result {
        Err(Error::Failed(fault)) if matches!(*fault, Fault::Mismatch { .. }) => fault.to_string(),
        other => panic!("{what}: {other:?}"),
    }
}

#[track_caller]
fn assert_names(text: &str, parts: &[&str], what: &str) {
    for part in parts {
        assert!(text.contains(part), "{what}: {part:?} is not in {text:?}");
    }
}

/// An exchange in which this rank sends and expects these counts, by rank.
fn exchange(comm: &Communicator, sent: &[usize], expected: &[usize]) -> Result<Vec<i32>, Error> {
    let send = vec![comm.rank() as i32; sent.iter().sum()];
    let recv = vec![-1; expected.iter().sum()];
    let call = comm.all_to_all_v(send, sent, recv, expected);
    call.run().map(|(_, got)| got)
}

#[test]
fn blocks_of_differing_counts_are_an_error_on_both_sides() {
    for builder in transports() {
        for [sent, expected] in pairs() {
            let what = format!("{sent} elements, {expected} expected");
            let errors = each(builder.local(2).unwrap(), |comm| {
                let outcome = match comm.rank() {
                    0 => exchange(&comm, &[3, sent], &[3, 7]),
                    _ => exchange(&comm, &[7, 0], &[expected, 0]),
                };
                mismatch(outcome.map(drop), &what)
            });
            for text in errors {
                let sender = format!("{sent} elements to rank 1 and 7 from it");
                let receiver = format!("7 elements to rank 0 and {expected} from it");
                assert_names(&text, &["all_to_all_v(int32)", &sender, &receiver], &what);
            }
        }
    }
}

/// Rank 2 has no part in the mismatch. If it gets a result, that is right.
#[test]
fn the_other_ranks_of_an_exchange_get_what_they_were_sent_or_the_error() {
    for builder in transports() {
        for wrong in [11, 2 * SLOT_LEN] {
            let outcomes = each(builder.local(3).unwrap(), |comm| {
                let own = comm.rank();
                let mut sent = [SLOT_LEN; 3];
                if own == 0 {
                    sent[1] = wrong;
                }
                exchange(&comm, &sent, &[SLOT_LEN; 3])
            });
            for (rank, outcome) in outcomes.into_iter().enumerate() {
                let what = format!("rank {rank}, {wrong}");
                match outcome {
                    Ok(got) if rank == 2 => {
                        let blocks = [0, 1, 2].map(|from| vec![from; SLOT_LEN]);
                        assert!(got == blocks.concat(), "{what}");
                    }
                    outcome => {
                        let text = mismatch(outcome.map(drop), &what);
                        let counts = [wrong, SLOT_LEN].map(|count| format!("{count} elements"));
                        assert_names(&text, &[&counts[0], &counts[1]], &what);
                    }
                }
            }
        }
    }
}

#[test]
fn messages_of_differing_counts_are_an_error_on_both_sides() {
    for builder in transports() {
        for [sent, expected] in pairs() {
            let what = format!("{sent} elements, {expected} expected");
            let errors = each(builder.local(2).unwrap(), |comm| {
                if comm.rank() == 1 {
                    let received = comm.recv(vec![0_i32; expected], 0).run();
                    return mismatch(received.map(drop), &what);
                }
                match comm.send(vec![1_i32; sent], 1).run() {
                    // The link had room for it, so the sender learns of the error at its next call.
                    Ok(_) => mismatch(comm.barrier().run(), &what),
                    Err(error) => mismatch(Err(error), &what),
                }
            });
            for text in errors {
                let counts = [sent, expected].map(|count| format!("count {count}, int32"));
                assert_names(&text, &[&counts[0], &counts[1]], &what);
            }
        }
    }
}

/// As many bytes, but other elements.
#[test]
fn messages_and_blocks_of_another_type_are_an_error_on_both_sides() {
    for builder in transports() {
        for len in [1, 2049, 2 * SLOT_LEN] {
            let what = format!("{len} elements");
            let errors = each(builder.local(2).unwrap(), |comm| {
                let peer = 1 - comm.rank();
                let counts = [len; 2];
                let outcome = if comm.rank() == 0 {
                    let buffers = (vec![1.0_f32; 2 * len], vec![0.0; 2 * len]);
                    comm.all_to_all_v(buffers.0, &counts, buffers.1, &counts)
                        .run()
                        .map(drop)
                } else {
                    let buffers = (vec![1_i32; 2 * len], vec![0; 2 * len]);
                    comm.all_to_all_v(buffers.0, &counts, buffers.1, &counts)
                        .run()
                        .map(drop)
                };
                let text = mismatch(outcome, &what);
                let later = comm.send(&[1_u8], peer).run().unwrap_err().to_string();
                assert!(later.contains(&text), "{what}: {later}");
                text
            });
            for text in errors {
                let calls = ["all_to_all_v(float)", "all_to_all_v(int32)"];
                assert_names(&text, &calls, &what);
            }
            let errors = each(builder.local(2).unwrap(), |comm| {
                let peer = 1 - comm.rank();
                let outcome = if comm.rank() == 0 {
                    let call = comm.send_recv(vec![1.0_f32; len], peer, vec![0.0_f32; len], peer);
                    call.run().map(drop)
                } else {
                    let call = comm.send_recv(vec![1_i32; len], peer, vec![0_i32; len], peer);
                    call.run().map(drop)
                };
                mismatch(outcome, &what)
            });
            for text in errors {
                assert_names(&text, &[&format!("count {len}, float"), "int32"], &what);
            }
        }
    }
}

/// An empty message is a message: another one matches it.
#[test]
fn empty_messages_take_their_turns() {
    for builder in transports() {
        run_with(&builder, 2, |comm| {
            let peer = 1 - comm.rank();
            for len in [0, 5, 0, 0, 70_000, 0] {
                let send = vec![comm.rank() as i32; len];
                let (_, got) = comm
                    .send_recv(send, peer, vec![-1; len], peer)
                    .run()
                    .unwrap();
                assert_eq!(got, vec![peer as i32; len]);
            }
        });
    }
}

/// Ranks that exchange in place take turns with partners in another order, except between two
/// ranks.
#[test]
fn an_exchange_in_place_on_some_ranks_only_is_an_error_on_all() {
    for builder in transports() {
        for n in [3, 4] {
            for len in [1, 2049, SLOT_LEN + 1, 300_000] {
                let what = format!("{len} elements for each of {n} ranks");
                let errors = each(builder.local(n).unwrap(), |comm| {
                    let mut buffer = vec![comm.rank() as i32; n * len];
                    let outcome = if comm.rank() == 1 {
                        comm.all_to_all_in_place(&mut buffer).run()
                    } else {
                        let mut got = vec![-1; n * len];
                        comm.all_to_all(&buffer, &mut got).run()
                    };
                    mismatch(outcome, &what)
                });
                for text in errors {
                    let calls = [", int32)", ", int32, in place)"];
                    assert_names(&text, &calls, &what);
                }
            }
        }
    }
}

type Collective = fn(&Communicator, usize) -> Result<(), Error>;

/// Collectives of two ranks, of `len` elements for each rank or in all; each with its number of
/// receivers: 1 is rank 0 alone.
const COLLECTIVES: [(&str, usize, Collective); 6] = [
    ("all_reduce", 2, |comm, len| {
        let call = comm.all_reduce_in_place(vec![1_i32; len], RedOp::Sum);
        call.run().map(drop)
    }),
    ("all_gather", 2, |comm, len| {
        let call = comm.all_gather(vec![1_i32; len], vec![0; 2 * len]);
        call.run().map(drop)
    }),
    ("reduce_scatter", 2, |comm, len| {
        let call = comm.reduce_scatter(vec![1_i32; 2 * len], vec![0; len], RedOp::Sum);
        call.run().map(drop)
    }),
    ("broadcast", 1, |comm, len| {
        let call = comm.broadcast_in_place(vec![1_i32; len], 1);
        call.run().map(drop)
    }),
    ("gather", 1, |comm, len| {
        let call = comm.gather_in_place(vec![1_i32; 2 * len], 0);
        call.run().map(drop)
    }),
    ("scatter", 1, |comm, len| {
        let call = comm.scatter_in_place(vec![1_i32; 2 * len], 1);
        call.run().map(drop)
    }),
];

/// A rank that receives nothing may finish a call before the others make it.
#[test]
fn no_collective_takes_another_count_for_its_own() {
    for builder in transports() {
        for (name, receivers, collective) in COLLECTIVES {
            for [a, b] in [[10, 11], [SLOT_LEN, 2 * SLOT_LEN]] {
                let lens = if a == 10 { [a, b] } else { [b, a] };
                let what = format!("{name} of {lens:?}");
                each(builder.local(2).unwrap(), |comm| {
                    let outcome = collective(&comm, lens[comm.rank()]);
                    let outcome = match outcome {
                        Ok(()) if comm.rank() >= receivers => comm.barrier().run(),
                        outcome => outcome,
                    };
                    let text = mismatch(outcome, &what);
                    let counts = lens.map(|len| format!("{name}(count {len}, "));
                    assert_names(&text, &[&counts[0], &counts[1]], &what);
                });
            }
        }
    }
}
