//! Ranks that are stopped or late: the deadline names them. When they wake up, they can no longer
//! touch the buffers that the others got back.

use std::time::Duration;

use rustix::process::Signal;
use spark_ccl_testing::with_enough_time;

use crate::processes::{
    Rank, all, assert_all_ok, assert_contains, assert_gave_up, assert_names, is_named, join, place,
    some_time, waited, world,
};

const SHM: (&str, &str) = ("SPARK_CCL_SHM", "1");
const TCP: (&str, &str) = ("SPARK_CCL_SHM", "0");
const TIMEOUT: (&str, &str) = ("SPARK_CCL_TIMEOUT", "3");
const SHORT: Duration = Duration::from_secs(3);
/// Elements of a buffer: 40 MiB.
const COUNT: usize = 10 << 20;
/// The value that the others write into their returned buffers. Smaller than what ranks reduce, so
/// it would not win the maximum if a rank still read it.
const PATTERN: &str = "-12345";

/// Stops a rank at some moment of an endless series of all-reduces, until the others have given up.
/// `Err` if the timeout was too short for one of them.
fn stop_and_wake(ranks: &mut [Rank], memory: &str, timeout: Duration) -> Result<(), String> {
    let stopped = ranks.len() - 1;
    for answer in all(ranks, &format!("loop {memory} {COUNT}")) {
        if answer.contains("gave up after") {
            return Err(answer);
        }
        assert_eq!(answer, "running");
    }
    std::thread::sleep(some_time(1..100));
    ranks[stopped].stop();
    let pid = ranks[stopped].pid();
    let (sleeper, others) = ranks.split_last_mut().unwrap();
    for rank in &mut *others {
        let answer = rank.hear();
        assert_gave_up(&answer, timeout.as_secs_f64());
        assert_contains(&answer, &["waits for: ", "all_reduce"]);
        let (_, late) = answer.split_once("waits for: ").unwrap();
        // Another one may have been late before.
        if !is_named(late, stopped, pid) {
            return Err(answer);
        }
    }
    assert_all_ok(others, &format!("fill {memory} {PATTERN}"));
    sleeper.signal(Signal::CONT);
    // The woken rank gets the error, too, instead of continuing.
    assert_gave_up(&sleeper.hear(), timeout.as_secs_f64());
    std::thread::sleep(Duration::from_secs(1));
    for answer in all(others, &format!("count-other-than {memory} {PATTERN}")) {
        assert_eq!(answer, "0", "elements were written by a rank that woke up");
    }
    Ok(())
}

/// Ranks with this timeout for calls.
fn world_within(timeout: Duration, size: usize, transport: (&str, &str)) -> Vec<Rank> {
    let seconds = timeout.as_secs().to_string();
    world(size, &[transport, ("SPARK_CCL_TIMEOUT", &seconds)])
}

#[test]
fn a_stopped_rank_is_named_and_writes_nothing_when_it_wakes_up() {
    let _place = place();
    for transport in [SHM, TCP] {
        with_enough_time(SHORT, |timeout| {
            let mut ranks = world_within(timeout, 2, transport);
            for _ in 0..2 {
                stop_and_wake(&mut ranks, "ordinary", timeout)?;
                join(&mut ranks);
            }
            Ok(())
        });
    }
}

#[test]
fn a_stopped_rank_is_cut_off_from_registered_memory() {
    let _place = place();
    for size in [2, 3] {
        with_enough_time(SHORT, |timeout| {
            let mut ranks = world_within(timeout, size, SHM);
            let why = ranks[0].ask(&format!("explain registered {COUNT}"));
            assert_contains(&why, &["all ranks map each other's registered memory"]);
            for _ in 0..3 {
                stop_and_wake(&mut ranks, "registered", timeout)?;
                join(&mut ranks);
            }
            Ok(())
        });
    }
}

#[test]
fn a_stopped_sender_is_named_by_its_receiver() {
    let _place = place();
    let mut ranks = world(3, &[SHM, TIMEOUT]);
    ranks[2].stop();
    let answer = ranks[0].ask("call f32 recv 2 100");
    assert_gave_up(&answer, 3.0);
    assert_contains(&answer, &["rank 0 (", "recv(count 100"]);
    assert_names(&answer, 2, ranks[2].pid());
    ranks[2].signal(Signal::CONT);
    for answer in all(&mut ranks, "call barrier") {
        assert_gave_up(&answer, 3.0);
    }
}

#[test]
fn a_rank_that_is_late_but_alive_is_named_as_such() {
    let _place = place();
    for transport in [SHM, TCP] {
        with_enough_time(SHORT, |timeout| {
            let mut ranks = world_within(timeout, 3, transport);
            assert_all_ok(&mut ranks, "call barrier");
            for rank in [0, 2] {
                ranks[rank].order("call f32 all_reduce sum 1000000");
            }
            for rank in [0, 2] {
                let answer = ranks[rank].hear();
                let (who, late) = answer.split_once("waits for: ").expect(&answer);
                assert_contains(
                    who,
                    &["operation #2 (all_reduce(count 1000000, float, sum))"],
                );
                assert_names(late, 1, ranks[1].pid());
                assert_contains(late, &["alive but has not made this call", "operation #1"]);
                // On a busy machine, that one may not have begun its call, either.
                if late.contains("rank 2 (") {
                    return Err(answer);
                }
            }
            let answer = ranks[1].ask("call f32 all_reduce sum 1000000");
            assert_gave_up(&answer, timeout.as_secs_f64());
            assert_names(&answer, 1, ranks[1].pid());
            Ok(())
        });
    }
}

/// Each of two ranks in turn begins a call two thirds of the timeout later than the others. `Err`
/// if the rest was too short for it to wake up, and for the call itself.
fn wait_for_slow_ranks(transport: (&str, &str), timeout: Duration) -> Result<(), String> {
    let mut ranks = world_within(timeout, 3, transport);
    for late in 0..2 {
        for number in (0..3).filter(|&number| number != late) {
            ranks[number].order("call f32 all_reduce sum 1000000");
        }
        let delay = timeout.as_millis() * 2 / 3;
        ranks[late].order(&format!("sleep {delay}"));
        ranks[late].order("call f32 all_reduce sum 1000000");
        assert_eq!(ranks[late].hear(), "ok");
        for rank in &ranks {
            let answer = rank.hear();
            if waited(&answer).is_some() {
                return Err(answer);
            }
            assert_eq!(answer, "ok");
        }
    }
    assert_all_ok(&mut ranks, "finalize");
    Ok(())
}

#[test]
fn a_rank_that_is_slow_but_in_time_is_waited_for() {
    let _place = place();
    for transport in [SHM, TCP] {
        with_enough_time(SHORT, |timeout| wait_for_slow_ranks(transport, timeout));
    }
}
