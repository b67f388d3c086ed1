//! Messages between pairs: shifts, groups of any messages, graphs, and ends that are late or
//! differ.

use std::time::Duration;

use spark_ccl_cuda::cudarc::driver::CudaGraph;
use spark_ccl_gpu::{Error, MAX_RANKS, Wire};
use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::graphs::{captured_of, launch};
use crate::place::{Case, Place, WIRES};
use crate::post::{Letter, Post};

const PATIENCE: Duration = Duration::from_secs(5);
const RANKS: [usize; 4] = [2, 3, 4, 8];

fn letter(from: usize, to: usize, bytes: usize) -> Letter {
    Letter { from, to, bytes }
}

/// Each rank sends to the one that is this far away.
fn shift(ranks: usize, distance: usize, bytes: usize) -> Vec<Letter> {
    let of = |rank| letter(rank, (rank + distance) % ranks, bytes);
    (0..ranks).map(of).collect()
}

/// Runs a test on some ranks, over each wire.
fn each_way(ranks: &[usize], test: impl Fn(&Place)) {
    for &ranks in ranks {
        for wire in WIRES {
            match Place::with(ranks, PATIENCE, wire) {
                Some(place) => test(&place),
                None => return,
            }
        }
    }
}

/// Where the first batch, a batch, a turn of all strands, and all slots end, of packets, of lines
/// and of quads.
fn borders() -> Vec<usize> {
    let mut borders = vec![0, 8, 64];
    for (first, batch) in [(128, 256), (1792, 1920), (1408, 1536)] {
        let turn = first + 255 * batch;
        borders.extend([
            first,
            first + batch,
            turn,
            turn + batch,
            4 * turn,
            8 * turn + batch,
        ]);
    }
    borders
}

#[test]
fn shifts_of_all_lengths_around_all_ranks() {
    each_way(&RANKS, |place| {
        let ranks = place.ranks.len();
        for (number, border) in borders().into_iter().enumerate() {
            let around = [border.saturating_sub(1), border, border + 1];
            // Two ranks have all lengths, and more ranks one of each three.
            let few = &around[number % 3..=number % 3];
            for &bytes in if ranks == 2 { &around[..] } else { few } {
                let distance = (number + bytes) % ranks;
                Post::new(shift(ranks, distance, bytes), bytes as u64).run(place);
            }
        }
        for distance in 0..ranks {
            Post::new(shift(ranks, distance, 500_000), distance as u64).run(place);
        }
    });
}

/// Messages that are shared out among warps, and some between them that are not.
#[test]
fn long_messages_between_short_ones() {
    const DEALT_OUT: usize = 1792 + (8 * 256 - 1) * 1920;
    each_way(&[2, 3], |place| {
        let ranks = place.ranks.len();
        for bytes in [DEALT_OUT, DEALT_OUT + 1, 9_000_003] {
            let mut letters = shift(ranks, 1, 100_000);
            letters.extend(shift(ranks, 1, bytes));
            letters.extend(shift(ranks, 1, 5));
            letters.extend(shift(ranks, 1, DEALT_OUT + 1));
            for _ in 0..3 {
                Post::new(letters.clone(), bytes as u64).run(place);
            }
        }
    });
}

#[test]
fn buffers_of_any_alignment() {
    each_way(&[2], |place| {
        for seed in 0..300 {
            let bytes = scramble(seed, 1) as usize % 5000;
            Post::new(shift(2, 1, bytes), seed).run(place);
        }
    });
}

/// Any messages between any ranks, also several between two, and to a rank itself.
fn any_letters(ranks: usize, seed: u64, most: usize) -> Vec<Letter> {
    let count = 1 + scramble(seed, 0) as usize % (3 * ranks);
    let any = |number: usize| {
        let random = |what: u64| scramble(seed << 16 | number as u64, what) as usize;
        let limit = [300, 10_000, most][random(3) % 3];
        letter(random(0) % ranks, random(1) % ranks, random(2) % limit)
    };
    (0..count).map(any).collect()
}

