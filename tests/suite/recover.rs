//! Ranks that agree by themselves on who continues: never two groups of them, and all that answer
//! continue together.

use std::sync::Barrier;
use std::time::Duration;

use rustix::process::Signal;
use spark_ccl::{Communicator, Error, RedOp};
use spark_ccl_testing::{Need, has, with_enough_time};

use crate::hosts::{on_host, two_hosts_with};
use crate::processes::{
    Rank, all, assert_all_ok, assert_contains, assert_gave_up, assert_names, is_named, place,
    some_time, waited, world,
};
use crate::ranks::{each, run};

const SHM: (&str, &str) = ("SPARK_CCL_SHM", "1");
const TCP: (&str, &str) = ("SPARK_CCL_SHM", "0");
/// The timeout of operations, as short as a fast machine allows.
const TIMEOUT: Duration = Duration::from_secs(1);

/// All ranks reduce a buffer over and over. Stops one of them in the middle; the others give up
/// after `timeout`. Returns their answer if it does not name that rank alone: another one may be
/// late for an earlier call, or for their questions.
fn stop_in_the_middle(ranks: &mut [Rank], stopped: usize, timeout: Duration) -> Result<(), String> {
    for answer in all(ranks, "loop ordinary 100000") {
        assert_eq!(answer, "running");
    }
    std::thread::sleep(some_time(1..600));
    ranks[stopped].stop();
    for number in others(ranks, stopped) {
        let answer = ranks[number].hear();
        assert_gave_up(&answer, timeout.as_secs_f64());
        let (_, late) = answer.split_once("waits for: ").expect(&answer);
        let named = |number: usize| is_named(late, number, ranks[number].pid());
        let is_named_alone = named(stopped) && !others(ranks, stopped).any(named);
        if !is_named_alone || !late.contains("(stopped, or its host hangs)") {
            return Err(answer);
        }
    }
    Ok(())
}

fn others(ranks: &[Rank], stopped: usize) -> impl Iterator<Item = usize> + use<> {
    (0..ranks.len()).filter(move |&number| number != stopped)
}

/// A call of ranks that continue together. Returns the answer that names who was late, if any was.
fn sum(ranks: &mut [Rank]) -> Result<(), String> {
    for answer in all(ranks, "call f32 all_reduce sum 100000") {
        if waited(&answer).is_some() {
            return Err(answer);
        }
        assert_eq!(answer, "ok");
    }
    Ok(())
}

/// Three ranks with this timeout of operations, which take a stopped rank for silent after half as
/// long again.
fn world_within(timeout: Duration, transport: (&str, &str)) -> Vec<Rank> {
    let [of_calls, until_silent] = [timeout, timeout * 3 / 2].map(seconds);
    let env = [
        transport,
        ("SPARK_CCL_TIMEOUT", &of_calls),
        ("SPARK_CCL_LOST_AFTER", &until_silent),
    ];
    world(3, &env)
}

fn seconds(timeout: Duration) -> String {
    timeout.as_secs_f64().to_string()
}

/// The answers of ranks that were told to recover. At most one group of them may go on, however
/// slow the machine is.
fn recovered(ranks: &[Rank]) -> Vec<String> {
    let answers: Vec<String> = ranks.iter().map(Rank::hear).collect();
    let sizes: Vec<&String> = answers.iter().filter(|it| !is_error(it)).collect();
    let count = sizes.len().to_string();
    assert!(sizes.iter().all(|size| **size == count), "{answers:?}");
    answers
}

fn is_error(answer: &str) -> bool {
    answer.starts_with("error: recover: ")
}

