//! Messages of structs, and messages whose size the receiver does not know.

use std::sync::Barrier;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use spark_ccl::{Builder, Communicator, DType, Error, ExitClass, Fault};
use spark_ccl_testing::with_enough_time;

use super::ranks::{each, narrow, run_with};

#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    at: [f64; 3],
    number: u64,
}

fn particles(rank: usize, count: usize) -> Vec<Particle> {
    let particle = |number| Particle {
        at: [rank as f64, 0.5, -1.0],
        number,
    };
    (0..count as u64).map(particle).collect()
}

/// Over shared memory and TCP, with windows smaller than the messages.
fn transports() -> [Builder; 2] {
    [narrow(), narrow().shared_memory(false)]
}

#[test]
fn structs_go_round_a_ring() {
    for builder in transports() {
        run_with(&builder, 3, |comm| {
            let (next, last) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            for count in [0, 1, 100] {
                let own = particles(comm.rank(), count);
                let mut received = particles(9, count);
                comm.scope(|scope| {
                    comm.send_pod(&own, next).start_in(scope)?;
                    comm.recv_pod(&mut received, last).start_in(scope)?;
                    Ok(())
                })
                .unwrap();
                assert_eq!(received, particles(last, count));
            }
        });
    }
}

#[test]
fn structs_of_other_sizes_are_a_mismatch() {
    each(Communicator::local(2).unwrap(), |comm| {
        let outcome = if comm.rank() == 0 {
            comm.send_pod(&particles(0, 1), 1).run()
        } else {
            comm.recv_pod(&mut [[0_u16; 7]], 0).run()
        };
        let error = outcome.and_then(|()| comm.barrier().run()).unwrap_err();
        assert!(
            matches!(error.fault(), Some(Fault::Mismatch { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("count 14"), "{error}");
    });
}

#[test]
fn a_message_of_any_size_is_received_whole() {
    for builder in transports() {
        run_with(&builder, 2, |comm| {
            for count in [0, 1, 3_000] {
                let values: Vec<i64> = (0..count).collect();
                if comm.rank() == 0 {
                    comm.send(&values, 1).run().unwrap();
                } else {
                    let error = comm.recv_vec::<f32>(0).unwrap_err();
                    assert!(matches!(error, Error::Invalid { .. }), "{error}");
                    assert!(error.to_string().contains(DType::F32.name()), "{error}");
                    assert_eq!(comm.recv_vec::<i64>(0).unwrap(), values);
                }
            }
        });
    }
}

#[test]
fn the_wait_for_a_message_sees_the_one_after_those_that_were_asked_for() {
    for builder in transports() {
        run_with(&builder, 2, |comm| {
            if comm.rank() == 0 {
                comm.barrier().run().unwrap();
                comm.send(&[1_u8], 1).run().unwrap();
                std::thread::sleep(Duration::from_millis(300));
                comm.send(&[2_u32; 5], 1).run().unwrap();
            } else {
                let first = comm.recv(vec![0_u8], 0).start().unwrap();
                comm.barrier().run().unwrap();
                assert_eq!(comm.probe_wait(0).unwrap(), (DType::U32, 5));
                assert!(first.test());
                assert_eq!(comm.recv_vec::<u32>(0).unwrap(), [2; 5]);
            }
        });
    }
}

#[test]
fn a_message_that_does_not_come_in_time_is_a_timeout() {
    with_enough_time(Duration::from_millis(1_500), |limit| {
        let is_over = Barrier::new(2);
        let seen = each(Communicator::local(2).unwrap(), |comm| {
            let mut seen = String::new();
            if comm.rank() == 0 {
                comm.set_timeout(limit).unwrap();
                let error = comm.probe_wait(1).unwrap_err();
                assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
                assert_eq!(error.ranks(), [1], "{error}");
                seen = error.to_string();
                for part in ["probe_wait", "rank 1 ("] {
                    assert!(seen.contains(part), "{part:?}: {seen}");
                }
            }
            is_over.wait();
            seen
        });
        // Its monitor may have had no time to say so.
        let [seen, _] = seen.try_into().unwrap();
        if seen.contains("which is alive") {
            Ok(())
        } else {
            Err(seen)
        }
    });
}

#[test]
fn a_rank_that_leaves_is_not_waited_for() {
    each(Communicator::local(2).unwrap(), |comm| {
        if comm.rank() == 1 {
            comm.send(&[1_u8], 0).run().unwrap();
            return;
        }
        assert_eq!(comm.recv_vec::<u8>(1).unwrap(), [1]);
        let error = comm.probe_wait(1).unwrap_err();
        assert!(matches!(error.fault(), Some(Fault::Left { .. })), "{error}");
        assert!(error.to_string().contains("probe_wait"), "{error}");
    });
}

#[test]
fn there_must_be_such_a_rank() {
    let comm = Communicator::local(1).unwrap().remove(0);
    for error in [
        comm.probe_wait(1).unwrap_err(),
        comm.recv_vec::<u8>(7).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}
