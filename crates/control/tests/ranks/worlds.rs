//! Communicators side by side, news that arrives early, and neighbours that do not read.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use socket2::Socket;
use spark_ccl_control::{Fault, Leave, Monitor, Presence, Proposal};
use spark_ccl_fork::Unshared;

use crate::common::{
    World, everyone_fails, fault, name, names, start, until, watches, words, world_with_victims,
};

in_any_world! {
    a_fault_stays_in_its_communicator,
    ranks_that_are_asked_say_how_far_they_are,
    news_of_a_communicator_that_is_not_built_yet_are_kept,
    ranks_that_finished_or_wait_are_not_late,
    communicators_come_and_go,
    a_context_that_a_rank_renounces_fails_in_the_first_call,
}

fn a_fault_stays_in_its_communicator(world: World) {
    let world = world(5);
    let all = watches(&world, 1);
    let others = watches(&world, 2);
    all[2].raise(Fault::Aborted {
        by: all[2].member(2),
        reason: "enough".into(),
    });
    everyone_fails(&all);
    assert!(others.iter().all(|watch| !watch.failed()));
}

/// Each rank answers the one that asks how far it is, also where that is not its neighbour, and
/// whether it waits or not.
fn ranks_that_are_asked_say_how_far_they_are(world: World) {
    let world = world(9);
    let all = watches(&world, 1);
    for (rank, watch) in (0..).zip(&all) {
        watch.count_calls(move || std::array::from_fn(|kind| 100 * rank + kind as u64));
        for sequence in 1..=rank + 1 {
            watch.enter(sequence, [7, 7]);
        }
        watch.finish(rank);
    }
    all[5].announce(6, [7, 7], Some(3));
    assert!(all[0].standings()[1..].iter().all(|it| it.answer.is_none()));
    all[0].ask();
    let standings = || all[0].standings();
    until("answers", || {
        standings().iter().all(|it| it.answer.is_some())
    });
    for (rank, standing) in (0..).zip(standings()) {
        let (answer, _) = standing.answer.unwrap();
        assert_eq!(standing.presence, Presence::Here);
        assert_eq!(standing.rank.rank as u64, rank);
        assert_eq!((answer.entered, answer.finished), (rank + 1, rank));
        assert_eq!(answer.signature, [7, 7]);
        assert_eq!(answer.calls[3], 100 * rank + 3);
        let waits = answer.waits.map(|wait| (wait.sequence, wait.for_rank));
        assert_eq!(waits, (rank == 5).then_some((6, Some(3))));
    }
    all[5].finish(6);
    all[3].leave(Leave::after(4));
    until("the departure", || {
        standings()[3].presence == Presence::Left
    });
    all[0].ask();
    let waits = || standings()[5].answer.unwrap().0.waits;
    until("the end of the wait", || waits().is_none());
}

#[test]
fn the_dead_are_known_to_be_gone() {
    let (alive, victim_streams) = world_with_victims(4, &[2]);
    let watch =
        |(_, monitor): &(u32, std::sync::Arc<Monitor>)| monitor.watch(1, (0..4).collect(), words);
    let watches: Vec<_> = alive.iter().map(watch).collect();
    watches[0].ask();
    drop(victim_streams);
    until("the death", || {
        watches[0].standings()[2].presence == Presence::Gone
    });
    assert_eq!(watches[0].standings()[2].answer, None);
}

#[test]
fn ranks_of_a_split_have_their_own_numbers() {
    let (alive, victim_streams) = world_with_victims(5, &[3]);
    // In reverse: communicator rank 0 is rank 4 of the world, and so on.
    let odd_ones: Vec<_> = alive
        .iter()
        .filter(|(me, _)| [4, 1].contains(me))
        .map(|(_, monitor)| monitor.watch(7, vec![4, 3, 1], words))
        .collect();
    for watch in &odd_ones {
        watch.enter(1, [1, 1]);
    }
    odd_ones[0].announce(1, [1, 1], Some(0));
    let seen = || odd_ones[1].last_seen(2);
    until("the announcement", || seen().last.is_some());
    assert_eq!(seen().last, Some((1, words([1, 1]))));
    assert_eq!(
        seen().rank.to_string(),
        format!("rank 2 (world {})", name(1))
    );
    drop(victim_streams);
    for watch in &odd_ones {
        let fault = fault(watch);
        assert!(matches!(&*fault, Fault::Died { rank } if (rank.rank, rank.world) == (1, 3)));
        assert!(
            fault
                .to_string()
                .starts_with(&format!("rank 1 (world {})", name(3))),
            "{fault}"
        );
    }
}