#[test]
fn the_others_go_on_together_without_a_stopped_rank() {
    let _place = place();
    for (round, stopped) in [1, 0, 2, 1].into_iter().enumerate() {
        with_enough_time(TIMEOUT, |timeout| {
            let mut ranks = world_within(timeout, [SHM, TCP][round % 2]);
            stop_in_the_middle(&mut ranks, stopped, timeout)?;
            let mut sleeper = ranks.remove(stopped);
            for rank in &mut ranks {
                rank.order("recover");
            }
            // Else one that works was taken for silent.
            let answers = recovered(&ranks);
            if answers != ["2", "2"] {
                return Err(answers.join("; "));
            }
            sleeper.signal(Signal::CONT);
            assert_gave_up(&sleeper.hear(), timeout.as_secs_f64());
            let answer = sleeper.ask("recover");
            assert_contains(
                &answer,
                &["error: recover: rank ", "goes on without this rank"],
            );
            assert!(
                ranks
                    .iter()
                    .any(|rank| answer.contains(&format!("pid {}", rank.pid())))
            );
            sum(&mut ranks)?;
            assert_all_ok(&mut ranks, "finalize");
            // The same when the others are gone.
            drop(ranks);
            assert_contains(
                &sleeper.ask("recover"),
                &["error: recover: ", "goes on without"],
            );
            Ok(())
        });
    }
}

/// A rank that wakes up at any time is either included by all, or left out by all.
#[test]
fn a_rank_that_wakes_up_meanwhile_makes_no_second_world() {
    let _place = place();
    for round in 0..6 {
        with_enough_time(TIMEOUT, |timeout| {
            let mut ranks = world_within(timeout, [SHM, TCP][round % 2]);
            stop_in_the_middle(&mut ranks, 2, timeout)?;
            for rank in &mut ranks[..2] {
                rank.order("recover");
            }
            std::thread::sleep(timeout.mul_f64(some_time(500..2500).as_secs_f64()));
            ranks[2].signal(Signal::CONT);
            assert_gave_up(&ranks[2].hear(), timeout.as_secs_f64());
            ranks[2].order("recover");
            let answers = recovered(&ranks);
            // One that works was taken for silent.
            if answers[..2].iter().any(|answer| is_error(answer)) {
                return Err(answers.join("; "));
            }
            if is_error(&answers[2]) {
                assert_contains(&answers[2], &["goes on without this rank"]);
                ranks.pop();
            }
            sum(&mut ranks)
        });
    }
}

#[test]
fn half_of_the_ranks_do_not_go_on_where_the_first_may_still_work() {
    let _place = place();
    with_enough_time(TIMEOUT, |timeout| {
        let [of_calls, until_silent, of_recovery] =
            [timeout, timeout * 3 / 2, 4 * timeout].map(seconds);
        let env = [
            ("SPARK_CCL_TIMEOUT", &*of_calls),
            ("SPARK_CCL_INIT_TIMEOUT", &of_recovery),
            ("SPARK_CCL_LOST_AFTER", &until_silent),
        ];
        let mut ranks = world(2, &env);
        stop_in_the_middle(&mut ranks, 0, timeout)?;
        let answer = ranks[1].ask("recover");
        assert_contains(&answer, &["error: recover: no agreement within "]);
        assert_names(&answer, 0, ranks[0].pid());
        // If this rank had breaks itself, the other one's silence was too short.
        if !answer.contains("hears 1 of 2 ranks") {
            return Err(answer);
        }
        assert_contains(&answer, &["shrink"]);
        ranks[0].signal(Signal::CONT);
        assert_gave_up(&ranks[0].hear(), timeout.as_secs_f64());
        for rank in &mut ranks {
            rank.order("recover");
        }
        let answers = recovered(&ranks);
        if answers != ["2", "2"] {
            return Err(answers.join("; "));
        }
        sum(&mut ranks)
    });
}

#[test]
fn half_of_the_ranks_go_on_where_the_others_are_dead() {
    let _place = place();
    let mut ranks = world(2, &[]);
    for answer in all(&mut ranks, "loop ordinary 100000") {
        assert_eq!(answer, "running");
    }
    ranks.remove(0).kill();
    assert_contains(&ranks[0].hear(), &["died"]);
    assert_eq!(ranks[0].ask("recover"), "1");
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 100000");
}

