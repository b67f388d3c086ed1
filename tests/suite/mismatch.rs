//! Ranks that make different calls: who learns of it, when, and in which words.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use spark_ccl::{Communicator, RedOp};
use spark_ccl_testing::with_enough_time;

use crate::processes::{
    Rank, Stopwatch, WATCHDOG, all, assert_all_ok, assert_contains, assert_gave_up, assert_names,
    in_time, is_named, join, place, promptly, world,
};
use crate::ranks::each;

/// Two calls that do not match: the orders to two ranks, and their spelling in errors.
struct Pair {
    calls: [&'static str; 2],
    words: [&'static str; 2],
}

const COLLECTIVES: &[Pair] = &[
    // Another collective.
    Pair {
        calls: ["f32 all_reduce sum 1000", "f32 all_gather 1000"],
        words: [
            "all_reduce(count 1000, float, sum)",
            "all_gather(count 1000, float)",
        ],
    },
    Pair {
        calls: ["barrier", "f32 all_reduce sum 1000000"],
        words: ["barrier", "all_reduce(count 1000000, float, sum)"],
    },
    // Another count: small, large, none.
    Pair {
        calls: ["f32 all_reduce sum 1000", "f32 all_reduce sum 1001"],
        words: ["count 1000,", "count 1001,"],
    },
    Pair {
        calls: ["f32 all_reduce sum 1000000", "f32 all_reduce sum 1000001"],
        words: ["count 1000000,", "count 1000001,"],
    },
    Pair {
        calls: ["f32 all_reduce sum 0", "f32 all_reduce sum 100000"],
        words: ["count 0,", "count 100000,"],
    },
    Pair {
        calls: ["f32 all_to_all 1000", "f32 all_to_all 2000"],
        words: ["count 1000,", "count 2000,"],
    },
    // Another type: of the same size, and of another size.
    Pair {
        calls: ["f32 all_reduce sum 1000", "i32 all_reduce sum 1000"],
        words: ["float, sum", "int32, sum"],
    },
    Pair {
        calls: ["f64 all_gather 1000000", "f32 all_gather 1000000"],
        words: ["double)", "float)"],
    },
    // Another operator.
    Pair {
        calls: ["f32 all_reduce sum 1000", "f32 all_reduce max 1000"],
        words: ["float, sum)", "float, max)"],
    },
    // Another root.
    Pair {
        calls: ["f32 broadcast 0 1000", "f32 broadcast 1 1000"],
        words: ["root 0)", "root 1)"],
    },
    Pair {
        calls: ["f32 reduce 0 1000000", "f32 reduce 1 1000000"],
        words: ["root 0)", "root 1)"],
    },
    // Another allocation.
    Pair {
        calls: ["f32 alloc 1000", "f32 alloc 1001"],
        words: ["alloc(count 1000,", "alloc(count 1001,"],
    },
];

fn assert_explains(text: &str, pair: &Pair, sequence: &str, ranks: &[Rank]) {
    for (number, rank) in ranks[..2].iter().enumerate() {
        assert_names(text, number, rank.pid());
    }
    assert_contains(text, &[sequence, pair.words[0], pair.words[1]]);
}

/// Ranks 0 and 1 make different calls after two that match; rank 2, if there is one, calls nothing.
/// Then makes a new communicator in the same processes.
fn run(watch: &Stopwatch, ranks: &mut [Rank], pair: &Pair) {
    assert_all_ok(ranks, "call barrier");
    assert_all_ok(ranks, "call f32 all_reduce sum 10");
    for (rank, call) in ranks.iter_mut().zip(pair.calls) {
        rank.order(&format!("call {call}"));
    }
    let since = Instant::now();
    for rank in &ranks[..2] {
        let answer = watch.hear(rank, since, promptly());
        // A rank whose part needs nobody (say, it only sends) may finish it.
        if answer != "ok" {
            assert_explains(&answer, pair, "operation #3", ranks);
        }
    }
    for who in [0..2, 2..ranks.len()] {
        if let Some(idle) = ranks.get_mut(2).filter(|_| who.start == 2) {
            until_failed(watch, idle);
        }
        for rank in &mut ranks[who.clone()] {
            rank.order("call f32 all_reduce sum 10");
        }
        let since = Instant::now();
        for rank in &ranks[who] {
            let answer = watch.hear(rank, since, promptly());
            assert_explains(&answer, pair, "operation #3", ranks);
        }
    }
    join(ranks);
}

/// Waits until an idle rank has failed. It learns of the mismatch within a moment; before that, its
/// next call would be a third one that differs.
fn until_failed(watch: &Stopwatch, idle: &mut Rank) {
    let since = Instant::now();
    while idle.ask("check") == "ok" {
        assert!(since.elapsed() < WATCHDOG, "an idle rank is not told");
        std::thread::sleep(Duration::from_millis(1));
    }
    watch.note(since, promptly());
}

fn run_all(size: usize, env: &[(&str, &str)]) {
    let mut ranks = world(size, env);
    for pair in COLLECTIVES {
        in_time(|watch| run(watch, &mut ranks, pair));
        let [a, b] = pair.calls;
        let swapped = Pair {
            calls: [b, a],
            words: pair.words,
        };
        in_time(|watch| run(watch, &mut ranks, &swapped));
    }
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn different_calls_are_explained_over_shared_memory() {
    let _place = place();
    run_all(2, &[]);
    run_all(3, &[]);
}

#[test]
fn different_calls_are_explained_over_tcp() {
    let _place = place();
    run_all(2, &[("SPARK_CCL_SHM", "0")]);
    run_all(3, &[("SPARK_CCL_SHM", "0")]);
}

#[test]
fn an_end_that_comes_too_early_is_named_with_the_call_of_the_others() {
    let _place = place();
    for [early, late] in [[0, 1], [1, 0]] {
        for call in ["f32 all_reduce sum 100", "barrier"] {
            in_time(|watch| {
                let mut ranks = world(2, &[]);
                assert_all_ok(&mut ranks, "call f32 all_reduce sum 100");
                ranks[early].order("finalize");
                ranks[late].order(&format!("call {call}"));
                let since = Instant::now();
                for rank in &ranks {
                    let answer = watch.hear(rank, since, promptly());
                    for (number, rank) in ranks.iter().enumerate() {
                        assert_names(&answer, number, rank.pid());
                    }
                    let [ended, (_, called)] = [early, late].map(|rank| {
                        let start = answer.find(&format!("rank {rank} (")).unwrap();
                        (start, &answer[start..])
                    });
                    let end = ") called finalize after operation #1, but rank";
                    assert!(ended.1.contains(end), "{answer}");
                    let name = call.split(' ').find(|word| word.len() > 3).unwrap();
                    assert_contains(called, &[&format!(") called {name}"), " as operation #2; "]);
                }
            });
        }
    }
}

#[test]
fn a_rank_that_is_done_with_its_different_call_learns_it_at_its_next_one() {
    let _place = place();
    for env in [&[][..], &[("SPARK_CCL_SHM", "0")]] {
        in_time(|watch| {
            let mut ranks = world(2, env);
            let pair = Pair {
                calls: ["f32 broadcast 0 100", "f32 all_reduce sum 100"],
                words: ["broadcast(count 100,", "all_reduce(count 100,"],
            };
            assert_eq!(ranks[0].ask(&format!("call {}", pair.calls[0])), "ok");
            std::thread::sleep(Duration::from_millis(500));
            ranks[1].order(&format!("call {}", pair.calls[1]));
            let answer = watch.hear(&ranks[1], Instant::now(), promptly());
            assert_explains(&answer, &pair, "operation #1", &ranks);
            let answer = ranks[0].ask("call barrier");
            assert_explains(&answer, &pair, "operation #1", &ranks);
        });
    }
}

/// Each rank sends in its call, and none receives.
#[test]
fn calls_in_which_every_rank_only_sends_are_compared_by_what_comes_next() {
    let _place = place();
    for (call, next) in [
        ("broadcast", "check"),
        ("scatter", "check"),
        ("broadcast", "call f32 broadcast 0 10"),
        ("broadcast", "call f32 all_reduce sum 0"),
        ("broadcast", "call f32 all_reduce sum 10"),
        ("broadcast", "call f32 send 2 10"),
        ("broadcast", "call f32 recv 2 10"),
    ] {
        in_time(|watch| {
            let mut ranks = world(3, &[]);
            assert_all_ok(&mut ranks, "call barrier");
            for (root, rank) in ranks.iter_mut().enumerate() {
                let answer = rank.ask(&format!("call f32 {call} {root} 100"));
                assert!(answer == "ok" || answer.contains(call), "{answer}");
            }
            let answer = ranks[0].ask(next);
            assert_contains(&answer, &["operation #2 differs", call, "root 0)"]);
            assert_names(&answer, 0, ranks[0].pid());
            assert!(
                answer.contains("root 1)") || answer.contains("root 2)"),
                "{answer}"
            );
            // The others learn of it.
            for rank in &mut ranks[1..] {
                until_failed(watch, rank);
                assert_contains(&rank.ask("check"), &["operation #2 differs", call]);
            }
        });
    }
}

/// It waits for nothing in its call, and is gone when the others find out.
#[test]
fn what_a_rank_has_called_last_is_known_when_it_has_left() {
    let _place = place();
    for env in [&[][..], &[("SPARK_CCL_SHM", "0")]] {
        for (own, others, words) in [
            (
                "f32 all_reduce sum 0",
                "f32 all_reduce sum 8",
                ["count 0,", "count 8,"],
            ),
            (
                "f32 gather 1 9",
                "f32 gather 1 10",
                ["count 9,", "count 10,"],
            ),
            ("f32 reduce 2 9", "f32 reduce 1 9", ["root 2)", "root 1)"]),
        ] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                assert_all_ok(&mut ranks, "call barrier");
                assert_eq!(ranks[0].ask(&format!("call {own}")), "ok");
                ranks[0].order("drop");
                ranks[0].order("exit");
                assert_eq!(ranks[0].hear(), "ok");
                ranks[1].order(&format!("call {others}"));
                let answer = watch.hear(&ranks[1], Instant::now(), promptly());
                assert_contains(&answer, &["operation #2 differs", words[0], words[1]]);
                for (number, rank) in ranks[..2].iter().enumerate() {
                    assert_names(&answer, number, rank.pid());
                }
            });
        }
    }
}

