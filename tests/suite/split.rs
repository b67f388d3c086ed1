//! Splitting, leaving, aborting.

use std::sync::Barrier;
use std::time::Duration;

use spark_ccl::{Algorithm, AlgorithmChoice, Communicator, DType, Error, Fault, Operation, RedOp};

use super::collectives_model::{COLLECTIVES, Case};
use super::ranks::{Watchdog, each, run, run_with};

fn check_all(comm: &Communicator) {
    for collective in COLLECTIVES {
        Case::new(collective, 301).check::<f32>(comm);
    }
}

#[test]
fn colors_make_groups() {
    for n in [1, 2, 5, 8] {
        run(n, |comm| {
            let color = comm.rank() % 3;
            let part = comm.split(Some(color as u32), 0).unwrap().unwrap();
            assert_eq!(part.size(), (n + 2 - color) / 3);
            assert_eq!(part.rank(), comm.rank() / 3);
            check_all(&part);
            part.finalize().unwrap();
        });
    }
}

#[test]
fn every_rank_is_in_the_part_of_its_color() {
    run(5, |comm| {
        for color in [0, usize::MAX / 2, usize::MAX - 1] {
            let color = color + comm.rank() % 2;
            let part = comm.split_by(color).unwrap();
            assert_eq!(part.size(), 3 - comm.rank() % 2);
            assert_eq!(part.rank(), comm.rank() / 2);
            check_all(&part);
        }
    });
}

#[test]
fn a_subgroup_has_the_ranks_in_the_order_that_was_named() {
    run(4, |comm| {
        let ranks = [3, 0, 2];
        let group = comm.subgroup(&ranks).unwrap();
        let rank = group.as_ref().map(Communicator::rank);
        assert_eq!(rank, ranks.iter().position(|&rank| rank == comm.rank()));
        if let Some(group) = &group {
            check_all(group);
            let inner = group.subgroup(&[1]).unwrap();
            assert_eq!(inner.is_some(), comm.rank() == 0);
        }
        assert!(comm.subgroup(&[]).unwrap().is_none());
        check_all(comm);
    });
}

