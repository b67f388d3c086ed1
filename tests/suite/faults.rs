//! Ranks that are killed, leave or abort: what the others learn, and when.

use std::time::{Duration, Instant};

use spark_ccl_testing::with_enough_time;

use crate::processes::{
    Rank, Stopwatch, all, assert_all_ok, assert_contains, assert_names, in_time, join, place,
    promptly, some_time, world,
};

/// Elements of all ranks' buffers together: 192 MiB.
const ELEMENTS: usize = 48 << 20;
const TCP: &[(&str, &str)] = &[("SPARK_CCL_SHM", "0")];
const SHM: &[(&str, &str)] = &[];

/// Has every rank reduce a large buffer over and over.
fn set_going(ranks: &mut [Rank], memory: &str) {
    let order = format!("loop {memory} {}", ELEMENTS / ranks.len());
    for answer in all(ranks, &order) {
        assert_eq!(answer, "running");
    }
}

/// The next answers, which must come promptly after `since`.
fn prompt_answers(watch: &Stopwatch, ranks: &[Rank], since: Instant) -> Vec<String> {
    let hear = |rank| watch.hear(rank, since, promptly());
    ranks.iter().map(hear).collect()
}

/// Named memory would be left behind when all ranks are killed.
fn assert_nothing_in_file_system(rank: &Rank) {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", rank.pid())).unwrap();
    assert!(!maps.contains("/dev/shm"), "{maps}");
    for fd in std::fs::read_dir(format!("/proc/{}/fd", rank.pid())).unwrap() {
        // It may have been closed meanwhile.
        let target = std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
        assert!(!target.starts_with("/dev/shm"), "{}", target.display());
    }
}

fn kill_in_the_middle(size: usize, victim: usize, memory: &str, env: &[(&str, &str)]) {
    in_time(|watch| {
        let mut ranks = world(size, env);
        set_going(&mut ranks, memory);
        std::thread::sleep(some_time(20..200));
        assert_nothing_in_file_system(&ranks[victim]);
        let since = Instant::now();
        let mut killed = ranks.remove(victim);
        killed.kill();
        for answer in prompt_answers(watch, &ranks, since) {
            assert_names(&answer, victim, killed.pid());
            assert_contains(&answer, &["died"]);
        }
        // It refuses further work, and says why.
        for answer in all(&mut ranks, "call barrier") {
            assert_names(&answer, victim, killed.pid());
        }
        for rank in &mut ranks {
            rank.order("exit");
            assert_eq!(rank.ended(), Some(0));
        }
    });
}

#[test]
fn a_rank_killed_in_an_all_reduce_over_shared_memory_is_named_by_all() {
    let _place = place();
    for (size, victim) in [(2, 0), (2, 1), (3, 0), (4, 2)] {
        kill_in_the_middle(size, victim, "ordinary", SHM);
    }
}

#[test]
fn a_rank_killed_in_an_all_reduce_over_tcp_is_named_by_all() {
    let _place = place();
    for (size, victim) in [(2, 0), (2, 1), (3, 0), (4, 2)] {
        kill_in_the_middle(size, victim, "ordinary", TCP);
    }
}

#[test]
fn a_rank_killed_in_a_zero_copy_all_reduce_is_named_by_all() {
    let _place = place();
    for (size, victim) in [(2, 0), (3, 1), (4, 0)] {
        kill_in_the_middle(size, victim, "registered", SHM);
    }
}

#[test]
fn two_ranks_killed_at_once_leave_an_error_that_names_one_of_them() {
    let _place = place();
    for env in [SHM, TCP] {
        in_time(|watch| {
            let mut ranks = world(4, env);
            set_going(&mut ranks, "ordinary");
            let since = Instant::now();
            for victim in [2, 0] {
                ranks.remove(victim).kill();
            }
            for answer in prompt_answers(watch, &ranks, since) {
                let named = answer.contains("rank 0 (") || answer.contains("rank 2 (");
                assert!(named && answer.contains("died"), "{answer}");
            }
        });
    }
}