fn news_of_a_communicator_that_is_not_built_yet_are_kept(world: World) {
    let world = world(5);
    let members: Vec<u32> = (0..5).collect();
    let watch = |rank: usize, context| world[rank].watch(context, members.clone(), words);
    let [aborted, waiting, left] = [watch(0, 1), watch(1, 2), watch(2, 3)];
    aborted.raise(Fault::Aborted {
        by: aborted.member(0),
        reason: "enough".into(),
    });
    waiting.enter(1, [1, 1]);
    waiting.announce(1, [1, 1], Some(4));
    left.leave(Leave::after(0));
    // Each neighbour gets the mark last, so once it has arrived, the rest has.
    let mark = |rank: usize| watch(rank, 100 + rank as u64);
    let marks: Vec<_> = (0..3).map(mark).collect();
    let seen: Vec<_> = (0..3).map(|rank| watch(4, 100 + rank)).collect();
    for (rank, (mark, seen)) in marks.iter().zip(&seen).enumerate() {
        mark.leave(Leave::after(0));
        until("the mark", || seen.left(rank as u32).is_some());
    }
    assert!(watch(4, 1).failed());
    let late = watch(4, 2);
    assert_eq!(late.last_seen(1).last, Some((1, words([1, 1]))));
    late.enter(1, [2, 2]);
    assert!(matches!(*fault(&late), Fault::Mismatch { sequence: 1, .. }));
    assert_eq!(watch(4, 3).left(2), Some(Leave::after(0)));
}

fn ranks_that_finished_or_wait_are_not_late(world: World) {
    let world = world(5);
    let watches = watches(&world, 7);
    // Rank 1 has finished, 2 waits, 3 is one operation behind, 4 has entered but does not wait.
    for (rank, watch) in watches.iter().enumerate() {
        watch.enter(1, [1, 1]);
        watch.finish(1);
        if rank != 3 {
            watch.enter(2, [1, 2]);
        }
    }
    watches[1].finish(2);
    watches[2].announce(2, [1, 2], Some(3));
    let window = Duration::from_secs(60);
    let late = || watches[0].late(2, window);
    until("everyone answers", || {
        watches[0].announce(2, [1, 2], Some(2));
        std::thread::sleep(Duration::from_millis(50));
        let late = late();
        late.len() == 2 && late.iter().all(|late| late.last.is_some())
    });
    let late = late();
    assert_eq!(late[0].rank.rank, 3);
    assert_eq!(late[0].last, Some((1, words([1, 1]))));
    assert_eq!(late[1].rank.rank, 4);
    assert_eq!(late[1].last, Some((2, words([1, 2]))));
    assert!(!watches[0].failed());
}

/// It is sent many times the bytes that a socket takes. Nothing may block, and the live ranks still
/// hear from each other.
#[test]
fn a_neighbour_that_does_not_read_holds_nobody_up() {
    let (alive, stopped) = world_with_victims(5, &[2]);
    let watches: Vec<_> = alive
        .iter()
        .map(|(_, monitor)| monitor.watch(7, (0..5).collect(), words))
        .collect();
    for sequence in 1..20_000 {
        watches[0].enter(sequence, [1, 1]);
        watches[0].announce(sequence, [1, 1], Some(2));
    }
    assert!(
        watches.iter().all(|watch| !watch.failed()),
        "a stopped rank is no fault"
    );
    watches[3].raise(Fault::Aborted {
        by: watches[3].member(4),
        reason: "enough".into(),
    });
    everyone_fails(&watches);
    drop(watches);
    // This returns although the goodbye cannot be delivered to all.
    drop(alive);
    drop(stopped);
}

fn communicators_come_and_go(world: World) {
    let world = world(3);
    for context in 0..200 {
        let watches = watches(&world, context);
        watches[0].enter(1, [1, 1]);
        watches[1].enter(1, [1, 1]);
        watches[0].announce(1, [1, 1], None);
    }
    let watches = watches(&world, 1000);
    watches[0].raise(Fault::Aborted {
        by: watches[0].member(0),
        reason: "enough".into(),
    });
    everyone_fails(&watches);
}

