//! Ranks die or are stopped; the others shrink the communicator and continue.

use std::time::Duration;

use rustix::process::Signal;

use crate::processes::{
    Rank, all, alone, assert_all_ok, assert_contains, assert_gave_up, assert_names, some_time,
    world,
};

const SHM: (&str, &str) = ("SPARK_CCL_SHM", "1");
const TCP: (&str, &str) = ("SPARK_CCL_SHM", "0");
/// The timeout of operations.
const TIMEOUT: (&str, &str) = ("SPARK_CCL_TIMEOUT", "3");
/// Elements of a buffer: 4 MiB.
const COUNT: usize = 1 << 20;

/// Has every rank reduce a buffer over and over.
fn set_going(ranks: &mut [Rank]) {
    for answer in all(ranks, &format!("loop ordinary {COUNT}")) {
        assert_eq!(answer, "running");
    }
}

/// Kills ranks in quick succession, the last one first. Returns the answers of the others.
fn kill_in_the_middle(ranks: &mut Vec<Rank>, victims: &[usize]) -> Vec<String> {
    set_going(ranks);
    std::thread::sleep(some_time(1..100));
    for &victim in victims.iter().rev() {
        ranks.remove(victim).kill();
    }
    ranks.iter().map(Rank::hear).collect()
}

/// Checks the results of ranks with these numbers, over all links.
fn assert_they_work(ranks: &mut [Rank]) {
    for call in [
        "call f32 all_reduce sum 1000000",
        "call i32 all_reduce max 3",
        "call f64 all_to_all 1000",
        "call f64 alloc 1000",
        "call allocated f32 all_reduce sum 100000",
        "call barrier",
    ] {
        assert_all_ok(ranks, call);
    }
}

#[test]
fn survivors_of_deaths_in_an_all_reduce_go_on() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        for victims in [&[2][..], &[0], &[1, 2]] {
            let mut ranks = world(4, &[transport]);
            for answer in kill_in_the_middle(&mut ranks, victims) {
                assert_contains(&answer, &["died"]);
            }
            assert_all_ok(&mut ranks, "shrink");
            assert_they_work(&mut ranks);
            assert_all_ok(&mut ranks, "finalize");
        }
    }
}

#[test]
fn a_shrunk_communicator_fails_and_is_shrunk_again() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        let mut ranks = world(4, &[transport]);
        for victim in [1, 0, 1] {
            kill_in_the_middle(&mut ranks, &[victim]);
            assert_all_ok(&mut ranks, "shrink");
            assert_they_work(&mut ranks);
        }
        assert_eq!(ranks.len(), 1);
    }
}

#[test]
fn ranks_that_are_called_lost_may_have_died() {
    let _alone = alone();
    let mut ranks = world(4, &[SHM]);
    let answers = kill_in_the_middle(&mut ranks, &[1, 3]);
    assert_eq!(answers.len(), 2);
    ranks[0].order("shrink 3 1 3");
    ranks[1].order("shrink");
    for rank in &ranks {
        assert_eq!(rank.hear(), "ok");
    }
    assert_they_work(&mut ranks);
}

#[test]
fn a_part_of_a_communicator_is_shrunk() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        let mut ranks = world(5, &[transport]);
        for (number, rank) in ranks.iter_mut().enumerate() {
            // In the reverse of the world's order; rank 4 stays alone.
            rank.order(&format!("split {} {}", number / 4, 4 - number % 4));
        }
        for rank in &ranks {
            assert_eq!(rank.hear(), "ok");
        }
        let mut part: Vec<Rank> = ranks.drain(..4).collect();
        kill_in_the_middle(&mut part, &[2]);
        assert_all_ok(&mut part, "shrink");
        assert_they_work(&mut part);
        assert_all_ok(&mut part, "split 0 0");
        assert_they_work(&mut part);
        assert_they_work(&mut ranks);
    }
}

