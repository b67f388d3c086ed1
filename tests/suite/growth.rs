//! Links made at their first use, and the resources of many of them.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use spark_ccl::{Communicator, Error, Operation, RedOp};

use super::collectives_model::{COLLECTIVES, Case};
use super::processes::{Rank, all, alone, assert_all_ok, join, world};
use super::ranks::{Watchdog, connected, each, run, run_with};

/// Ranks that share memory, that have sockets, and the same two after a rendezvous over sockets.
fn worlds(n: usize) -> Vec<Vec<Communicator>> {
    let memory = Communicator::builder();
    let sockets = Communicator::builder().shared_memory(false);
    vec![
        memory.local(n).unwrap(),
        sockets.local(n).unwrap(),
        connected(&memory, n),
        connected(&sockets, n),
    ]
}

#[test]
fn a_small_message_goes_out_before_its_receiver_calls() {
    for comms in worlds(2) {
        let received = Barrier::new(2);
        each(comms, |comm| {
            // From the lower rank and from the higher one: the rank that asks makes the link.
            for (sender, value) in [(0, 7_u32), (1, 8)] {
                if comm.rank() == sender {
                    comm.send(&[value], 1 - sender).run().unwrap();
                }
                received.wait();
                if comm.rank() != sender {
                    let mut word = [0_u32];
                    comm.recv(&mut word, sender).run().unwrap();
                    assert_eq!(word, [value]);
                }
            }
        });
    }
}

#[test]
fn a_started_operation_waits_for_no_peer_that_is_late() {
    for comms in worlds(3) {
        let started = Barrier::new(3);
        each(comms, |comm| {
            if comm.rank() == 2 {
                started.wait();
            }
            let mine = vec![comm.rank() as u64 + 1; 5];
            let sum = comm
                .all_reduce(mine, vec![0; 5], RedOp::Sum)
                .start()
                .unwrap();
            if comm.rank() != 2 {
                // The others have not called it yet.
                started.wait();
            }
            assert_eq!(sum.wait().unwrap().1, [6; 5]);
        });
    }
}

#[test]
fn what_is_started_goes_out_whichever_end_makes_the_link() {
    let _alone = alone();
    let mut ranks = world(2, &[]);
    for _ in 0..10 {
        assert_all_ok(&mut ranks, "split 0 0");
        // The sender does not look at its message again; the receiver calls at the same time.
        ranks[0].order("start-send 1 5");
        ranks[1].order("call f32 recv 0 5");
        for rank in &ranks {
            assert_eq!(rank.hear(), "ok");
        }
    }
}

#[test]
fn a_peer_that_is_stopped_for_longer_than_ranks_may_take_to_meet_is_waited_for() {
    let _alone = alone();
    let mut worlds = ["0", "1"].map(|shm| {
        let env = [("SPARK_CCL_SHM", shm), ("SPARK_CCL_INIT_TIMEOUT", "5")];
        let mut ranks = world(2, &env);
        ranks[1].signal(Signal::STOP);
        ranks[0].order("call barrier");
        ranks
    });
    std::thread::sleep(Duration::from_secs(8));
    for ranks in &mut worlds {
        ranks[1].signal(Signal::CONT);
        assert_eq!(ranks[1].ask("call barrier"), "ok");
        assert_eq!(ranks[0].hear(), "ok");
    }
}

#[test]
fn links_that_peers_do_not_need_yet_use_up_no_descriptors() {
    let _alone = alone();
    let mut ranks: Vec<Rank> = (0..24).map(|_| ordinary_user(&[])).collect();
    join(&mut ranks);
    let (early, late) = ranks.split_at_mut(12);
    for rank in early {
        rank.order("call f32 all_to_all 5");
    }
    std::thread::sleep(Duration::from_secs(3));
    for rank in late {
        rank.order("call f32 all_to_all 5");
    }
    for rank in &ranks {
        assert_eq!(rank.hear(), "ok");
    }
}

/// Ranks pass one another descriptors to make their links. All of them wait until they may pass
/// one, and each must take those that others have passed meanwhile.
#[test]
fn links_are_made_where_descriptors_can_only_be_passed_singly() {
    let _alone = alone();
    let mut ranks: Vec<Rank> = (0..6).map(|_| ordinary_user(&[])).collect();
    join(&mut ranks);
    assert_eq!(ranks[0].ask("pass-descriptors-but 1"), "ok");
    assert_all_ok(&mut ranks, "call f32 all_to_all 5");
}