/// The kernel detects a vanished host within ten seconds, but only if the socket asks for it.
#[test]
fn tcp_streams_ask_the_kernel_to_watch_the_host() {
    let (mine, theirs) = tcp_pair();
    let (option_of_mine, option_of_theirs) =
        (mine.try_clone().unwrap(), theirs.try_clone().unwrap());
    let monitors = [
        start(0, 2, vec![(1, mine.into())]),
        start(1, 2, vec![(0, theirs.into())]),
    ];
    for socket in [&option_of_mine, &option_of_theirs] {
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        let silence = socket.tcp_keepalive_time().unwrap()
            + socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert!(silence < Duration::from_secs(10), "{silence:?}");
        let unanswered = socket.tcp_user_timeout().unwrap().unwrap();
        assert!(unanswered < Duration::from_secs(10), "{unanswered:?}");
    }
    let watches = watches(&monitors, 7);
    watches[0].raise(Fault::Aborted {
        by: watches[0].member(0),
        reason: "enough".into(),
    });
    drop(fault(&watches[1]));
}

/// A rank's last frames arrive although it had not read everything that was sent to it.
#[test]
fn a_goodbye_over_tcp_is_not_lost() {
    for _ in 0..50 {
        let (mine, theirs) = tcp_pair();
        let first = Monitor::start(0, names(2), vec![(1, mine.into())], None).unwrap();
        let second = Monitor::start(1, names(2), vec![(0, theirs.into())], None).unwrap();
        let watch = first.watch(7, vec![0, 1], words);
        (0..100).for_each(|_| watch.announce(1, [1, 1], None));
        drop(second);
        until("the goodbye", || watch.left(1).is_some());
        let later = first.watch(8, vec![0, 1], words);
        assert!(!later.failed(), "{:?}", later.fault());
    }
}

/// A thread may still hold a handle when the process ends.
#[test]
fn a_goodbye_is_said_although_something_holds_the_monitor() {
    let (mine, theirs) = tcp_pair();
    let first = Monitor::start(0, names(2), vec![(1, mine.into())], None).unwrap();
    let second = Monitor::start(1, names(2), vec![(0, theirs.into())], None).unwrap();
    let watch = first.watch(7, vec![0, 1], words);
    let held = second.watch(7, vec![0, 1], words);
    second.leave_world();
    until("the goodbye", || watch.left(1).is_some());
    let later = first.watch(8, vec![0, 1], words);
    assert!(!later.failed(), "{:?}", later.fault());
    // Later messages go nowhere, and harm nobody.
    held.announce(1, [1, 1], None);
    second.leave_world();
    drop((held, second));
}

fn tcp_pair() -> (Unshared<Socket>, Unshared<Socket>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mine = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (Unshared::new(mine.into()), Unshared::new(theirs.into()))
}

#[test]
fn the_latest_proposal_reaches_all_also_those_who_watch_later() {
    let (alive, victim_streams) = world_with_victims(6, &[2]);
    let watch = |at: usize| alive[at].1.watch(9, (0..6).collect(), words);
    let first = watch(0);
    let proposal = |generation, context| Proposal {
        generation,
        context,
        without: vec![2],
        ..Proposal::default()
    };
    first.propose(proposal(1, Some(5)));
    first.propose(proposal(2, None));
    let others: Vec<_> = (1..5).map(watch).collect();
    for other in &others {
        until("the proposal", || {
            other.proposals().get(&0) == Some(&proposal(2, None))
        });
        assert_eq!(other.proposals().len(), 1);
        assert!(other.gone().is_empty());
    }
    drop(victim_streams);
    for other in &others {
        until("the death", || other.gone() == [2].into());
    }
}

fn a_context_that_a_rank_renounces_fails_in_the_first_call(world: World) {
    let world = world(3);
    let root = watches(&world, 1);
    root[1].renounce(4);
    let made = world[0].watch(4, vec![0, 1, 2], words);
    until("the departure", || made.left(1) == Some(Leave::after(0)));
    made.enter(1, [1, 1]);
    assert!(matches!(&*fault(&made), Fault::Left { rank, .. } if rank.world == 1));
}