/// Both have finished their different calls, and have made more calls since than ranks remember.
#[test]
fn a_difference_that_nobody_remembers_is_explained() {
    let _place = place();
    for env in [&[][..], &[("SPARK_CCL_SHM", "0")]] {
        in_time(|watch| {
            let mut ranks = world(2, env);
            // Rank 1 makes its calls before rank 0's data arrive, which it would find at its next
            // call.
            for _ in 0..71 {
                assert_eq!(ranks[1].ask("call f32 all_reduce sum 0"), "ok");
            }
            assert_eq!(ranks[0].ask("call f32 broadcast 0 100"), "ok");
            for _ in 0..70 {
                assert_eq!(ranks[0].ask("call f32 all_reduce sum 0"), "ok");
            }
            ranks[0].order("call barrier");
            ranks[1].order("call barrier");
            // The rank that finds the other's data waits for an explanation first.
            let since = Instant::now();
            let mut answers = vec![watch.hear(&ranks[1], since, 2 * promptly())];
            // The other one may have finished its barrier.
            let other = watch.hear(&ranks[0], since, 2 * promptly());
            answers.push(if other == "ok" {
                ranks[0].ask("call barrier")
            } else {
                other
            });
            for answer in answers {
                for (number, rank) in ranks.iter().enumerate() {
                    assert_names(&answer, number, rank.pid());
                }
                assert_contains(
                    &answer,
                    &["operation #1 differs", "operation #72 (barrier)"],
                );
                assert!(!answer.contains("network"), "{answer}");
            }
        });
    }
}