#[test]
fn a_link_that_needs_descriptors_that_nobody_may_pass_is_named() {
    let _alone = alone();
    // One gives up before the other, which then finds the link closed, and must learn why.
    let mut ranks: Vec<Rank> = ["3", "4"]
        .map(|limit| ordinary_user(&[("SPARK_CCL_INIT_TIMEOUT", limit)]))
        .into();
    join(&mut ranks);
    assert_eq!(ranks[0].ask("pass-descriptors-but 0"), "ok");
    for answer in all(&mut ranks, "call f32 all_to_all 5") {
        assert!(
            answer.contains("Too many references") && answer.contains("raise `ulimit -n`"),
            "{answer}"
        );
    }
}

/// A rank of an ordinary user. The kernel limits the descriptors that the user's processes have
/// passed and nobody has taken.
fn ordinary_user(env: &[(&str, &str)]) -> Rank {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let mut rank = Rank::launch(command, env);
    assert_eq!(rank.ask("open-files-at-most 128"), "ok");
    rank
}

#[test]
fn a_lack_of_descriptors_is_named_with_what_helps() {
    let mut rank = Rank::start(&[]);
    assert_eq!(rank.ask("open-files-at-most 128"), "ok");
    let answer = rank.ask("local 200");
    assert!(
        answer.contains("Too many open files") && answer.contains("raise `ulimit -n`"),
        "{answer}"
    );
    // Everything is given back.
    assert_eq!(rank.ask("local 4"), "ok");
}

#[test]
fn both_directions_are_first_used_at_once_by_different_operations() {
    for comms in worlds(2) {
        each(comms, |comm| {
            let (own, peer) = (comm.rank(), 1 - comm.rank());
            let send = comm.send(vec![own as u8; 100_000], peer).start().unwrap();
            let sum = comm.all_reduce(vec![1.5_f32; 9], vec![0.0; 9], RedOp::Sum);
            let sum = sum.start().unwrap();
            let mut bytes = vec![0; 100_000];
            comm.recv(&mut bytes, peer).run().unwrap();
            assert_eq!(bytes, vec![peer as u8; 100_000]);
            assert_eq!(sum.wait().unwrap().1, [3.0; 9]);
            send.wait().unwrap();
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_part_is_used_at_once_by_some_and_later_by_others() {
    for comms in worlds(5) {
        each(comms, |comm| {
            for round in 0..3 {
                let color = (comm.rank() % 2) as u32;
                let part = comm.split(Some(color), 0).unwrap().unwrap();
                if comm.rank() == round {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Case::new(Operation::AllReduce, 1009).check::<f32>(&part);
                Case::new(Operation::AllToAll, 5).check::<i32>(&part);
                part.finalize().unwrap();
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_peer_that_leaves_before_its_link_is_made_is_named() {
    for comms in worlds(2) {
        each(comms, |comm| {
            if comm.rank() == 0 {
                return;
            }
            let error = comm.recv(&mut [0_u8; 3], 0).run().unwrap_err();
            assert!(matches!(error, Error::Failed(_)), "{error}");
            assert!(error.to_string().contains("rank 0"), "{error}");
        });
    }
}

#[test]
fn links_are_named_before_and_after_they_are_made() {
    let comms = connected(&Communicator::builder().shared_memory(false), 3);
    each(comms, |comm| {
        let (own, next) = (comm.rank(), (comm.rank() + 1) % 3);
        let names = [own, next].map(|rank| comm.links()[rank].to_string());
        assert_eq!(names, ["self", "tcp"]);
        comm.barrier().run().unwrap();
        let route = comm.links()[next].route.clone();
        assert!(route.is_some_and(|route| route.contains(" -> ")));
        assert_eq!(comm.rails().len(), 3);
        comm.finalize().unwrap();
    });
}

#[test]
fn sixty_four_ranks_do_every_collective() {
    let _watchdog = Watchdog::new();
    run(64, |comm| {
        for collective in COLLECTIVES {
            for count in [1, 65, 3001] {
                let case = Case {
                    root: 63,
                    ..Case::new(collective, count)
                };
                // Integers: for floats, this number of ranks makes the sum depend on the order.
                case.check::<i64>(comm);
            }
        }
    });
}

#[test]
fn registered_memory_of_many_ranks_is_one_piece() {
    run_with(&Communicator::builder(), 24, |comm| {
        let mut all = comm.alloc::<u32>(1000).unwrap();
        assert!(all.iter().all(|&element| element == 0));
        all.fill(comm.rank() as u32);
        comm.all_reduce_in_place(&mut all, RedOp::Max)
            .run()
            .unwrap();
        assert!(all.iter().all(|&element| element == 23));
    });
}
