//! Ranks that are killed, are stopped, or exit without a goodbye: real processes, connected over
//! TCP.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::process::{Rank, serve_if_asked, spawn_world};
use crate::common::{self, name};

/// Serves as a rank if `spawn_world` started this process; does nothing otherwise.
#[test]
#[ignore = "the other tests here start it as a child process, with --ignored --exact; no test by itself"]
fn rank() {
    serve_if_asked();
}

fn assert_died(rank: &mut Rank, victims: &[u32]) {
    let text = rank.ask("fault");
    let named = victims
        .iter()
        .any(|&victim| text.starts_with(&name(victim)));
    assert!(named && text.contains("died"), "{text}");
}

#[test]
fn a_killed_process_is_named_by_everyone() {
    for victim in [0, 2] {
        let mut world = spawn_world(3, "processes::rank");
        world[victim].signal(Signal::KILL);
        for survivor in (0..3).filter(|&rank| rank != victim) {
            assert_died(&mut world[survivor], &[victim as u32]);
        }
    }
}

#[test]
fn three_of_eight_processes_are_killed_at_once() {
    let mut world = spawn_world(8, "processes::rank");
    let victims = [0, 3, 4];
    for victim in victims {
        world[victim as usize].signal(Signal::KILL);
    }
    for survivor in [1, 2, 5, 6, 7] {
        assert_died(&mut world[survivor], &victims);
    }
}

/// The news has to be forwarded: in a world of ten, not all ranks are neighbours.
#[test]
fn a_killed_process_is_named_by_those_who_had_no_stream_to_it() {
    let mut world = spawn_world(10, "processes::rank");
    world[0].signal(Signal::KILL);
    for survivor in &mut world[1..] {
        assert_died(survivor, &[0]);
    }
}

#[test]
fn a_process_that_exits_without_a_goodbye_has_died() {
    let mut world = spawn_world(2, "processes::rank");
    world[1].order("exit");
    assert_died(&mut world[0], &[1]);
}

/// It is stopped for longer than the kernel takes to give up a vanished host.
#[test]
fn a_stopped_process_is_late_but_neither_dead_nor_lost() {
    let mut world = spawn_world(3, "processes::rank");
    world[1].signal(Signal::STOP);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(9) {
        for rank in [0, 2] {
            assert_eq!(world[rank].ask("call 1"), "called");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(world[0].ask("failed"), "false");
    assert_eq!(world[2].ask("failed"), "false");
    assert_eq!(world[0].ask("late 1"), "[1]");
    world[0].ask("give-up 1");
    world[1].signal(Signal::CONT);
    for rank in &mut world {
        let text = rank.ask("fault");
        assert!(text.starts_with(&format!("{} gave up", name(0))), "{text}");
        assert!(text.contains(&format!("waits for: {}", name(1))), "{text}");
    }
}

#[test]
fn a_stopped_process_that_goes_on_takes_part_again() {
    let mut world = spawn_world(2, "processes::rank");
    world[1].signal(Signal::STOP);
    for _ in 0..100 {
        world[0].ask("call 1");
    }
    world[1].signal(Signal::CONT);
    assert_eq!(world[1].ask("call 1"), "called");
    common::until("its announcement", || world[0].ask("late 1") == "[]");
    assert_eq!(world[0].ask("failed"), "false");
}

#[test]
fn a_stopped_process_that_is_killed_has_died() {
    let mut world = spawn_world(2, "processes::rank");
    world[1].signal(Signal::STOP);
    world[0].ask("call 1");
    world[1].signal(Signal::KILL);
    assert_died(&mut world[0], &[1]);
}