/// One rank is a call ahead, and so alone in an operation.
#[test]
fn a_call_that_one_rank_left_out_is_explained() {
    let _place = place();
    in_time(|watch| {
        let mut ranks = world(3, &[]);
        assert_all_ok(&mut ranks, "call barrier");
        for rank in &mut ranks[..2] {
            rank.order("call f32 all_reduce sum 1000");
        }
        ranks[2].order("call f32 broadcast 0 50");
        let since = Instant::now();
        for rank in &ranks {
            let answer = watch.hear(rank, since, promptly());
            assert_names(&answer, 2, ranks[2].pid());
            assert_contains(
                &answer,
                &[
                    "operation #2",
                    "all_reduce(count 1000,",
                    "broadcast(count 50,",
                ],
            );
        }
    });
}

#[test]
fn point_to_point_messages_that_do_not_match_are_explained() {
    let _place = place();
    for env in [&[][..], &[("SPARK_CCL_SHM", "0")]] {
        for (send, recv, sent, expected) in [
            (
                "f32 send 1 1000",
                "f32 recv 0 999",
                "count 1000, float",
                "count 999, float",
            ),
            (
                "f32 send 1 1000",
                "f32 recv 0 1001",
                "count 1000, float",
                "count 1001, float",
            ),
            (
                "f32 send 1 1000",
                "i32 recv 0 1000",
                "count 1000, float",
                "count 1000, int32",
            ),
            // Larger than the link holds, so both ranks are in their calls.
            (
                "f32 send 1 9000000",
                "f32 recv 0 9000001",
                "count 9000000, float",
                "count 9000001, float",
            ),
        ] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                ranks[0].order(&format!("call {send}"));
                ranks[1].order(&format!("call {recv}"));
                let since = Instant::now();
                let mut answers = vec![watch.hear(&ranks[1], since, promptly())];
                let sender = watch.hear(&ranks[0], since, promptly());
                if sender != "ok" {
                    answers.push(sender);
                }
                answers.extend(all(&mut ranks, "call barrier"));
                for answer in answers {
                    for (number, rank) in ranks[..2].iter().enumerate() {
                        assert_names(&answer, number, rank.pid());
                    }
                    assert_contains(&answer, &["point-to-point #1", sent, expected]);
                }
            });
        }
    }
}