#[test]
fn ranks_that_name_other_subgroups_are_told() {
    run(3, |comm| {
        let named = [[0, 1], [0, 1], [1, 0]][comm.rank()];
        let error = comm.subgroup(&named).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{named:?}")), "{error}");
        for (ranks, problem) in [([0, 3], "no rank 3"), ([1, 1], "rank 1 is named twice")] {
            let error = comm.subgroup(&ranks).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
        // There is no rank 3, and only one rank claims that there is.
        let named = [&[0, 3][..], &[0, 1], &[]][comm.rank()];
        let error = comm.subgroup(named).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        check_all(comm);
    });
}

#[test]
fn a_restricted_communicator_takes_nothing_else() {
    for (algorithms, expected) in [
        ("ring", Algorithm::Ring),
        ("direct", Algorithm::Direct),
        ("all_reduce:double-tree", Algorithm::DoubleTree),
        ("^ring,direct", Algorithm::RecursiveDoubling),
    ] {
        run(3, |comm| {
            let only = comm.restricted(choice(algorithms)).unwrap();
            assert_eq!((only.rank(), only.size()), (comm.rank(), 3));
            let why = only.explain(Operation::AllReduce, DType::F32, 1 << 20, false);
            let why = why.unwrap();
            assert_eq!(why.algorithm, expected, "{algorithms}: {why}");
            check_all(&only);
            // Parts inherit the restriction.
            let part = only.split(Some(0), 0).unwrap().unwrap();
            let again = part.explain(Operation::AllReduce, DType::F32, 1 << 20, false);
            assert_eq!(again.unwrap(), why);
            part.finalize().unwrap();
            only.finalize().unwrap();
        });
    }
}

fn choice(algorithms: &str) -> AlgorithmChoice {
    algorithms.parse().unwrap()
}

#[test]
fn ranks_that_choose_other_algorithms_are_told() {
    run(3, |comm| {
        let others = Algorithm::RecursiveDoubling;
        let own = [Algorithm::Direct, others, others][comm.rank()];
        let error = comm.restricted(own).unwrap_err().to_string();
        assert!(
            error.contains(own.name()) && error.contains("all ranks"),
            "{error}"
        );
        // The communicator is as good as before.
        check_all(comm);
    });
}

#[test]
fn keys_order_the_ranks() {
    run(5, |comm| {
        let back = comm.split(Some(7), -(comm.rank() as i32)).unwrap().unwrap();
        assert_eq!(back.rank(), 4 - comm.rank());
        let mut ranks = [0; 5];
        back.all_gather(&[comm.rank() as u32], &mut ranks)
            .run()
            .unwrap();
        assert_eq!(ranks, [4, 3, 2, 1, 0]);

        // Equal keys keep the order.
        let keys = [3, i32::MIN, 3, i32::MAX, i32::MIN];
        let mixed = comm.split(Some(0), keys[comm.rank()]).unwrap().unwrap();
        mixed
            .all_gather(&[comm.rank() as u32], &mut ranks)
            .run()
            .unwrap();
        assert_eq!(ranks, [1, 4, 0, 2, 3]);
        check_all(&mixed);
    });
}

#[test]
fn ranks_without_color_get_none() {
    run(4, |comm| {
        let color = (comm.rank() != 2).then_some(u32::MAX);
        let part = comm.split(color, 0).unwrap();
        assert_eq!(part.as_ref().map(Communicator::size), color.map(|_| 3));
        if let Some(part) = part {
            check_all(&part);
        }
        assert!(comm.split(None, 0).unwrap().is_none());
        check_all(comm);
    });
}

#[test]
fn parts_split_again() {
    run(8, |comm| {
        let half = comm
            .split(Some(comm.rank() as u32 / 4), 0)
            .unwrap()
            .unwrap();
        let quarter = half
            .split(Some(half.rank() as u32 / 2), -(half.rank() as i32))
            .unwrap()
            .unwrap();
        assert_eq!((half.size(), quarter.size()), (4, 2));
        for round in 0..5 {
            for group in [comm, &half, &quarter] {
                let sum = |value: usize| {
                    let mut sum = [value as u64];
                    group
                        .all_reduce_in_place(&mut sum, RedOp::Sum)
                        .run()
                        .unwrap();
                    sum[0] as usize
                };
                assert_eq!(sum(round), round * group.size());
            }
        }
        let peer = quarter.peer(1 - quarter.rank()).unwrap();
        assert_eq!(peer.pid, std::process::id());
    });
}

#[test]
fn part_and_whole_take_turns_and_leave_in_any_order() {
    run(4, |comm| {
        let part = comm
            .split(Some(comm.rank() as u32 % 2), 0)
            .unwrap()
            .unwrap();
        for collective in COLLECTIVES {
            Case::new(collective, 1009).check::<f32>(&part);
            Case::new(collective, 1009).check::<f32>(comm);
        }
        // Half of the ranks drop their part; the whole continues.
        if comm.rank() % 2 == 0 {
            drop(part);
            check_all(comm);
        } else {
            check_all(comm);
            check_all(&part);
            part.finalize().unwrap();
        }
    });
}

#[test]
fn a_part_outlives_the_whole() {
    let comms = Communicator::local(3).unwrap();
    each(comms, |comm| {
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        comm.finalize().unwrap();
        check_all(&part);
        part.finalize().unwrap();
    });
}

#[test]
fn operations_in_flight_of_two_communicators_do_not_wait_for_each_other() {
    let builder = Communicator::builder().operation_timeout(Duration::from_secs(20));
    run_with(&builder, 3, |comm| {
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let buffer = vec![comm.rank() as f32; 50_000];
        // The ranks wait in different orders.
        let first = comm
            .all_reduce_in_place(buffer.clone(), RedOp::Sum)
            .start()
            .unwrap();
        let second = other
            .all_reduce_in_place(buffer, RedOp::Max)
            .start()
            .unwrap();
        let (sum, max) = if comm.rank() == 0 {
            let sum = first.wait().unwrap();
            (sum, second.wait().unwrap())
        } else {
            let max = second.wait().unwrap();
            (first.wait().unwrap(), max)
        };
        assert!(sum.iter().all(|&x| x.to_bits() == 3.0_f32.to_bits()));
        assert!(max.iter().all(|&x| x.to_bits() == 2.0_f32.to_bits()));
    });
}

#[test]
fn an_abort_reaches_everyone_and_a_new_communicator_works() {
    // An operation still in progress on some rank would be aborted, too.
    let quiet = Barrier::new(3);
    let texts = each(Communicator::local(3).unwrap(), |comm| {
        check_all(&comm);
        quiet.wait();
        if comm.rank() == 1 {
            comm.abort("out of patience");
        }
        let error = comm.barrier().run().unwrap_err();
        let Error::Failed(fault) = &error else {
            panic!("{error:?}");
        };
        assert!(matches!(**fault, Fault::Aborted { .. }), "{error}");

        // Every later call returns the same error.
        let text = error.to_string();
        let mut buffer = [0_f32; 6];
        let later = [
            comm.check().unwrap_err(),
            comm.all_reduce_in_place(&mut buffer, RedOp::Sum)
                .run()
                .unwrap_err(),
            comm.send(&[1_u8], 0).run().unwrap_err(),
            comm.recv(&mut buffer, 0).run().unwrap_err(),
            comm.alloc::<u8>(10).unwrap_err(),
            comm.split(Some(0), 0).unwrap_err(),
            comm.all_gather_in_place(vec![0_u8; 6])
                .start()
                .err()
                .unwrap()
                .error,
        ];
        for error in later {
            assert_eq!(error.to_string(), text);
        }
        assert_eq!(comm.finalize().unwrap_err().to_string(), text);
        text
    });
    for text in &texts {
        assert!(
            text.contains("rank 1") && text.contains("out of patience"),
            "{text}"
        );
    }
    run(3, check_all);
}

#[test]
fn any_thread_may_abort_a_waiting_call() {
    let _watchdog = Watchdog::new();
    let comms = Communicator::local(2).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| comms[0].recv(&mut [0_u8; 4], 1).run().unwrap_err());
        std::thread::sleep(Duration::from_millis(50));
        comms[0].abort("changed my mind");
        let error = waiting.join().unwrap();
        assert!(error.to_string().contains("changed my mind"), "{error}");
    });
}

#[test]
fn an_abort_of_a_part_leaves_the_whole_alone() {
    let all_split = Barrier::new(4);
    run(4, |comm| {
        let part = comm
            .split(Some(comm.rank() as u32 / 2), 0)
            .unwrap()
            .unwrap();
        all_split.wait();
        if comm.rank() == 0 {
            part.abort("only the first half");
        }
        if comm.rank() < 2 {
            let error = part.barrier().run().unwrap_err();
            assert!(error.to_string().contains("only the first half"), "{error}");
        } else {
            check_all(&part);
        }
        check_all(comm);
    });
}

#[test]
fn leaving_early_is_noticed_by_those_who_need_the_rank() {
    let errors = each(Communicator::local(3).unwrap(), |comm| {
        Case::new(Operation::AllReduce, 10).check::<f32>(&comm);
        if comm.rank() == 2 {
            drop(comm);
            return None;
        }
        Some(comm.barrier().run().unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        let Error::Failed(fault) = &error else {
            panic!("{error:?}");
        };
        assert!(matches!(**fault, Fault::Left { .. }), "{error}");
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}