/// To each side, the other host refuses at once, as if its processes had ended.
#[test]
fn of_two_hosts_whose_firewalls_refuse_one_goes_on() {
    let _place = place();
    if !has(Need::Nft) {
        return;
    }
    let env = [("SPARK_CCL_INIT_TIMEOUT", "5")];
    let Some(mut ranks) = two_hosts_with(&env, 2, &["cable"]) else {
        return;
    };
    for answer in all(&mut ranks, "loop ordinary 100000") {
        assert_eq!(answer, "running");
    }
    let rules = "add table inet cut; \
                 add chain inet cut out { type filter hook output priority 0; }; \
                 add rule inet cut out oif cable meta l4proto tcp reject with tcp reset";
    for host in [0, 2] {
        on_host(&ranks[host].pid().to_string(), "nft", &[rules]);
    }
    for rank in &ranks {
        assert_contains(&rank.hear(), &["died"]);
    }
    let mut second = ranks.split_off(2);
    for rank in ranks.iter_mut().chain(&mut second) {
        rank.order("recover");
    }
    for rank in &ranks {
        assert_eq!(rank.hear(), "2");
    }
    for rank in &second {
        let answer = rank.hear();
        let reasons = [
            "error: recover: no agreement",
            "hears 2 of 4 ranks",
            "shrink",
        ];
        assert_contains(&answer, &reasons);
        for (number, other) in ranks.iter().enumerate() {
            assert_names(&answer, number, other.pid());
        }
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 100000");
}

/// It answers, so the others wait for it; only the program may call it lost.
#[test]
fn a_rank_that_hangs_in_the_program_is_not_left_out() {
    with_enough_time(Duration::from_secs(4), |limit| {
        let builder = Communicator::builder().init_timeout(limit);
        let gave_up = Barrier::new(3);
        let outcomes = each(builder.local(3).unwrap(), |comm| {
            if comm.rank() == 1 {
                gave_up.wait();
            } else {
                let text = comm.recover().unwrap_err().to_string();
                assert!(text.contains("recover: no agreement within "), "{text}");
                assert!(
                    text.contains("rank 1 (") && text.contains("has not called it"),
                    "{text}"
                );
                gave_up.wait();
            }
            let all = comm.recover()?;
            assert_eq!((all.rank(), all.size()), (comm.rank(), 3));
            all.barrier().run()
        });
        // Else they have not met again in time.
        let met: Result<(), Error> = outcomes.into_iter().collect();
        met.map_err(|error| error.to_string())
    });
}

#[test]
fn a_recovered_communicator_is_recovered_and_shrunk_again() {
    let all_have = Barrier::new(4);
    run(4, |comm| {
        let all = comm.recover().unwrap();
        assert_eq!((all.rank(), all.size()), (comm.rank(), 4));
        // Rank 3 may still be in its call, which fails once the others have called it lost.
        all_have.wait();
        if comm.rank() == 3 {
            // The others leave this rank out by name.
            return;
        }
        let fewer = all.shrink(&[3]).unwrap().recover().unwrap();
        let mut sum = [1_u32];
        fewer
            .all_reduce_in_place(&mut sum, RedOp::Sum)
            .run()
            .unwrap();
        assert_eq!(sum, [3]);
    });
}

/// The error has a variant of its own, for both functions.
#[test]
fn a_rank_that_the_others_name_is_left_out() {
    let gone_on = Barrier::new(3);
    each(Communicator::local(3).unwrap(), |comm| {
        if comm.rank() == 1 {
            gone_on.wait();
            for result in [comm.recover(), comm.shrink(&[])] {
                assert!(matches!(result, Err(Error::LeftOut { .. })), "{result:?}");
            }
            gone_on.wait();
            return;
        }
        let rest = comm.shrink(&[1]).unwrap();
        gone_on.wait();
        gone_on.wait();
        rest.barrier().run().unwrap();
    });
}
