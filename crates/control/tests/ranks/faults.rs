//! Every fault reaches every rank, and names the rank that caused it.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_control::{Fault, Leave, Monitor, Watch};

use crate::common::{
    self, World, everyone_fails, fault, in_a_call, name, start, streams, until, watches, words,
    world_with_victims,
};

in_any_world! {
    an_abort_reaches_everyone,
    a_waiting_rank_finds_a_mismatch_and_all_learn_of_it,
    a_mismatch_is_found_when_the_other_rank_arrives,
    a_rank_that_is_behind_compares_each_operation_once_it_gets_there,
    point_to_point_operations_are_compared_with_nobody,
    a_rank_that_leaves_is_a_fault_only_for_later_operations,
    a_rank_that_leaves_fails_those_who_already_wait_for_it,
    leaving_the_world_is_leaving_each_communicator_and_no_death,
    a_timeout_tells_everyone_who_was_late,
    a_broken_link_is_told_to_everyone,
    of_two_faults_at_once_each_rank_keeps_its_own,
}

const SIZES: [u32; 5] = [2, 3, 5, 8, 16];

fn an_abort_reaches_everyone(world: World) {
    for size in SIZES {
        let world = world(size);
        let watches = watches(&world, 7);
        let by = size - 1;
        let aborted = Fault::Aborted {
            by: watches[0].member(by),
            reason: "the loss is not a number".into(),
        };
        watches[by as usize].raise(aborted.clone());
        for watch in &watches {
            assert_eq!(*fault(watch), aborted);
        }
        let text = aborted.to_string();
        assert!(
            text.contains(&name(by)) && text.contains("not a number"),
            "{text}"
        );
    }
}

#[test]
fn the_death_of_any_rank_reaches_all_others() {
    for size in SIZES {
        for victim in [0, size - 1, size / 2] {
            let (alive, victim_streams) = world_with_victims(size, &[victim]);
            let watches = watch_all(&alive, size);
            in_a_call(&watches);
            drop(victim_streams);
            for watch in &watches {
                let fault = fault(watch);
                assert_eq!(
                    *fault,
                    Fault::Died {
                        rank: watch.member(victim)
                    }
                );
                assert!(fault.to_string().starts_with(&name(victim)), "{fault}");
            }
        }
    }
}

