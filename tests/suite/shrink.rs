//! Ranks that are threads, and continue without some of them.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use spark_ccl::{Communicator, Error, Operation};

use crate::collectives_model::Case;
use crate::ranks::{connected, each, run};

/// Checks that all ranks compute the right results.
fn assert_works(comm: &Communicator) {
    Case::new(Operation::AllReduce, 1000)
        .attempt::<f32>(comm)
        .unwrap();
}

fn problem(result: Result<Communicator, Error>) -> String {
    match result {
        Err(Error::Shrink { problem, .. } | Error::LeftOut { problem, .. }) => problem,
        Err(error) => panic!("{error}"),
        Ok(comm) => panic!("{comm:?}"),
    }
}

#[test]
fn ranks_keep_their_order() {
    run(4, |comm| {
        let all = comm.shrink(&[]).unwrap();
        assert_eq!((all.rank(), all.size()), (comm.rank(), 4));
        assert_works(&all);
        // The parent is unchanged, and has traffic of its own.
        assert_works(comm);
        if comm.rank() != 1 {
            let fewer = all.shrink(&[1, 1]).unwrap();
            let expected = [0, 0, 1, 2][comm.rank()];
            assert_eq!((fewer.rank(), fewer.size()), (expected, 3));
            assert_works(&fewer);
            fewer.finalize().unwrap();
        }
        all.finalize().unwrap();
    });
}

#[test]
fn an_aborted_communicator_is_followed_by_one_of_all_ranks() {
    let all_have_results = Barrier::new(3);
    run(3, |world| {
        let mut comm = world.shrink(&[]).unwrap();
        for round in 0..10 {
            all_have_results.wait();
            if comm.rank() == round % 3 {
                comm.abort("enough");
            }
            while comm.barrier().run().is_ok() {}
            comm = comm.shrink(&[]).unwrap();
            assert_works(&comm);
        }
    });
}

/// A rank that is ahead, and already proposes the next communicator, is in the one that the others
/// look for.
#[test]
fn ranks_shrink_twice_in_a_row() {
    run(3, |comm| {
        for _ in 0..20 {
            // By then, the others sleep for a while between two looks.
            if comm.rank() == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let first = comm.shrink(&[]).unwrap();
            let second = first.shrink(&[]).unwrap();
            assert_works(&first);
            assert_works(&second);
        }
    });
}

#[test]
fn impossible_ranks_are_refused_at_once() {
    run(2, |comm| {
        for (lost, words) in [(comm.rank(), "calls itself lost"), (2, "rank 2 of 2")] {
            match comm.shrink(&[lost]) {
                Err(Error::Invalid { operation, problem }) => {
                    assert_eq!(operation, "shrink");
                    assert!(problem.contains(words), "{problem}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_works(comm);
    });
}

#[test]
fn one_thread_of_a_rank_shrinks_at_a_time() {
    let refused = Barrier::new(2);
    run(2, |comm| {
        if comm.rank() == 1 {
            refused.wait();
            return drop(comm.shrink(&[]).unwrap());
        }
        let (sender, results) = channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let sender = sender.clone();
                scope.spawn(move || sender.send(comm.shrink(&[])).unwrap());
            }
            // One waits for rank 1, which waits for the other.
            let first = results.recv().unwrap().unwrap_err().to_string();
            assert!(first.contains("another thread"), "{first}");
            refused.wait();
            assert_eq!(results.recv().unwrap().unwrap().size(), 2);
        });
    });
}

#[test]
fn a_rank_that_has_left_the_world_is_left_out() {
    let builder = Communicator::builder();
    for comms in [builder.local(3).unwrap(), connected(&builder, 3)] {
        each(comms, |comm| {
            if comm.rank() == 0 {
                return;
            }
            assert!(comm.barrier().run().is_err());
            let comm = comm.shrink(&[]).unwrap();
            assert_eq!(comm.size(), 2);
            assert_works(&comm);
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn ranks_that_disagree_learn_what_differs() {
    let builder = Communicator::builder().init_timeout(Duration::from_secs(3));
    let done = Barrier::new(4);
    each(builder.local(4).unwrap(), |comm| {
        let lost: &[usize] = [&[3][..], &[3], &[], &[]][comm.rank()];
        if comm.rank() < 3 {
            let text = problem(comm.shrink(lost));
            let words: &[&str] = match comm.rank() {
                0 | 1 => &[
                    "this rank goes on without rank 3; ",
                    "rank 2 (",
                    "goes on with all ranks",
                ],
                _ => &[
                    "this rank goes on with all ranks; rank 0 (",
                    "goes on without rank 3; rank 1 (",
                    "rank 3 (",
                    "has not called it",
                ],
            };
            for part in words {
                assert!(text.contains(part), "{part:?} is not in {text:?}");
            }
        }
        done.wait();
        // Another attempt is allowed.
        let comm = comm.shrink(&[]).unwrap();
        assert_eq!(comm.size(), 4);
        assert_works(&comm);
    });
}

#[test]
fn a_rank_that_is_called_lost_gets_an_error() {
    let gone_on = Barrier::new(3);
    each(Communicator::local(3).unwrap(), |comm| {
        if comm.rank() == 2 {
            gone_on.wait();
            let text = problem(comm.shrink(&[]));
            assert!(text.contains("goes on without this rank"), "{text}");
            gone_on.wait();
            return;
        }
        let comm = comm.shrink(&[2]).unwrap();
        gone_on.wait();
        gone_on.wait();
        assert_works(&comm);
        assert_works(&comm.shrink(&[]).unwrap());
    });
}

#[test]
fn ranks_that_call_each_other_lost_go_on_apart() {
    run(4, |comm| {
        let lost = if comm.rank() < 2 { [2, 3] } else { [0, 1] };
        let half = comm.shrink(&lost).unwrap();
        assert_eq!((half.rank(), half.size()), (comm.rank() % 2, 2));
        assert_works(&half);
    });
}

#[test]
fn communicators_of_the_same_ranks_are_shrunk_at_the_same_time() {
    run(3, |comm| {
        let parts: Vec<Communicator> = (0..4)
            .map(|_| comm.split(Some(0), 0).unwrap().unwrap())
            .collect();
        std::thread::scope(|scope| {
            for part in &parts {
                scope.spawn(|| {
                    if comm.rank() == 1 {
                        return;
                    }
                    let mut shrunk = part.shrink(&[1]).unwrap();
                    for _ in 0..5 {
                        assert_works(&shrunk);
                        shrunk = shrunk.shrink(&[]).unwrap();
                    }
                });
            }
        });
    });
}

#[test]
fn a_shrunk_communicator_can_be_split() {
    run(4, |comm| {
        let shrunk = comm.shrink(&[]).unwrap();
        let half = shrunk.split(Some(comm.rank() as u32 % 2), 0).unwrap();
        let half = half.unwrap();
        assert_works(&half);
        let alone = half.shrink(&[1 - half.rank()]).unwrap();
        assert_eq!(alone.size(), 1);
        assert_works(&alone);
        assert_works(&half);
        assert_works(&shrunk);
    });
}