#[test]
fn groups_of_any_messages() {
    each_way(&RANKS, |place| {
        for seed in 0..60 {
            Post::new(any_letters(place.ranks.len(), seed, 600_000), seed).run(place);
        }
    });
}

#[test]
fn groups_of_more_messages_than_a_kernel_has_room_for() {
    each_way(&RANKS, |place| {
        let ranks = place.ranks.len();
        let between = |number: usize| {
            let pair = number % (ranks * ranks);
            letter(
                pair / ranks,
                pair % ranks,
                scramble(9, number as u64) as usize % 9000,
            )
        };
        Post::new((0..100 * ranks).map(between).collect(), 3).run(place);
    });
}

#[test]
fn ranks_that_have_no_part_in_a_message_do_nothing_for_it() {
    each_way(&[4], |place| {
        let post = Post::new(vec![letter(3, 1, 1_000_000), letter(1, 3, 70)], 5);
        post.prepare(place);
        for rank in [1, 3] {
            post.enqueue(place, rank);
        }
        place.wait().unwrap();
        post.check(place);
    });
}

fn sum(count: usize) -> Case {
    Case {
        operation: Operation::AllReduce,
        dtype: DType::Bf16,
        op: ReduceOp::Sum,
        root: 0,
        count,
        offset: 0,
        in_place: false,
        seed: 6,
    }
}

/// Ranks are threads, late at random, with collectives between the messages.
#[test]
fn many_groups_in_flight() {
    each_way(&RANKS, |place| {
        let ranks = place.ranks.len();
        let posts: Vec<_> = (0..100)
            .map(|seed| Post::new(any_letters(ranks, seed, 50_000), 7))
            .collect();
        // They write over each other; the test looks at the messages that the last one has
        // received.
        let last = Post::new(any_letters(ranks, 1, 900_000), 7);
        last.prepare(place);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (posts, last) = (&posts, &last);
                scope.spawn(move || {
                    for (number, post) in posts.iter().enumerate() {
                        let late = scramble(number as u64, rank as u64);
                        if late.is_multiple_of(10) {
                            std::thread::sleep(Duration::from_micros(late / 16 % 300));
                        }
                        post.enqueue(place, rank);
                    }
                    last.enqueue(place, rank);
                });
            }
        });
        place.wait().unwrap();
        last.check_letters(place);
        place.run(&sum(1000), None);
    });
}

#[test]
fn graphs_are_launched_again_and_between_other_messages() {
    each_way(&RANKS, |place| {
        let ranks = place.ranks.len();
        let [first, second] = [1, 2].map(|seed| Post::new(any_letters(ranks, seed, 400_000), seed));
        let graphs_of = |post: &Post| -> Vec<CudaGraph> {
            captured_of(place, |rank| {
                let (own, call) = (&place.ranks[rank], place.call(&sum(500), rank));
                post.enqueue(place, rank);
                // SAFETY: `place` keeps the rank's buffers, and outlives the graphs. They have
                // `ROOM`, more than 12 MiB and the call's 500 elements behind that, and only this
                // rank's stream uses them.
                unsafe {
                    let elsewhere = spark_ccl_gpu::Call {
                        output: own.output.address() + (12 << 20),
                        ..call
                    };
                    own.member.enqueue(&elsewhere, &own.stream).unwrap();
                }
                post.enqueue(place, rank);
            })
        };
        let graphs = [graphs_of(&first), graphs_of(&second)];
        for turn in 0..40 {
            let (post, last) = ([&first, &second][turn % 2], &graphs[turn % 2]);
            post.prepare(place);
            for graphs in &graphs {
                launch(graphs);
            }
            place.wait().unwrap();
            post.prepare(place);
            launch(last);
            place.wait().unwrap();
            post.check(place);
            first.run(place);
        }
    });
}