#[test]
fn a_rank_dies_while_the_others_wait_for_it() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        let mut ranks = world(4, &[transport]);
        kill_in_the_middle(&mut ranks, &[1]);
        let mut victim = ranks.pop().unwrap();
        for rank in &mut ranks {
            rank.order("shrink");
        }
        std::thread::sleep(some_time(50..300));
        victim.kill();
        for rank in &ranks {
            assert_eq!(rank.hear(), "ok");
        }
        assert_they_work(&mut ranks);
    }
}

#[test]
fn a_rank_dies_while_all_shrink() {
    let _alone = alone();
    for round in 0..6 {
        kill_while_all_go_on_by("shrink", round);
    }
}

#[test]
fn a_rank_dies_while_all_recover() {
    let _alone = alone();
    for round in 0..6 {
        kill_while_all_go_on_by("recover", round);
    }
}

fn kill_while_all_go_on_by(function: &str, round: usize) {
    let transport = [SHM, TCP][round % 2];
    let mut ranks = world(5, &[transport]);
    kill_in_the_middle(&mut ranks, &[1]);
    let mut victim = ranks.pop().unwrap();
    let order = format!("go-on-by {function} f32 all_reduce sum 100000");
    victim.order(&order);
    for rank in &mut ranks {
        rank.order(&order);
    }
    std::thread::sleep(Duration::from_micros(400) * round as u32);
    victim.kill();
    for rank in &ranks {
        assert_eq!(rank.hear(), "3");
    }
    assert_they_work(&mut ranks);
}

#[test]
fn a_stopped_rank_that_is_called_lost_wakes_up_with_an_error() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        for others_order in ["shrink", "shrink 0 1"] {
            let mut ranks = world(3, &[transport, TIMEOUT]);
            set_going(&mut ranks);
            std::thread::sleep(some_time(1..100));
            let mut stopped = ranks.pop().unwrap();
            stopped.stop();
            for rank in &ranks {
                let answer = rank.hear();
                assert_gave_up(&answer, 3.0);
                assert_names(&answer, 2, stopped.pid());
            }
            assert_all_ok(&mut ranks, "shrink 2");
            assert_they_work(&mut ranks);
            for rank in &mut ranks {
                rank.order("rounds 300 f32 all_reduce sum 100000");
            }
            stopped.signal(Signal::CONT);
            assert_gave_up(&stopped.hear(), 3.0);
            let answer = stopped.ask(others_order);
            if others_order == "shrink" {
                assert_contains(&answer, &["error: shrink: ", "goes on without this rank"]);
                assert!(
                    answer.contains(&format!("pid {}", ranks[0].pid())),
                    "{answer}"
                );
            } else {
                // It continues alone, and disturbs nobody.
                assert_eq!(answer, "ok");
            }
            for rank in &ranks {
                assert_eq!(rank.hear(), "running");
                assert_eq!(rank.hear(), "ok");
            }
            assert_all_ok(&mut ranks, "shrink");
            assert_they_work(&mut ranks);
        }
    }
}

/// A rank that waits in `shrink` continues operations that it has started, for ranks that wait for
/// those first.
#[test]
fn what_is_in_flight_goes_on_while_a_rank_shrinks() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        let mut ranks = world(2, &[transport, TIMEOUT]);
        ranks[0].order(&format!("start-and-shrink {COUNT}"));
        ranks[1].order(&format!("call f32 all_reduce sum {COUNT}"));
        assert_eq!(ranks[1].hear(), "ok");
        ranks[1].order("shrink");
        for rank in &ranks {
            assert_eq!(rank.hear(), "ok");
        }
        assert_they_work(&mut ranks);
    }
}

#[test]
fn shrinking_leaves_no_descriptors_or_threads_behind() {
    let _alone = alone();
    for transport in [SHM, TCP] {
        let mut ranks = world(3, &[transport]);
        for answer in all(&mut ranks, "shrink-over-and-over 50") {
            let more: Vec<usize> = answer.split(' ').map(|n| n.parse().unwrap()).collect();
            // One per round would be 45. Some belong to the last communicator, which is about to
            // end.
            assert!(more[0] < 30 && more[1] < 5, "{answer}");
        }
        assert_they_work(&mut ranks);
    }
}
