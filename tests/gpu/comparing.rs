//! NCCL does not see that ranks make different calls: the ranks compare them, and the errors name
//! both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::{Communicator, Error, Fault, RedOp};

use super::failures::memory;
use super::{builder, gpus, of_fakes};

/// Far longer than it takes to compare calls, far below the operation timeout.
const SOON: Duration = Duration::from_secs(20);

/// Sums of these lengths, one after the other.
fn sum(
    comm: &Communicator,
    memory: &mut DeviceMemory<f32>,
    stream: &Arc<CudaStream>,
    lengths: &[usize],
) -> Result<(), Error> {
    for &length in lengths {
        let part = memory.view_mut(0..length)?;
        comm.all_reduce_in_place(part, RedOp::Sum).on(stream)?;
    }
    Ok(())
}

/// All ranks make the sums `same`, which NCCL connects them for, and then rank 0 `own`, the others
/// `others`. The error of the second wait, by rank.
fn errors_of(same: &[usize], own: &[usize], others: &[usize]) -> Option<Vec<Option<Error>>> {
    let gpus = gpus(2)?;
    let start = Instant::now();
    let errors = gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        sum(&comm, &mut memory, &stream, same).unwrap();
        comm.wait(&stream).unwrap();
        let lengths = if comm.rank() == 0 { own } else { others };
        let called = sum(&comm, &mut memory, &stream, lengths);
        let outcome = called.and_then(|()| comm.wait(&stream));
        // A rank that is fine leaves only once the others are, too.
        outcome.and_then(|()| comm.finalize()).err()
    });
    assert!(start.elapsed() < SOON);
    Some(errors)
}

/// All ranks have an error that names call `number` on the device, and the calls of rank 0 and of
/// another one.
fn assert_different(errors: &[Option<Error>], number: u64, [own, other]: [usize; 2]) {
    for error in errors {
        let Some(Error::Failed(fault)) = error else {
            panic!("{error:?}");
        };
        let Fault::Mismatch {
            sequence, rank_a, ..
        } = &**fault
        else {
            panic!("{fault}");
        };
        assert_eq!(sequence & 0xffff, number, "{fault}");
        let named: Vec<_> = fault.ranks().map(|member| member.rank).collect();
        assert!(named.contains(&0) && named.len() == 2, "{fault}");
        assert!(named.contains(&rank_a.rank));
        for count in [own, other] {
            assert!(
                fault.to_string().contains(&format!("count {count},")),
                "{fault}"
            );
        }
    }
}

#[test]
fn counts_that_differ_are_no_success() {
    let Some(errors) = errors_of(&[1024], &[1024], &[1500]) else {
        return;
    };
    assert_different(&errors, 2, [1024, 1500]);
}

#[test]
fn calls_in_another_order_are_no_success() {
    let Some(errors) = errors_of(&[1024, 1024], &[1024, 1100], &[1100, 1024]) else {
        return;
    };
    assert_different(&errors, 3, [1024, 1100]);
}

/// The difference is long ago when a rank waits.
#[test]
fn the_first_of_many_calls_is_named() {
    let mut others = vec![1024; 500];
    others[170] = 1025;
    let Some(errors) = errors_of(&[1024], &[1024; 500], &others) else {
        return;
    };
    assert_different(&errors, 172, [1024, 1025]);
}

#[test]
fn who_waits_by_cudarc_hears_of_it_too() {
    let Some(gpus) = gpus(2) else { return };
    let start = Instant::now();
    let errors = gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        sum(&comm, &mut memory, &stream, &[1024]).unwrap();
        let length = 1024 + usize::from(comm.rank() == 0);
        sum(&comm, &mut memory, &stream, &[length]).unwrap();
        // It may have been found already.
        let _ = stream.synchronize();
        loop {
            if let Err(error) = comm.check() {
                return Some(error);
            }
            assert!(start.elapsed() < SOON);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_different(&errors, 2, [1024, 1025]);
}

/// A rank that never waits answers nevertheless.
#[test]
fn who_only_enqueues_is_compared_with() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        for _ in 0..50 {
            sum(&comm, &mut memory, &stream, &[1024; 20]).unwrap();
            if comm.rank() == 0 {
                comm.wait(&stream).unwrap();
            }
        }
        comm.finalize().unwrap();
    });
}

/// NCCL does not come back from a call of another thread of the rank.
#[test]
fn a_wait_compares_while_another_thread_is_stuck() {
    let Some(gpus) = gpus(2) else { return };
    let Some(block) = of_fakes(c"fake_block") else {
        return;
    };
    let step = std::sync::Barrier::new(2);
    gpus.each(&builder(), |comm| {
        let context = comm.context().unwrap();
        let [stream, other] = [(); 2].map(|()| context.new_stream().unwrap());
        let [mut memory, mut message] = [(); 2].map(|()| memory(&comm));
        sum(&comm, &mut memory, &stream, &[1024]).unwrap();
        comm.wait(&stream).unwrap();
        if comm.rank() == 0 {
            sum(&comm, &mut memory, &stream, &[1024]).unwrap();
            step.wait();
            step.wait();
            comm.recv(&mut message, 1).on(&other).unwrap();
            comm.wait(&other).unwrap();
        } else {
            sum(&comm, &mut memory, &stream, &[1024]).unwrap();
            step.wait();
            // It has run, and is not compared, as neither rank has waited for it.
            stream.synchronize().unwrap();
            std::thread::scope(|scope| {
                block(1);
                scope.spawn(|| comm.send(&message, 0).on(&other).unwrap());
                std::thread::sleep(Duration::from_millis(50));
                let (sender, waited) = std::sync::mpsc::channel();
                let (comm, stream) = (&comm, &stream);
                scope.spawn(move || sender.send(comm.wait(stream)));
                let waited = waited.recv_timeout(SOON);
                // It is to end also where this fails.
                block(0);
                step.wait();
                waited.unwrap().unwrap();
            });
            comm.wait(&other).unwrap();
        }
        comm.finalize().unwrap();
    });
}

