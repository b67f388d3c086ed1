//! Simulated worlds of a thousand ranks, without sockets or threads and with simulated time.
//! Notices reach the ranks that need them, and no rank sends more than a few frames per neighbour.

use std::time::Duration;

use super::*;
use crate::fault::{DEVICE_MARK, Late, POINT_TO_POINT_MARK};
use crate::topology::neighbours;
use crate::wire::{Content, LateReport, Notice, Progress, WaitingFor};

const SIZE: u32 = 1024;
const CONTEXT: u64 = 5;
const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(2500);
const CALL: [u64; 2] = [1, 1];
/// The most frames that a rank may send to one neighbour in a second: its own progress, four
/// different calls and twelve late ranks. Everything twice, since two windows of 0.9 s may begin in
/// a second.
const MOST_FRAMES: usize = 34;
/// The same if all ranks but one are in the same call: its own progress, the call, and the late
/// rank.
const FEW_FRAMES: usize = 6;

struct World {
    states: Vec<ControlState>,
    views: Vec<Option<Arc<View>>>,
    stopped: Vec<u32>,
    /// How many frames each rank has sent in this second.
    sent: Vec<usize>,
    now: Instant,
}

impl World {
    /// A world in which these ranks form a communicator.
    fn new(members: &[u32]) -> Self {
        let now = Instant::now();
        let names: Arc<[Arc<str>]> = (0..SIZE)
            .map(|rank| format!("rank {rank}").into())
            .collect();
        let state = |me| {
            let neighbours = neighbours(me, SIZE).into_iter();
            let neighbours = neighbours
                .map(|peer| Neighbour::without_stream(peer, now))
                .collect();
            ControlState::new(me, Arc::clone(&names), neighbours, None)
        };
        let mut world = Self {
            states: (0..SIZE).map(state).collect(),
            views: vec![None; SIZE as usize],
            stopped: Vec::new(),
            sent: vec![0; SIZE as usize],
            now,
        };
        for &rank in members {
            let describe = |words: [u64; 2]| format!("{words:?}");
            let names = Arc::clone(&names);
            let view = View::new(CONTEXT, members.to_vec(), rank, names, describe);
            let view = Arc::new(view);
            world.states[rank as usize].watch(&view, now);
            world.views[rank as usize] = Some(view);
        }
        world
    }

    fn view(&self, rank: u32) -> &View {
        self.views[rank as usize].as_deref().unwrap()
    }

    /// A rank enters the first collective, and waits in it.
    fn waits(&mut self, rank: u32, signature: [u64; 2]) {
        self.view(rank).history.record(1, signature);
        self.announces(rank, 1, signature, WaitingFor::Anyone);
    }

    fn announces(&mut self, rank: u32, sequence: u64, words: [u64; 2], whom: WaitingFor) {
        self.states[rank as usize].announce(CONTEXT, sequence, words, whom, self.now);
    }