#[test]
fn ranks_that_are_in_no_call_learn_of_a_killed_rank_at_their_next_one() {
    let _place = place();
    for env in [SHM, TCP] {
        for victim in [0, 1] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
                let mut killed = ranks.remove(victim);
                killed.kill();
                for call in ["call barrier", "call f32 all_reduce sum 1000", "check"] {
                    for rank in &mut ranks {
                        rank.order(call);
                    }
                    for answer in prompt_answers(watch, &ranks, Instant::now()) {
                        assert_names(&answer, victim, killed.pid());
                        assert_contains(&answer, &["died"]);
                    }
                }
            });
        }
    }
}

/// Passes a message between the first two ranks, which the third has no part in.
fn pass_a_message(ranks: &mut [Rank]) {
    ranks[0].order("call f32 send 1 1000");
    assert_eq!(ranks[1].ask("call f32 recv 0 1000"), "ok");
    assert_eq!(ranks[0].hear(), "ok");
}

#[test]
fn a_rank_killed_between_calls_is_no_error_of_calls_without_it() {
    let _place = place();
    for env in [SHM, TCP] {
        for needs in ["call f32 send 2 10", "call f32 recv 2 10", "call barrier"] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
                pass_a_message(&mut ranks);
                let pid = ranks[2].pid();
                ranks[2].kill();
                // The news is there in a moment; what follows holds before it, too.
                assert_all_ok(&mut ranks[..2], "sleep 300");
                assert_all_ok(&mut ranks[..2], "check");
                pass_a_message(&mut ranks);
                ranks[0].order(needs);
                let answer = watch.hear(&ranks[0], Instant::now(), promptly());
                assert_names(&answer, 2, pid);
                assert_contains(&answer, &["died"]);
                assert_eq!(ranks[1].ask("check"), "ok", "no call of it needs the rank");
                for answer in all(&mut ranks[..2], "call barrier") {
                    assert_names(&answer, 2, pid);
                }
            });
        }
    }
}

#[test]
fn a_receiver_that_waits_for_a_killed_rank_is_told_at_once() {
    let _place = place();
    for env in [SHM, TCP] {
        in_time(|watch| {
            let mut ranks = world(3, env);
            ranks[0].order("call f32 recv 2 10");
            std::thread::sleep(some_time(20..400));
            let since = Instant::now();
            let pid = ranks[2].pid();
            ranks[2].kill();
            let answer = watch.hear(&ranks[0], since, promptly());
            assert_names(&answer, 2, pid);
            assert_contains(&answer, &["died"]);
        });
    }
}

#[test]
fn a_rank_that_exits_has_left_although_it_has_dropped_nothing() {
    let _place = place();
    for env in [SHM, TCP] {
        // Waits when the rank exits, or calls afterwards.
        for early in [true, false] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                assert_all_ok(&mut ranks, "call barrier");
                let since = Instant::now();
                if !early {
                    ranks[2].order("exit");
                    assert_eq!(ranks[2].ended(), Some(0));
                    assert_all_ok(&mut ranks[..2], "check");
                    pass_a_message(&mut ranks);
                }
                for rank in &mut ranks[..2] {
                    rank.order("call barrier");
                }
                if early {
                    ranks[2].order("exit");
                }
                for answer in prompt_answers(watch, &ranks[..2], since) {
                    assert_names(&answer, 2, ranks[2].pid());
                    assert_contains(&answer, &["left the communicator after operation #1"]);
                }
            });
        }
    }
}

