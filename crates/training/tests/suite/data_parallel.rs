//! Whole steps: all ranks keep the same parameters, with the optimizer's state divided or not.

use std::time::Duration;

use spark_ccl::{Communicator, DType, Fault, bf16};
use spark_ccl_training::{
    AdamW, Checkpoints, DataParallel, Error, HostTensor, Options, Parameters, Problem, Sgd,
    Sharing, TensorInfo, Values, compare,
};

use crate::ranks::{Broken, error_of_all, numbers, ranks};

/// Lengths of tensors that divide evenly among no number of ranks.
pub(crate) const LENS: [usize; 5] = [7, 1, 30, 0, 13];

pub(crate) fn parameters() -> Vec<HostTensor> {
    let tensors = LENS.iter().enumerate().map(|(tensor, &len)| {
        let values = Values::F32(numbers(len, tensor as u64));
        HostTensor::new(&format!("tensor {tensor}"), &[len], values).unwrap()
    });
    tensors.collect()
}

pub(crate) fn options(sharing: Sharing) -> Options {
    Options {
        bucket_bytes: 80,
        sharing,
        ..Options::default()
    }
}

/// Trains these steps of `size` ranks with the gradients of 12 samples in each.
pub(crate) fn train(
    comm: &Communicator,
    training: &mut DataParallel<AdamW>,
    parameters: &mut Vec<HostTensor>,
    steps: u64,
) {
    while training.steps() < steps {
        for tensor in (0..LENS.len()).rev() {
            let mut sum = vec![0.0; LENS[tensor]];
            for sample in (comm.rank()..12).step_by(comm.size()) {
                let seed = training.steps() * 1000 + sample as u64 * 10 + tensor as u64;
                let gradient = numbers(sum.len(), seed);
                // The more ranks, the fewer samples has each; sums are exact.
                let factor = comm.size() as f32;
                sum.iter_mut()
                    .zip(gradient)
                    .for_each(|(sum, it)| *sum += it * factor);
            }
            training.ready(comm, tensor, &sum).unwrap();
        }
        training.step(comm, parameters).unwrap();
    }
}

/// The parameters after these steps.
fn trained(size: usize, sharing: Sharing, steps: u64) -> Vec<HostTensor> {
    let mut all = ranks(size, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options(sharing)).unwrap();
        train(comm, &mut training, &mut own, steps);
        compare(comm, &own).unwrap();
        own
    });
    all.swap_remove(0)
}

pub(crate) fn assert_close(seen: &[HostTensor], expected: &[HostTensor]) {
    for (seen, expected) in seen.iter().zip(expected) {
        let numbers = [seen, expected].map(|it| it.values.get::<f32>().unwrap());
        let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
        assert!(
            numbers[0].iter().zip(numbers[1]).all(is_close),
            "{seen:?}, not {expected:?}"
        );
    }
}

#[test]
fn any_number_of_ranks_trains_the_same_with_and_without_shares() {
    let alone = trained(1, Sharing::Replicated, 6);
    assert_ne!(alone, parameters());
    for size in [1, 2, 3, 4] {
        for sharing in [Sharing::Replicated, Sharing::Sharded] {
            assert_close(&trained(size, sharing, 6), &alone);
        }
    }
}

#[test]
fn a_rank_has_its_share_of_the_state_only() {
    ranks(4, |comm| {
        let memory = |sharing| {
            let mut own = vec![
                HostTensor::new("a", &[1000], Values::F32(vec![0.0; 1000])).unwrap(),
                HostTensor::new("b", &[999], Values::F32(vec![0.0; 999])).unwrap(),
            ];
            let optimizer = AdamW::new(0.1);
            let training = DataParallel::new(comm, &mut own, optimizer, options(sharing)).unwrap();
            training.memory()
        };
        let (whole, share) = (memory(Sharing::Replicated), memory(Sharing::Sharded));
        // Parameters, means and mean squares in f32.
        assert_eq!((whole.state, whole.whole_state), (1999 * 12, 1999 * 12));
        assert_eq!(share.whole_state, whole.state);
        let last = if comm.rank() == 3 { 499 } else { 500 };
        assert_eq!(share.state, last * 12);
        assert_eq!(whole.parameters, 1999 * 4);
    });
}