    /// Delivers until nothing is in flight.
    fn settle(&mut self) {
        loop {
            let mut is_quiet = true;
            for from in 0..SIZE as usize {
                for index in 0..self.states[from].neighbours.len() {
                    is_quiet &= !self.deliver(from, index);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    /// Delivers the frames that a rank has queued for one neighbour. Returns whether there was
    /// anything.
    fn deliver(&mut self, from: usize, index: usize) -> bool {
        if self.stopped.contains(&(from as u32)) {
            return false;
        }
        let neighbour = &mut self.states[from].neighbours[index];
        let to = neighbour.peer;
        let bytes = neighbour.outbound.next().to_vec();
        neighbour.outbound.wrote(bytes.len());
        neighbour.outbound.acknowledged(u32::MAX);
        if bytes.is_empty() || self.stopped.contains(&to) {
            return !bytes.is_empty();
        }
        let state = &mut self.states[to as usize];
        let mut neighbours = state.neighbours.iter();
        let back = neighbours
            .position(|neighbour| neighbour.peer == from as u32)
            .unwrap();
        let mut frames = Vec::new();
        let taken = state.neighbours[back].take(&bytes, SIZE, self.now, &mut frames);
        taken.unwrap();
        self.sent[from] += frames.len();
        state.handle_frames(back, frames, self.now);
        true
    }

    /// Simulates a second, in which these ranks announce one after the other that they wait.
    /// Returns the largest number of frames that a rank has sent meanwhile.
    fn second(&mut self, waiting: impl Iterator<Item = u32>, signature: [u64; 2]) -> usize {
        for (turn, rank) in waiting.enumerate() {
            self.waits(rank, signature);
            // Neither all at once nor in order.
            if turn % 100 == 0 {
                self.settle();
            }
        }
        self.settle();
        for part in [2, 2] {
            self.now += SECOND / part;
            for state in &mut self.states {
                state.tick(self.now);
            }
            self.settle();
        }
        let most = self.sent.iter().copied().max().unwrap();
        self.sent.fill(0);
        most
    }

    fn late(&self, rank: u32) -> Vec<Late> {
        let table = self.states[rank as usize].table(CONTEXT).unwrap();
        table.late(1, WINDOW, self.now)
    }
}

fn everyone() -> Vec<u32> {
    (0..SIZE).collect()
}

fn ranks(late: &[Late]) -> Vec<u32> {
    late.iter().map(|late| late.rank.world as u32).collect()
}

fn bound() -> usize {
    MOST_FRAMES * neighbours(0, SIZE).len()
}

#[test]
fn a_thousand_ranks_that_wait_for_one_say_little_and_name_it() {
    let mut world = World::new(&everyone());
    let stopped = 700;
    world.stopped.push(stopped);
    for second in 1..=4 {
        let waiting = (0..SIZE).filter(|&rank| rank != stopped);
        let most = world.second(waiting, CALL);
        assert!(
            most <= FEW_FRAMES * neighbours(0, SIZE).len(),
            "{most} frames"
        );
        if second > 1 {
            for rank in waiting_ranks(stopped) {
                assert_eq!(ranks(&world.late(rank)), [stopped], "at {rank}");
            }
        }
    }
    let failed = world
        .views
        .iter()
        .flatten()
        .any(|view| view.fault().is_some());
    assert!(!failed);
}

fn waiting_ranks(stopped: u32) -> impl Iterator<Item = u32> {
    (0..SIZE).filter(move |&rank| rank != stopped)
}

#[test]
fn one_rank_that_waits_for_a_thousand_is_answered_in_few_words() {
    let mut world = World::new(&everyone());
    for _ in 0..4 {
        let most = world.second(std::iter::once(3), CALL);
        assert!(most <= bound(), "{most} frames");
    }
    let late = world.late(3);
    assert!(late.len() >= 12, "{late:?}");
    // They are alive, and the waiting rank gets their answers.
    assert!(late.iter().all(|late| late.age < Some(WINDOW)), "{late:?}");
}

#[test]
fn a_host_that_hangs_is_named_as_a_whole() {
    let mut world = World::new(&everyone());
    world.stopped = (96..104).collect();
    for _ in 0..4 {
        let waiting = (0..SIZE).filter(|rank| !(96..104).contains(rank));
        let most = world.second(waiting, CALL);
        assert!(most <= bound(), "{most} frames");
    }
    for rank in [0, 95, 104, 1023] {
        assert_eq!(ranks(&world.late(rank)), world.stopped, "at {rank}");
    }
}

#[test]
fn of_a_thousand_calls_one_that_differs_is_found_by_all() {
    let mut world = World::new(&everyone());
    let odd = 513;
    world.waits(odd, [2, 2]);
    let waiting = (0..SIZE).filter(|&rank| rank != odd);
    let most = world.second(waiting, CALL);
    assert!(most <= bound(), "{most} frames");
    for view in world.views.iter().flatten() {
        match view.fault().map(|fault| &**fault) {
            Some(Fault::Mismatch { rank_a, rank_b, .. }) => {
                assert!([rank_a.world, rank_b.world].contains(&(odd as usize)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_rank_that_a_message_is_awaited_from_says_where_it_is() {
    let mut world = World::new(&everyone());
    let (waits, whom) = (0, 700);
    world.view(whom).history.record(1, CALL);
    for _ in 0..5 {
        let sequence = POINT_TO_POINT_MARK | 1;
        world.announces(waits, sequence, [9, 9], WaitingFor::Rank(whom));
        let most = world.second(std::iter::empty(), CALL);
        assert!(most <= bound(), "{most} frames");
    }
    let table = world.states[0].table(CONTEXT).unwrap();
    let seen = table.last_seen(whom, world.now).unwrap();
    assert!(seen.age.is_some_and(|age| age <= SECOND), "{seen:?}");
    assert_eq!(seen.last, Some((1, "[1, 1]".to_owned())));
}

#[test]
fn a_chain_of_awaited_messages_is_followed_to_its_end() {
    let mut world = World::new(&everyone());
    let announces = |world: &mut World, rank, sequence, whom| {
        world.announces(rank, sequence, CALL, WaitingFor::Rank(whom));
        world.settle();
    };
    let chain = |world: &World| {
        let table = world.states[0].table(CONTEXT).unwrap();
        table.awaited_in_turn(1, world.now)
    };
    let message = POINT_TO_POINT_MARK | 1;
    // The last one is no neighbour of the first.
    for (rank, whom) in [(0, 1), (1, 4), (4, 2), (2, 700)] {
        announces(&mut world, rank, message, whom);
    }
    assert_eq!(chain(&world), [4, 2]);
    // Ranks that wait for each other end the chain.
    announces(&mut world, 2, message, 1);
    assert_eq!(chain(&world), [4, 2]);
    // A rank in a collective waits for everyone.
    announces(&mut world, 4, 1, 2);
    assert_eq!(chain(&world), [4]);
}

/// Rank 1 waits for nobody: it may have ended its call.
#[test]
fn a_wait_on_a_device_is_compared_with_what_was_recorded_there() {
    let on_device = DEVICE_MARK | 7;
    for (recorded, differs) in [
        ((7, [9, 9]), false),
        ((8, [9, 8]), false),
        ((7, [9, 8]), true),
    ] {
        let mut world = World::new(&[0, 1]);
        world.view(1).on_device.record(recorded.0, recorded.1);
        world.announces(0, on_device, [9, 9], WaitingFor::Rank(1));
        world.settle();
        for view in world.views.iter().flatten() {
            let fault = view.fault().map(|fault| &**fault);
            let is_named =
                matches!(fault, Some(Fault::Mismatch { sequence, .. }) if *sequence == on_device);
            assert_eq!(is_named, differs, "{recorded:?}: {fault:?}");
        }
    }
}

/// Their numbers and calls have nothing to do with those of host memory.
#[test]
fn a_wait_on_a_device_is_told_and_not_compared_with_calls_of_host_memory() {
    let mut world = World::new(&everyone());
    for rank in [0, 1, 4] {
        world.view(rank).history.record(1, CALL);
    }
    let on_device = DEVICE_MARK | 1;
    for (rank, whom) in [(0, 1), (1, 4), (4, 2)] {
        world.announces(rank, on_device, [9, 9], WaitingFor::Rank(whom));
        world.settle();
    }
    assert!(
        world
            .views
            .iter()
            .flatten()
            .all(|view| view.fault().is_none())
    );
    let table = world.states[0].table(CONTEXT).unwrap();
    assert_eq!(table.awaited_on_device(world.now), Some(1));
    assert_eq!(table.awaited_in_turn(1, world.now), [4, 2]);
    let last = table.last_seen(1, world.now).unwrap().last;
    assert_eq!(last, Some((on_device, "[9, 9]".to_owned())));
    // Its thread may wait for something else meanwhile.
    world.announces(0, POINT_TO_POINT_MARK | 1, CALL, WaitingFor::Rank(1));
    let table = world.states[0].table(CONTEXT).unwrap();
    assert_eq!(table.awaited_on_device(world.now), Some(1));
    // A rank whose program has not reached a collective is late in it: its device does not hold it
    // up.
    world.announces(0, 1, CALL, WaitingFor::Rank(1));
    world.settle();
    let table = world.states[0].table(CONTEXT).unwrap();
    let late = ranks(&table.late(1, WINDOW, world.now));
    assert_eq!([1, 4, 2].map(|rank| late.contains(&rank)), [true; 3]);
}

/// Ranks of a ring come to a halt one after the other, in this call or in the one before.
#[test]
fn only_the_rank_for_which_all_wait_is_late() {
    // No route between the others passes through it.
    let stopped = 512;
    for (size, seed) in (3..9).flat_map(|size| (0..6).map(move |seed| (size, seed))) {
        let waiting: Vec<u32> = (0..size - 1).collect();
        let mut ring = [&[stopped], &waiting[..]].concat();
        ring.rotate_left((seed % size) as usize);
        let mut world = World::new(&ring);
        world.stopped.push(stopped);
        // The last of the ring may be in the call before.
        let ahead = 1 + (seed + size) as usize % waiting.len();
        for _ in 0..4 {
            for (at, &rank) in waiting.iter().enumerate() {
                let sequence = if at < ahead { 2 } else { 1 };
                let before = if at == 0 { stopped } else { rank - 1 };
                (1..=sequence).for_each(|n| world.view(rank).history.record(n, CALL));
                world.announces(rank, sequence, CALL, WaitingFor::Rank(before));
            }
            world.second(std::iter::empty(), CALL);
        }
        for &rank in &waiting[..ahead] {
            let table = world.states[rank as usize].table(CONTEXT).unwrap();
            let late = ranks(&table.late(2, WINDOW, world.now));
            assert_eq!(late, [stopped], "at {rank} of {size}, {ahead} ahead");
        }
    }
}

#[test]
fn ranks_of_a_small_part_hear_of_each_other_by_way_of_others() {
    // No two of them are neighbours.
    let members: Vec<u32> = (0..20).map(|n| n * n * 2 + n * 3).collect();
    let mut world = World::new(&members);
    let stopped = members[7];
    world.stopped.push(stopped);
    for _ in 0..4 {
        let waiting = members.iter().copied().filter(|&rank| rank != stopped);
        world.second(waiting, CALL);
    }
    for &rank in members.iter().filter(|&&rank| rank != stopped) {
        assert_eq!(ranks(&world.late(rank)), [stopped], "at {rank}");
    }
}

#[test]
fn a_monitor_that_comes_late_still_looks_for_who_is_late() {
    let mut world = World::new(&everyone());
    world.waits(3, CALL);
    let reply = Duration::from_millis(300);
    let state = &mut world.states[3];
    let soon = world.now + reply.saturating_sub(Duration::from_millis(1));
    state.tick(soon);
    // The monitor thread was delayed here.
    let now = world.now + reply * 2;
    assert!(state.plan_sleep(now).is_some_and(|due| due <= now));
    state.tick(now);
    assert_eq!(state.plan_sleep(now), None, "it would never sleep again");
}

/// On another path, a later notice may overtake an earlier one.
#[test]
fn a_report_that_is_overtaken_counts() {
    let mut world = World::new(&everyone());
    let (origin, stopped, now) = (1, 700, world.now);
    let notice = |counter, content| Notice {
        origin,
        counter,
        content,
    };
    let waiting = Progress {
        context: CONTEXT,
        finished: 0,
        sequence: 1,
        signature: CALL,
        waiting: Some(WaitingFor::Anyone),
    };
    let report = LateReport {
        context: CONTEXT,
        sequence: 1,
        rank: stopped,
        last: None,
        age: Some(SECOND),
    };
    let state = &mut world.states[0];
    state.route_notice(0, notice(6, Content::Progress(waiting)), now);
    state.route_notice(0, notice(5, Content::Late(report)), now);
    assert!(ranks(&world.late(0)).contains(&stopped));
    // Its own earlier progress is out of date.
    let earlier = Progress {
        sequence: 9,
        ..waiting
    };
    let state = &mut world.states[0];
    state.route_notice(0, notice(4, Content::Progress(earlier)), now);
    let seen = state
        .table(CONTEXT)
        .unwrap()
        .last_seen(origin, now)
        .unwrap();
    assert_eq!(seen.last.map(|last| last.0), Some(1));
}