#[test]
fn three_deaths_at_once_reach_everyone() {
    for (size, victims) in [
        (8, [0, 1, 2]),
        (8, [0, 3, 7]),
        (16, [0, 1, 15]),
        (16, [0, 4, 12]),
    ] {
        let (alive, victim_streams) = world_with_victims(size, &victims);
        let watches = watch_all(&alive, size);
        in_a_call(&watches);
        drop(victim_streams);
        for watch in &watches {
            match &*fault(watch) {
                Fault::Died { rank } => assert!(victims.contains(&(rank.rank as u32)), "{rank}"),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_death_between_calls_is_a_fault_only_of_calls_that_need_the_rank() {
    let (alive, victim_streams) = world_with_victims(3, &[2]);
    let watches = watch_all(&alive, 3);
    for watch in &watches {
        watch.enter(1, [1, 1]);
        watch.finish(1);
    }
    drop(victim_streams);
    let died = Fault::Died {
        rank: watches[0].member(2),
    };
    for watch in &watches {
        until("the death", || watch.latent().is_some());
        assert_eq!(watch.latent_of(2), Some(died.clone()));
        assert_eq!(watch.latent_of(1), None);
        assert!(!watch.failed() && !watch.is_whole());
        assert!(watch.ended().contains(&2), "the others know it");
    }
    watches[0].enter(2, [1, 1]);
    assert_eq!(*fault(&watches[0]), died);
    // The next one makes no call, and hears that the first takes part in nothing further.
    until("the word of the first", || watches[1].left(0).is_some());
    assert!(!watches[1].failed());
    assert_eq!(watches[1].left(0).unwrap().cause, Some(died.clone()));
    watches[1].enter(2, [1, 1]);
    assert_eq!(*fault(&watches[1]), died);
}

#[test]
fn a_call_of_a_watch_that_is_built_after_a_death_fails() {
    let (alive, victim_streams) = world_with_victims(3, &[2]);
    let early = watch_all(&alive, 3);
    in_a_call(&early);
    drop(victim_streams);
    everyone_fails(&early);
    let late = alive[0].1.watch(8, vec![0, 1, 2], words);
    assert!(!late.failed(), "no call needs it yet");
    late.enter(1, [1, 1]);
    assert_eq!(
        *fault(&late),
        Fault::Died {
            rank: late.member(2)
        }
    );
    let without = alive[0].1.watch(9, vec![1, 0], words);
    without.enter(1, [1, 1]);
    assert!(!without.failed(), "the dead rank is no member");
}

#[test]
fn garbage_on_a_stream_names_the_neighbour_that_sent_it() {
    for size in [3, 8, 16] {
        let (alive, victim_streams) = world_with_victims(size, &[1]);
        let watches = watch_all(&alive, size);
        in_a_call(&watches);
        let (to, socket) = &victim_streams[0][0];
        socket.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        for watch in &watches {
            match &*fault(watch) {
                Fault::Lost { rank, error } => {
                    assert_eq!(rank.rank, 1);
                    assert!(error.contains(&name(*to)), "{error}");
                    assert!(
                        error.contains("expected the start of a control message"),
                        "{error}"
                    );
                }
                other => panic!("{other}"),
            }
        }
    }
}

fn a_waiting_rank_finds_a_mismatch_and_all_learn_of_it(world: World) {
    for size in SIZES {
        let world = world(size);
        let watches = watches(&world, 7);
        let odd = size / 2;
        for (rank, watch) in (0..).zip(&watches) {
            watch.enter(1, [1, 100]);
            watch.finish(1);
            watch.enter(2, if rank == odd { [2, 100] } else { [1, 100] });
        }
        watches[0].announce(
            2,
            if odd == 0 { [2, 100] } else { [1, 100] },
            Some(size - 1),
        );
        for watch in &watches {
            assert_mismatch(&fault(watch), 2, odd);
        }
    }
}

fn a_mismatch_is_found_when_the_other_rank_arrives(world: World) {
    let world = world(5);
    let watches = watches(&world, 7);
    for watch in &watches[1..] {
        watch.enter(1, [1, 100]);
        watch.announce(1, [1, 100], None);
    }
    // Rank 0 calls something else, but only after the others' announcements have arrived.
    until("announcements", || {
        (1..5).all(|rank| watches[0].last_seen(rank).last.is_some())
    });
    assert!(!watches[0].failed());
    watches[0].enter(1, [2, 100]);
    assert!(watches[0].failed());
    for watch in &watches {
        assert_mismatch(&fault(watch), 1, 0);
    }
}

fn a_rank_that_is_behind_compares_each_operation_once_it_gets_there(world: World) {
    let world = world(2);
    let watches = watches(&world, 7);
    (1..=5).for_each(|sequence| watches[0].enter(sequence, [1, sequence]));
    watches[0].announce(5, [1, 5], Some(1));
    until("the announcement", || {
        watches[1].last_seen(0).last == Some((5, words([1, 5])))
    });
    (1..=4).for_each(|sequence| watches[1].enter(sequence, [1, sequence]));
    assert!(!watches[1].failed());
    watches[1].enter(5, [1, 6]);
    assert_mismatch(&fault(&watches[0]), 5, 1);
}

fn point_to_point_operations_are_compared_with_nobody(world: World) {
    let world = world(2);
    let watches = watches(&world, 7);
    let first = spark_ccl_control::POINT_TO_POINT_MARK | 1;
    watches[0].enter(1, [1, 1]);
    watches[1].announce(first, [9, 9], Some(0));
    until("the announcement", || {
        watches[0].last_seen(1).last == Some((first, words([9, 9])))
    });
    watches[0].enter(2, [1, 1]);
    watches[0].announce(first, [8, 8], Some(1));
    until("the announcement", || {
        watches[1].last_seen(0).last == Some((first, words([8, 8])))
    });
    assert!(!watches[0].failed() && !watches[1].failed());
}

fn a_rank_that_leaves_is_a_fault_only_for_later_operations(world: World) {
    for size in SIZES {
        let world = world(size);
        let watches = watches(&world, 7);
        for watch in &watches {
            watch.enter(1, [1, 1]);
            watch.finish(1);
        }
        let (leaver, others) = watches.split_last().unwrap();
        leaver.leave(Leave::after(1));
        for watch in others {
            until("the departure", || {
                watch.left(size - 1) == Some(Leave::after(1))
            });
            assert!(!watch.failed(), "leaving is no fault by itself");
            watch.enter(2, [1, 2]);
            let left = Fault::Left {
                rank: watch.member(size - 1),
                last_sequence: 1,
                sequence: 2,
                words: words([1, 2]),
            };
            assert_eq!(*fault(watch), left);
        }
    }
}

fn a_rank_that_leaves_fails_those_who_already_wait_for_it(world: World) {
    let world = world(3);
    let watches = watches(&world, 7);
    watches[0].enter(1, [1, 1]);
    watches[0].announce(1, [1, 1], Some(2));
    watches[2].leave(Leave::after(0));
    match &*fault(&watches[0]) {
        Fault::Left {
            rank,
            last_sequence: 0,
            sequence: 1,
            ..
        } => assert_eq!(rank.rank, 2),
        other => panic!("{other}"),
    }
    until("the departure", || {
        watches[1].left(2) == Some(Leave::after(0))
    });
    assert!(!watches[1].failed(), "it is in no operation");
}

fn leaving_the_world_is_leaving_each_communicator_and_no_death(world: World) {
    for size in SIZES {
        let mut world = world(size);
        let mut watches = watches(&world, 7);
        drop(watches.pop());
        drop(world.pop());
        for (monitor, watch) in world.iter().zip(&watches) {
            until("the departure", || {
                watch.left(size - 1) == Some(Leave::after(0))
            });
            // A communicator that is created after the goodbye, and that the leaving rank never
            // created.
            let next = monitor.watch(8, (0..size).collect(), words);
            until("the goodbye", || {
                next.left(size - 1) == Some(Leave::after(0))
            });
            assert!(!watch.failed() && !next.failed());
            next.enter(1, [1, 1]);
            assert!(matches!(*fault(&next), Fault::Left { .. }));
        }
    }
}

fn a_timeout_tells_everyone_who_was_late(world: World) {
    for size in SIZES {
        let world = world(size);
        let watches = watches(&world, 7);
        let victim = 1;
        let waiting: Vec<u32> = (0..size).filter(|&rank| rank != victim).collect();
        for &rank in &waiting {
            let watch = &watches[rank as usize];
            watch.enter(4, [1, 8]);
            watch.announce(4, [1, 8], Some(victim));
        }
        let by = &watches[0];
        let window = Duration::from_secs(60);
        until("announcements", || by.late(4, window).len() == 1);
        let late = by.late(4, window);
        assert_eq!(late[0].rank, by.member(victim));
        let timed_out = Fault::TimedOut {
            by: by.member(0),
            sequence: 4,
            words: words([1, 8]),
            waited: Duration::from_secs(600),
            late: late
                .into_iter()
                .map(|mut late| {
                    late.age = Some(Duration::from_secs(9));
                    late
                })
                .collect(),
        };
        by.raise(timed_out.clone());
        for watch in &watches {
            assert_eq!(*fault(watch), timed_out);
        }
    }
}

fn a_broken_link_is_told_to_everyone(world: World) {
    let world = world(16);
    let watches = watches(&world, 7);
    let watch = &watches[5];
    let link = Fault::Link {
        by: watch.member(5),
        peer: watch.member(9),
        text: "connection reset".into(),
    };
    watch.raise(link.clone());
    for watch in &watches {
        assert_eq!(*fault(watch), link);
    }
}

fn of_two_faults_at_once_each_rank_keeps_its_own(world: World) {
    let world = world(2);
    let watches = watches(&world, 7);
    let aborted = |rank: usize| Fault::Aborted {
        by: watches[rank].member(rank as u32),
        reason: format!("reason {rank}"),
    };
    std::thread::scope(|scope| {
        for (rank, watch) in watches.iter().enumerate() {
            let aborted = &aborted;
            scope.spawn(move || {
                watch.raise(aborted(rank));
                watch.raise(aborted(1 - rank));
            });
        }
    });
    for watch in &watches {
        let first = fault(watch);
        assert!(*first == aborted(0) || *first == aborted(1), "{first}");
        watch.raise(Fault::Died {
            rank: watch.member(0),
        });
        assert_eq!(watch.fault(), Some(first), "the first one stays");
    }
}

fn watch_all(alive: &[(u32, Arc<Monitor>)], size: u32) -> Vec<Arc<Watch>> {
    alive
        .iter()
        .map(|(_, monitor)| monitor.watch(7, (0..size).collect(), words))
        .collect()
}

fn assert_mismatch(fault: &Fault, at: u64, odd: u32) {
    match fault {
        Fault::Mismatch {
            sequence,
            rank_a,
            words_a,
            rank_b,
            words_b,
        } => {
            assert_eq!(*sequence, at);
            assert!(words_a != words_b, "{fault}");
            assert!(
                [rank_a.rank, rank_b.rank].contains(&(odd as usize)),
                "{fault}"
            );
        }
        other => panic!("{other}"),
    }
    let text = fault.to_string();
    assert!(
        text.contains(&name(odd)) && text.contains(&format!("#{at}")),
        "{text}"
    );
}

#[test]
fn the_ends_of_a_stream_that_is_not_of_the_world_are_refused() {
    for (me, peers) in [(3, vec![]), (0, vec![0]), (0, vec![1, 1]), (0, vec![3])] {
        let pairs = peers
            .iter()
            .map(|&peer| (peer, streams(2).remove(0).remove(0).1))
            .collect();
        let error = Monitor::start(me, common::names(3), pairs, None)
            .err()
            .unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    let alone = start(0, 1, Vec::new()).watch(1, vec![0], words);
    alone.enter(1, [1, 1]);
    alone.announce(1, [1, 1], None);
    assert!(!alone.failed() && alone.late(1, Duration::ZERO).is_empty());
}
