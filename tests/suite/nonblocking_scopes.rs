//! Scopes wait for the operations started in them.

use spark_ccl::{Communicator, Error, RedOp};

use super::ranks::{Watchdog, narrow, run, run_with};

#[test]
fn testing_within_a_scope_makes_progress() {
    run_with(&narrow(), 2, |comm| {
        let own: Vec<u64> = (0..5000).map(|i| i + 7 * comm.rank() as u64).collect();
        let mut sums = vec![0; own.len()];
        comm.scope(|scope| {
            let call = comm.all_reduce(&own, &mut sums, RedOp::Sum);
            let pending = call.start_in(scope)?;
            while !pending.test() {
                std::thread::yield_now();
            }
            assert!(pending.test());
            pending.wait()
        })
        .unwrap();
        assert!((0..).zip(&sums).all(|(i, &sum)| sum == 2 * i + 7));
    });
}

#[test]
fn the_scope_waits_for_forgotten_handles() {
    run_with(&narrow(), 2, |comm| {
        for _ in 0..20 {
            let mut sums = vec![comm.rank() as i32; 3000];
            let mut maxima = vec![comm.rank() as i32; 3000];
            comm.scope(|scope| {
                let pending = comm
                    .all_reduce_in_place(&mut sums, RedOp::Sum)
                    .start_in(scope)?;
                std::mem::forget(pending);
                drop(
                    comm.all_reduce_in_place(&mut maxima, RedOp::Max)
                        .start_in(scope)?,
                );
                Ok(())
            })
            .unwrap();
            assert!(sums.iter().chain(&maxima).all(|&x| x == 1));
        }
    });
}

#[test]
fn a_scope_owns_buffers_as_well() {
    run_with(&narrow(), 2, |comm| {
        let mut kept = vec![1_i32; 900];
        let sums = comm
            .scope(|scope| {
                let first = comm
                    .all_reduce_in_place(vec![1_i32; 900], RedOp::Sum)
                    .start_in(scope)?;
                let dropped = comm
                    .all_reduce_in_place(vec![2_i32; 900], RedOp::Sum)
                    .start_in(scope)?;
                let last = comm
                    .all_reduce_in_place(&mut kept, RedOp::Sum)
                    .start_in(scope)?;
                drop(dropped);
                last.wait()?;
                first.wait()
            })
            .unwrap();
        assert_eq!(sums, vec![2; 900]);
        assert_eq!(kept, vec![2; 900]);
    });
}

#[test]
fn a_panic_in_a_scope_waits_and_goes_on() {
    run_with(&narrow(), 2, |comm| {
        let mut sums = vec![1_i32; 5000];
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            comm.scope(|scope| {
                let _pending = comm
                    .all_reduce_in_place(&mut sums, RedOp::Sum)
                    .start_in(scope)?;
                if comm.rank() == 0 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                Ok(())
            })
        }));
        match outcome {
            Err(panic) => {
                assert_eq!(comm.rank(), 0);
                assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
            }
            Ok(result) => result.unwrap(),
        }
        assert!(sums.iter().all(|&x| x == 2));
        comm.barrier().run().unwrap();
    });
}

#[test]
fn a_scope_reports_the_first_error() {
    let _watchdog = Watchdog::new();
    run(1, |comm| {
        let outcome = comm.scope(|scope| {
            comm.barrier().start_in(scope)?;
            Err::<(), _>(Error::Launcher("mine".to_owned()))
        });
        assert_eq!(outcome.unwrap_err().to_string(), "mine");
        comm.barrier().run().unwrap();
    });
    let comms = Communicator::local(2).unwrap();
    let mut buffer = [0_u8; 4];
    let outcome = comms[0].scope(|scope| {
        std::mem::forget(comms[0].recv(&mut buffer, 1).start_in(scope)?);
        comms[0].abort("no more");
        Ok(())
    });
    assert!(outcome.unwrap_err().to_string().contains("no more"));
}

#[test]
fn errors_of_the_program_come_before_those_of_calls() {
    let _watchdog = Watchdog::new();
    let comms = Communicator::local(2).unwrap();
    let mut buffer = [0_u8; 4];
    let outcome = comms[0].try_scope(|scope| {
        comms[0].recv(&mut buffer, 1).start_in(scope)?;
        comms[0].abort("no more");
        let step: u32 = "seven".parse()?;
        Ok::<_, Box<dyn std::error::Error>>(step)
    });
    assert!(outcome.unwrap_err().is::<std::num::ParseIntError>());
}