/// Another thread's group has the communicator; the rank makes the call again afterwards.
#[test]
fn a_call_that_was_refused_is_not_compared() {
    let Some(gpus) = gpus(2) else { return };
    let Some(block) = of_fakes(c"fake_block") else {
        return;
    };
    gpus.each(&builder(), |comm| {
        let pair = comm.split(Some(0), comm.rank() as i32).unwrap().unwrap();
        let context = comm.context().unwrap();
        let [stream, other] = [(); 2].map(|()| context.new_stream().unwrap());
        let [mut memory, mut grouped] = [(); 2].map(|()| memory(&comm));
        let mut message = super::failures::memory(&pair);
        sum(&comm, &mut memory, &stream, &[1024]).unwrap();
        comm.wait(&stream).unwrap();
        if comm.rank() == 0 {
            sum(&comm, &mut grouped, &other, &[1024]).unwrap();
            pair.recv(&mut message, 1).on(&other).unwrap();
        } else {
            std::thread::scope(|scope| {
                block(1);
                let group = scope.spawn(|| {
                    comm.group(|group| {
                        let part = grouped.view_mut(0..1024)?;
                        comm.all_reduce_in_place(part, RedOp::Sum)
                            .within(group, &other);
                        pair.send(&message, 0).within(group, &other);
                        Ok(())
                    })
                });
                std::thread::sleep(Duration::from_millis(200));
                let refused = sum(&comm, &mut memory, &stream, &[1024]);
                block(0);
                group.join().unwrap().unwrap();
                let said = refused.unwrap_err();
                assert!(matches!(said, Error::Invalid { .. }), "{said}");
            });
        }
        sum(&comm, &mut memory, &stream, &[1024, 1000]).unwrap();
        comm.wait(&stream).unwrap();
        comm.wait(&other).unwrap();
        comm.check().unwrap();
        comm.finalize().unwrap();
        pair.finalize().unwrap();
    });
}

/// Another communicator of the group has failed, so that none of its calls has begun.
#[test]
fn calls_of_a_group_that_has_not_begun_are_not_compared() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let rest = comm.split(Some(0), comm.rank() as i32).unwrap().unwrap();
        let stream = comm.context().unwrap().new_stream().unwrap();
        let [mut memory, mut grouped] = [(); 2].map(|()| memory(&comm));
        let mut other = super::failures::memory(&rest);
        sum(&comm, &mut memory, &stream, &[1024]).unwrap();
        comm.wait(&stream).unwrap();
        if comm.rank() == 0 {
            rest.abort("a test");
            let wait = rest.wait(&stream).unwrap_err().to_string();
            assert!(wait.contains("a test"), "{wait}");
            let called = comm.group(|group| {
                let part = grouped.view_mut(0..512)?;
                comm.all_reduce_in_place(part, RedOp::Sum)
                    .within(group, &stream);
                rest.all_reduce_in_place(&mut other, RedOp::Sum)
                    .within(group, &stream);
                Ok(())
            });
            let said = called.unwrap_err().to_string();
            assert!(said.contains("a test"), "{said}");
        }
        sum(&comm, &mut memory, &stream, &[1000, 1024]).unwrap();
        comm.wait(&stream).unwrap();
        comm.check().unwrap();
        comm.finalize().unwrap();
    });
}

/// NCCL refuses a later call of the group, so none of it runs.
#[test]
fn calls_before_one_that_is_refused_are_not_compared() {
    let Some(gpus) = gpus(2) else { return };
    let Some(refuse) = of_fakes(c"fake_refuse") else {
        return;
    };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let [mut memory, mut grouped, mut message] = [(); 3].map(|()| memory(&comm));
        // NCCL has connected the ranks for all of this: no rank waits for another below.
        sum(&comm, &mut memory, &stream, &[1024]).unwrap();
        match comm.rank() {
            0 => comm.recv(&mut message, 1).on(&stream).unwrap(),
            1 => comm.send(&message, 0).on(&stream).unwrap(),
            _ => {}
        }
        comm.wait(&stream).unwrap();
        if comm.rank() == 1 {
            refuse(1);
            let refused = comm.group(|group| {
                let part = grouped.view_mut(0..1024)?;
                comm.all_reduce_in_place(part, RedOp::Sum)
                    .within(group, &stream);
                comm.send(&message, 0).within(group, &stream);
                Ok(())
            });
            refuse(0);
            let said = refused.unwrap_err();
            assert!(matches!(said, Error::Nccl(_)), "{said}");
        }
        sum(&comm, &mut memory, &stream, &[1000, 1024]).unwrap();
        comm.wait(&stream).unwrap();
        comm.check().unwrap();
        comm.finalize().unwrap();
    });
}

/// Nothing is left to wait for when a program ends its communicator.
#[test]
fn finalize_compares_calls_that_have_run() {
    let Some(gpus) = gpus(2) else { return };
    let errors = gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        sum(&comm, &mut memory, &stream, &[1024]).unwrap();
        let length = 1024 + usize::from(comm.rank() == 0);
        sum(&comm, &mut memory, &stream, &[length]).unwrap();
        let _ = stream.synchronize();
        // The guard has seen by then that all has run.
        std::thread::sleep(Duration::from_millis(200));
        comm.finalize().err()
    });
    assert_different(&errors, 2, [1024, 1025]);
}