#[test]
fn a_call_that_needs_a_rank_that_has_left_fails() {
    let _place = place();
    for env in [SHM, TCP] {
        // Waits when the rank leaves, or calls afterwards.
        for early in [true, false] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                assert_all_ok(&mut ranks, "call barrier");
                if !early {
                    assert_eq!(ranks[2].ask("drop"), "ok");
                }
                for rank in &mut ranks[..2] {
                    rank.order("call f32 all_reduce sum 1000000");
                }
                let since = Instant::now();
                if early {
                    assert_eq!(ranks[2].ask("drop"), "ok");
                }
                for answer in prompt_answers(watch, &ranks[..2], since) {
                    assert_names(&answer, 2, ranks[2].pid());
                    let what = "all_reduce(count 1000000, float, sum)";
                    assert_contains(&answer, &["left the communicator after operation #1", what]);
                }
            });
        }
    }
}

#[test]
fn a_rank_that_leaves_at_once_ends_its_own_calls_and_is_missed_by_those_that_need_it() {
    let _place = place();
    for env in [SHM, TCP] {
        in_time(|watch| {
            let mut ranks = world(3, env);
            assert_all_ok(&mut ranks, "call barrier");
            assert_eq!(ranks[2].ask("leave-later 300"), "ok");
            let since = Instant::now();
            ranks[2].order("call f32 all_reduce sum 1000000");
            let own = watch.hear(&ranks[2], since, promptly());
            assert_names(&own, 2, ranks[2].pid());
            assert_contains(&own, &["left the communicator after operation #1"]);
            assert_all_ok(&mut ranks[..2], "check");
            pass_a_message(&mut ranks);
            let since = Instant::now();
            for rank in &mut ranks[..2] {
                rank.order("call f32 all_reduce sum 1000000");
            }
            for answer in prompt_answers(watch, &ranks[..2], since) {
                assert_names(&answer, 2, ranks[2].pid());
                assert_contains(&answer, &["left the communicator after operation #1"]);
            }
        });
    }
}

#[test]
fn what_a_rank_has_done_before_it_leaves_at_once_ends_well() {
    let _place = place();
    for env in [SHM, TCP] {
        let mut ranks = world(2, env);
        // Small enough for the link to hold it.
        assert_eq!(ranks[0].ask("call f32 send 1 10000"), "ok");
        assert_eq!(ranks[0].ask("call f32 broadcast 0 1000"), "ok");
        assert_eq!(ranks[0].ask("leave"), "ok");
        assert_eq!(ranks[1].ask("call f32 recv 0 10000"), "ok");
        assert_eq!(ranks[1].ask("call f32 broadcast 0 1000"), "ok");
        let answer = ranks[1].ask("call f32 recv 0 10000");
        assert_names(&answer, 0, ranks[0].pid());
        assert_contains(&answer, &["left"]);
    }
}

#[test]
fn a_receiver_whose_sender_has_left_fails() {
    let _place = place();
    for env in [SHM, TCP] {
        in_time(|watch| {
            let mut ranks = world(2, env);
            ranks[0].order("call f32 recv 1 100");
            let since = Instant::now();
            assert_eq!(ranks[1].ask("drop"), "ok");
            let answer = watch.hear(&ranks[0], since, promptly());
            assert_names(&answer, 1, ranks[1].pid());
            assert_contains(&answer, &["left"]);
        });
    }
}

#[test]
fn ranks_that_finalize_end_without_an_error_in_any_order() {
    let _place = place();
    for env in [SHM, TCP] {
        let mut ranks = world(3, env);
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 100000");
        assert_all_ok(&mut ranks, "finalize");
        for rank in &mut ranks {
            rank.order("exit");
            assert_eq!(rank.ended(), Some(0));
        }
    }
}

#[test]
fn what_a_rank_sent_before_it_finalized_and_exited_is_not_lost() {
    let _place = place();
    for env in [SHM, TCP] {
        let mut ranks = world(2, env);
        // Small enough for the link to hold it.
        assert_eq!(ranks[0].ask("call f32 send 1 10000"), "ok");
        assert_eq!(ranks[0].ask("drop"), "ok");
        ranks[0].order("exit");
        assert_eq!(ranks[0].ended(), Some(0));
        assert_eq!(ranks[1].ask("call f32 recv 0 10000"), "ok");
    }
}