#[test]
fn parameters_of_16_bits_have_their_state_in_f32() {
    for (sharing, in_f32) in [
        (Sharing::Replicated, false),
        (Sharing::Sharded, false),
        (Sharing::Sharded, true),
    ] {
        ranks(2, |comm| {
            let ones = Values::Bf16(vec![bf16::ONE; 5]);
            let mut own = vec![
                HostTensor::new("narrow", &[5], ones).unwrap(),
                HostTensor::new("wide", &[3], Values::F32(vec![1.0; 3])).unwrap(),
            ];
            let options = Options {
                in_f32,
                ..options(sharing)
            };
            let optimizer = Sgd::new(1.0 / 1024.0, 0.0);
            let mut training = DataParallel::new(comm, &mut own, optimizer, options).unwrap();
            // A step of 1/1024 is too small for bf16 at 1, but eight are not.
            for _ in 0..8 {
                training.ready(comm, 1, &[1.0_f32; 3]).unwrap();
                training.ready(comm, 0, &[bf16::ONE; 5]).unwrap();
                training.step(comm, &mut own).unwrap();
            }
            let expected = 1.0 - 8.0 / 1024.0;
            assert_eq!(
                own[0].values,
                Values::Bf16(vec![bf16::from_f32(expected); 5])
            );
            assert_eq!(own[1].values, Values::F32(vec![expected; 3]));
        });
    }
}

#[test]
fn a_step_with_a_gradient_that_is_not_finite_changes_nothing() {
    for sharing in [Sharing::Replicated, Sharing::Sharded] {
        let results = ranks(2, |comm| {
            let mut own = parameters();
            let options = Options {
                find_non_finite: true,
                ..options(sharing)
            };
            let optimizer = AdamW::new(0.05);
            let mut training =
                DataParallel::new(comm, &mut own, optimizer, options.clone()).unwrap();
            let value = if comm.rank() == 1 { f32::INFINITY } else { 1.0 };
            training.ready(comm, 2, &[value; LENS[2]]).unwrap();
            let outcome = training.step(comm, &mut own);
            assert_eq!(own, parameters());
            let mut expected = parameters();
            let mut other =
                DataParallel::new(comm, &mut expected, AdamW::new(0.05), options).unwrap();
            other.ready(comm, 2, &[1.0_f32; LENS[2]]).unwrap();
            other.step(comm, &mut expected).unwrap();
            training.ready(comm, 2, &[1.0_f32; LENS[2]]).unwrap();
            training.step(comm, &mut own).unwrap();
            // The optimizer counts what it has changed, not what it was asked for.
            assert_eq!(own, expected);
            assert_ne!(own, parameters());
            compare(comm, &own).unwrap();
            outcome
        });
        let text = error_of_all(&results);
        assert!(
            text.contains("rank 1") && text.contains("\"tensor 2\": element 0"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_skips_a_step_is_named() {
    let results = ranks(3, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let options = options(Sharing::Sharded);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options)?;
        for step in 0..4 {
            if (comm.rank(), step) == (1, 2) {
                continue;
            }
            training.set_steps(step)?;
            training.ready(comm, 0, &[1.0_f32; LENS[0]])?;
            training.step(comm, &mut own)?;
        }
        Ok::<_, Error>(())
    });
    let text = error_of_all(&results);
    assert!(
        text.contains("rank 1") && text.contains("ends step 4, but expected 3"),
        "{text}"
    );
}

/// The state of a fault's survivors may differ, so it is not used again.
#[test]
fn state_is_refused_after_a_failed_call() {
    ranks(2, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let options = options(Sharing::Sharded);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options).unwrap();
        // Both have got here when rank 1 passes it; rank 0 may hear of the abort in it.
        let _ = comm.barrier().run();
        if comm.rank() == 1 {
            comm.abort("a test");
        }
        let error = training.step(comm, &mut own).unwrap_err();
        assert!(
            matches!(error.fault(), Some(Fault::Aborted { .. })),
            "{error}"
        );
        let again = comm.recover().unwrap();
        let error = training.ready(&again, 0, &[1.0_f32; LENS[0]]).unwrap_err();
        assert!(matches!(error, Error::Stale { step: 1 }), "{error}");
        let error = training.set_steps(7).unwrap_err();
        assert!(matches!(error, Error::Stale { step: 1 }), "{error}");
        assert_eq!(training.steps(), 0, "a step that has failed is not done");
        let folder = tempfile::tempdir().unwrap();
        let error = training
            .save(&again, &Checkpoints::new(folder.path()), None)
            .unwrap_err();
        let expected = "rank 0 (";
        assert!(matches!(error, Error::Checkpoint(_)), "{error}");
        let error = error.to_string();
        assert!(
            error.contains(expected) && error.contains("step 1 has failed"),
            "{error}"
        );
        again.finalize().unwrap();
    });
}