/// A rank that sends, and one that receives, wait for one that does not come.
#[test]
fn a_peer_that_never_comes_is_named() {
    const ABSENT: usize = 2;
    for wire in WIRES {
        let Some(place) = Place::with(4, Duration::from_secs(1), wire) else {
            return;
        };
        let post = Post::new(
            vec![
                letter(0, ABSENT, 8 << 20),
                letter(ABSENT, 1, 8),
                letter(3, 1, 500),
            ],
            1,
        );
        post.prepare(&place);
        for rank in [0, 1, 3] {
            post.enqueue(&place, rank);
        }
        for (rank, own) in place.ranks.iter().enumerate() {
            own.stream.synchronize().unwrap();
            let said = own.member.check();
            let is_late = matches!(
                said,
                Err(Error::Late { rank: of, peer: ABSENT, .. }) if of == rank
            );
            assert_eq!(is_late, rank < 2, "{said:?}");
        }
        is_well_again(place, wire);
    }
}

#[test]
fn a_rank_ends_its_own_waits_for_messages() {
    for wire in WIRES {
        let Some(place) = Place::with(2, Duration::from_secs(3600), wire) else {
            return;
        };
        let post = Post::new(vec![letter(1, 0, 100)], 1);
        post.enqueue(&place, 0);
        std::thread::sleep(Duration::from_millis(100));
        place.ranks[0].member.abort();
        place.ranks[0].stream.synchronize().unwrap();
        let said = place.ranks[0].member.check();
        assert!(
            matches!(
                said,
                Err(Error::Aborted {
                    rank: 0,
                    peer: 1,
                    ..
                })
            ),
            "{said:?}"
        );
        is_well_again(place, wire);
    }
}

#[test]
fn messages_that_differ_are_named_with_what_both_ends_have_signed() {
    const USUAL: usize = 5000;
    for wire in WIRES {
        for other in [0, 8, USUAL, USUAL + 1, 1_000_000] {
            let Some(place) = Place::with(2, Duration::from_secs(1), wire) else {
                return;
            };
            let usual = Post::new(vec![letter(0, 1, USUAL)], 1);
            let different = Post::new(vec![letter(0, 1, other)], 1);
            usual.run(&place);
            usual.run(&place);
            usual.enqueue(&place, 0);
            let mut ends = different.ends(&place, 1);
            ends[0].words[0] = 8;
            let own = &place.ranks[1];
            // SAFETY: `place` keeps the rank's buffers until its stream was waited for. They have
            // `ROOM`, more than these ends' elements, and only this stream uses them. A kernel that
            // finds another signature at its peer copies nothing.
            unsafe { own.member.pass(&ends, &own.stream).unwrap() };
            own.stream.synchronize().unwrap();
            let expected = Error::OtherMessage {
                rank: 1,
                peer: 0,
                own: [8, other as u64],
                theirs: [7, USUAL as u64],
                message: 3,
            };
            assert_eq!(own.member.check().unwrap_err(), expected);
            place.ranks[0].stream.synchronize().unwrap();
            is_well_again(place, wire);
        }
    }
}

#[test]
fn peers_that_are_no_ranks_are_refused() {
    let Some(place) = Place::new(2, PATIENCE) else {
        return;
    };
    let mut ends = Post::new(vec![letter(0, 1, 8)], 1).ends(&place, 0);
    for peer in [2, MAX_RANKS, usize::MAX] {
        ends[0].peer = peer;
        let own = &place.ranks[0];
        // SAFETY: `pass` refuses these ends by their peers before it launches anything, so no
        // memory is used.
        let said = unsafe { own.member.pass(&ends, &own.stream) }.unwrap_err();
        assert_eq!(
            said,
            Error::Peer {
                rank: 0,
                peer,
                ranks: 2
            }
        );
    }
}

/// The GPU works, and so do new ranks.
fn is_well_again(place: Place, wire: Wire) {
    drop(place);
    let place = Place::with(4, PATIENCE, wire).unwrap();
    Post::new(shift(4, 1, 300_000), 1).run(&place);
}
