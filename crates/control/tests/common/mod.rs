//! Test support: worlds of ranks within one process, connected by socket pairs.
#![allow(
    dead_code,
    unused_macros,
    reason = "each test binary uses a part of it"
)]

pub(crate) mod process;

use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use spark_ccl_control::{Monitor, Watch, neighbours};
use spark_ccl_fork::Unshared;
use spark_ccl_seal::Stream;

/// Signatures in these tests: what is called, and how many elements.
pub(crate) fn words(signature: [u64; 2]) -> String {
    format!("call {} of {} elements", signature[0], signature[1])
}

pub(crate) fn name(rank: u32) -> String {
    format!("rank {rank} (host{rank}, pid 10{rank})")
}

pub(crate) fn names(size: u32) -> Vec<String> {
    (0..size).map(name).collect()
}

/// The control streams of each rank.
pub(crate) fn streams(size: u32) -> Vec<Streams> {
    let mut streams: Vec<Streams> = (0..size).map(|_| Vec::new()).collect();
    for rank in 0..size {
        for peer in neighbours(rank, size)
            .into_iter()
            .filter(|&peer| peer > rank)
        {
            let (mine, theirs) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
            streams[rank as usize].push((peer, Unshared::new(mine).into()));
            streams[peer as usize].push((rank, Unshared::new(theirs).into()));
        }
    }
    streams
}

/// Makes the monitors of a world of this size.
pub(crate) type World = fn(u32) -> Vec<Arc<Monitor>>;

/// Runs tests in worlds with streams, and in worlds on a board.
macro_rules! in_any_world {
    ($($test:ident),+ $(,)?) => {
        mod with_streams {
            $(#[test] fn $test() { super::$test(crate::common::world); })+
        }
        mod on_a_board {
            $(#[test] fn $test() { super::$test(crate::common::world_on_a_board); })+
        }
    };
}

pub(crate) fn world_on_a_board(size: u32) -> Vec<Arc<Monitor>> {
    Monitor::local(names(size)).unwrap()
}

pub(crate) fn world(size: u32) -> Vec<Arc<Monitor>> {
    (0..)
        .zip(streams(size))
        .map(|(me, streams)| start(me, size, streams))
        .collect()
}

pub(crate) fn start(me: u32, size: u32, streams: Streams) -> Arc<Monitor> {
    Monitor::start(me, names(size), streams, None).unwrap()
}

/// The control streams of one rank, each with the rank at its other end.
pub(crate) type Streams = Vec<(u32, Stream)>;

/// A world in which `victims` have no monitor: dropping their streams looks like their death.
pub(crate) fn world_with_victims(
    size: u32,
    victims: &[u32],
) -> (Vec<(u32, Arc<Monitor>)>, Vec<Streams>) {
    let mut alive = Vec::new();
    let mut victim_streams = Vec::new();
    for (me, streams) in (0..).zip(streams(size)) {
        if victims.contains(&me) {
            victim_streams.push(streams);
        } else {
            alive.push((me, start(me, size, streams)));
        }
    }
    (alive, victim_streams)
}

/// Each rank's watch of the communicator of all ranks.
pub(crate) fn watches(monitors: &[Arc<Monitor>], context: u64) -> Vec<Arc<Watch>> {
    let members: Vec<u32> = (0..monitors.len() as u32).collect();
    monitors
        .iter()
        .map(|monitor| monitor.watch(context, members.clone(), words))
        .collect()
}

/// Waits until the condition holds. The limit only ends a test that hangs.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "never happened: {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for a watch's fault.
pub(crate) fn fault(watch: &Watch) -> Arc<spark_ccl_control::Fault> {
    until("a fault", || watch.failed());
    watch.fault().unwrap()
}

/// Has each rank call a collective that does not end.
pub(crate) fn in_a_call(watches: &[Arc<Watch>]) {
    for watch in watches {
        watch.enter(1, [1, 1]);
    }
}

pub(crate) fn everyone_fails(watches: &[Arc<Watch>]) {
    for watch in watches {
        fault(watch);
    }
}