#[test]
fn a_rank_that_dies_keeps_the_others_from_finalizing() {
    let _place = place();
    in_time(|watch| {
        let mut ranks = world(3, SHM);
        for rank in &mut ranks[..2] {
            rank.order("finalize");
        }
        let since = Instant::now();
        ranks[2].kill();
        for answer in prompt_answers(watch, &ranks[..2], since) {
            assert_names(&answer, 2, ranks[2].pid());
        }
    });
}

#[test]
fn an_abort_by_another_thread_or_rank_ends_a_blocked_call_everywhere() {
    let _place = place();
    for env in [SHM, TCP] {
        for other_rank in [false, true] {
            in_time(|watch| {
                let mut ranks = world(3, env);
                let aborts = usize::from(other_rank);
                if other_rank {
                    ranks[1].order("abort enough");
                    assert_eq!(ranks[1].hear(), "ok");
                } else {
                    assert_eq!(ranks[0].ask("abort-later 300 enough"), "ok");
                }
                let since = Instant::now();
                ranks[0].order("call f32 all_reduce sum 1000000");
                let answer = watch.hear(&ranks[0], since, promptly());
                assert_names(&answer, aborts, ranks[aborts].pid());
                assert_contains(&answer, &["aborted the communicator: enough"]);
                // Ranks in no call learn of it at their next one.
                let first = answer;
                for answer in all(&mut ranks, "call f32 all_reduce sum 1000000") {
                    assert_eq!(answer, first);
                }
            });
        }
    }
}

#[test]
fn an_abort_by_another_rank_ends_calls_that_are_blocked() {
    let _place = place();
    for env in [SHM, TCP] {
        in_time(|watch| {
            let mut ranks = world(3, env);
            for rank in &mut ranks[1..] {
                rank.order("call barrier");
            }
            std::thread::sleep(some_time(20..400));
            let since = Instant::now();
            assert_eq!(ranks[0].ask("abort enough"), "ok");
            for answer in prompt_answers(watch, &ranks[1..], since) {
                assert_names(&answer, 0, ranks[0].pid());
                assert_contains(&answer, &["aborted the communicator: enough"]);
            }
        });
    }
}

#[test]
fn survivors_build_a_new_communicator_and_go_on() {
    let _place = place();
    for env in [SHM, TCP] {
        for victim in [0, 2] {
            let mut ranks = world(3, env);
            set_going(&mut ranks, "ordinary");
            ranks.remove(victim).kill();
            for rank in &ranks {
                assert_contains(&rank.hear(), &["died"]);
            }
            for _ in 0..2 {
                join(&mut ranks);
                assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000000");
                assert_all_ok(&mut ranks, "call f64 alloc 1000");
            }
        }
    }
}

#[test]
fn what_the_rendezvous_finds_wrong_reaches_the_user() {
    let _place = place();
    let cases: [(&[(usize, usize)], &str); 3] = [
        (&[(0, 2)], "rank 1"),
        (&[(0, 2), (1, 3)], "size"),
        (&[(0, 3), (1, 3), (1, 3)], "rank 1"),
    ];
    for (claims, words) in cases {
        with_enough_time(Duration::from_secs(3), |limit| {
            let limit = limit.as_secs().to_string();
            let env = [("SPARK_CCL_INIT_TIMEOUT", &*limit)];
            let mut ranks: Vec<Rank> = claims.iter().map(|_| Rank::start(&env)).collect();
            let id = ranks[0].ask("id");
            for (rank, (number, size)) in ranks.iter_mut().zip(claims) {
                rank.order(&format!("join {id} {number} {size}"));
            }
            for rank in &ranks {
                let answer = rank.hear();
                assert!(answer.starts_with("error: "), "{answer}");
                // They may not have met in time.
                if !answer.contains(words) {
                    return Err(answer);
                }
            }
            Ok(())
        });
    }
}