#[test]
fn a_parameter_that_a_rank_cannot_write_ends_the_step_of_all() {
    for sharing in [Sharing::Replicated, Sharing::Sharded] {
        let results = ranks(3, |comm| {
            let mut own = Broken::not(parameters());
            let optimizer = AdamW::new(0.05);
            let mut training =
                DataParallel::new(comm, &mut own, optimizer, options(sharing)).unwrap();
            own.frozen = (comm.rank() == 1).then_some(2);
            let outcome = training.step(comm, &mut own);
            assert_eq!(training.steps(), 0);
            let error = training.ready(comm, 0, &[1.0_f32; LENS[0]]).unwrap_err();
            assert!(matches!(error, Error::Stale { step: 1 }), "{error}");
            outcome
        });
        assert!(matches!(&results[0], Err(Error::Unable(it)) if it.rank == 1));
        let text = error_of_all(&results);
        let expected = "tensor \"tensor 2\": could not be written: it is frozen";
        assert!(text.contains(expected), "{text}");
    }
}

/// A framework that is slow to write its first tensor, the last one in a step, if this is set.
struct Slow(Vec<HostTensor>, bool);

impl Parameters for Slow {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.0.tensors()
    }

    fn read(&self, tensor: usize, bytes: &mut [u8]) -> Result<(), Problem> {
        self.0.read(tensor, bytes)
    }

    fn write(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Problem> {
        if self.1 && tensor == 0 {
            std::thread::sleep(Duration::from_millis(40));
        }
        self.0.write(tensor, bytes)
    }
}

/// On a busy machine, rank 0 may be late, too, but not in each of the steps.
#[test]
fn the_wait_for_a_rank_that_writes_parameters_is_exposed() {
    let exposed = ranks(2, |comm| {
        let mut own = Slow(parameters(), false);
        let options = options(Sharing::Replicated);
        let mut training = DataParallel::new(comm, &mut own, AdamW::new(0.05), options).unwrap();
        own.1 = comm.rank() == 1;
        let steps = (0..10).map(|_| training.step(comm, &mut own).unwrap().times.exposed);
        steps.max().unwrap()
    });
    assert!(exposed[0] >= Duration::from_millis(20), "{exposed:?}");
}

/// A framework that panics instead of writing.
struct Panics(Vec<HostTensor>);

impl Parameters for Panics {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.0.tensors()
    }

    fn read(&self, tensor: usize, bytes: &mut [u8]) -> Result<(), Problem> {
        self.0.read(tensor, bytes)
    }

    fn write(&mut self, _tensor: usize, _bytes: &[u8]) -> Result<(), Problem> {
        panic!("a test")
    }
}

#[test]
fn state_is_refused_after_a_panic_of_the_framework() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let options = options(Sharing::Replicated);
    let mut working = parameters();
    let mut training = DataParallel::new(&comm, &mut working, AdamW::new(0.1), options).unwrap();
    let step = std::panic::AssertUnwindSafe(|| training.step(&comm, &mut Panics(parameters())));
    std::panic::catch_unwind(step).unwrap_err();
    let error = training.set_steps(1).unwrap_err();
    assert!(matches!(error, Error::Stale { step: 1 }), "{error}");
    assert_eq!(training.steps(), 0);
}

#[test]
fn a_number_of_steps_that_no_run_reaches_is_refused() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let options = options(Sharing::Replicated);
    let mut own = parameters();
    let mut training = DataParallel::new(&comm, &mut own, AdamW::new(0.1), options).unwrap();
    let error = training.set_steps(u64::MAX).unwrap_err().to_string();
    assert!(error.contains("18446744073709551615 steps"), "{error}");
    training.step(&comm, &mut own).unwrap();
    assert_eq!(training.steps(), 1);
}

#[test]
fn parameters_that_f32_cannot_hold_are_refused() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut own = vec![HostTensor::new("x", &[1], Values::F64(vec![0.5])).unwrap()];
    let outcome = DataParallel::new(&comm, &mut own, AdamW::new(0.1), Options::default());
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("\"x\" is {}", DType::F64)),
        "{error}"
    );
}