/// The first one waits for a rank that itself waits for another one, and gives up first.
#[test]
fn who_holds_up_a_chain_of_messages_is_named() {
    let _place = place();
    for shm in ["1", "0"] {
        with_enough_time(Duration::from_secs(2), |limit| {
            let limit = limit.as_secs_f64();
            let env = [
                ("SPARK_CCL_SHM", shm),
                ("SPARK_CCL_TIMEOUT", &limit.to_string()),
            ];
            let mut ranks = world(3, &env);
            ranks[0].order("call f32 recv 1 1000");
            std::thread::sleep(Duration::from_millis(300));
            ranks[1].order("call f32 recv 2 1000");
            ranks[2].order("call barrier");
            for rank in &ranks {
                let answer = rank.hear();
                assert_gave_up(&answer, limit);
                // Rank 1 may not have reached its call.
                if !is_named(&answer, 2, ranks[2].pid()) {
                    return Err(answer);
                }
                assert_contains(&answer, &["(barrier)"]);
            }
            Ok(())
        });
    }
}

/// As on ranks whose hash maps of parameters have different orders.
#[test]
fn calls_of_one_shape_are_told_apart_by_name() {
    for count in [1, 1000, 300_000] {
        let all_have = Barrier::new(3);
        each(Communicator::local(3).unwrap(), |comm| {
            let reduce = |name| {
                let values = vec![comm.rank() as f32; count];
                let call = comm.all_reduce_in_place(values, RedOp::Sum);
                call.named(name).run().map(|values| values[count - 1])
            };
            assert_eq!(reduce("layer0").unwrap().to_bits(), 3_f32.to_bits());
            // The fault also ends calls of a rank that is behind.
            all_have.wait();
            let own = if comm.rank() == 1 { "weight" } else { "bias" };
            let error = reduce(own).unwrap_err().to_string();
            assert!(
                error.contains("named \"weight\"") && error.contains("named \"bias\""),
                "{error}"
            );
        });
    }
}
