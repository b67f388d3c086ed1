//! Gradients in buckets: the same results as calls without buckets, and errors that name ranks and
//! tensors.

use std::process::Command;

use proptest::prelude::*;
use rustix::process::{Resource, getrlimit, setrlimit};
use spark_ccl::{Communicator, DType, RedOp, bf16};
use spark_ccl_training::{Buckets, Error, Model, Options, Reduce, StepReport, TensorInfo};

use crate::ranks::{error_of_all, numbers, ranks};

/// A model of vectors of these lengths.
fn model(tensors: &[(usize, DType)]) -> Model {
    let infos = tensors.iter().enumerate();
    let infos = infos
        .map(|(number, &(len, dtype))| TensorInfo::new(format!("tensor {number}"), dtype, &[len]));
    Model::new(infos.collect()).unwrap()
}

fn of_f32(lens: &[usize]) -> Model {
    let tensors: Vec<_> = lens.iter().map(|&len| (len, DType::F32)).collect();
    model(&tensors)
}

/// The gradient of a tensor on a rank, in a step or micro-batch.
fn gradient(rank: usize, tensor: usize, step: usize, len: usize) -> Vec<f32> {
    numbers(len, (rank * 10_000 + tensor * 100 + step) as u64)
}

/// The sums of all ranks' gradients, by one call over all tensors.
fn by_one_call(comm: &Communicator, lens: &[usize], step: usize) -> Vec<f32> {
    let tensors = lens.iter().enumerate();
    let own = tensors.flat_map(|(tensor, &len)| gradient(comm.rank(), tensor, step, len));
    let mut all: Vec<_> = own.collect();
    comm.all_reduce_in_place(&mut all, RedOp::Sum)
        .run()
        .unwrap();
    all
}

fn result(buckets: &Buckets, tensor: usize) -> Vec<f32> {
    let mut values = vec![0.0; buckets.model().tensors()[tensor].len()];
    buckets.copy(tensor, &mut values).unwrap();
    values
}

fn options(bucket_bytes: usize) -> Options {
    Options {
        bucket_bytes,
        reduce: Reduce::Sum,
        ..Options::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn buckets_give_the_sums_of_one_all_reduce(
        lens in prop::collection::vec(0_usize..50, 1..12),
        bucket_bytes in 0_usize..400, size in 1_usize..4, order: u64,
    ) {
        let model = of_f32(&lens);
        ranks(size, |comm| {
            let mut buckets = Buckets::new(comm, &model, options(bucket_bytes)).unwrap();
            for step in 0..3 {
                let mut tensors: Vec<_> = (0..lens.len()).collect();
                // Ranks may have different orders.
                let seed = order.rotate_left((comm.rank() * 7 + step) as u32) | 1;
                tensors.sort_by_key(|it| (*it as u64 + 1).wrapping_mul(seed));
                for tensor in tensors {
                    let own = gradient(comm.rank(), tensor, step, lens[tensor]);
                    buckets.ready(comm, tensor, &own).unwrap();
                }
                let report = buckets.finish(comm).unwrap();
                assert_eq!((report.step, report.absent.len()), (step as u64 + 1, 0));
                let results = (0..lens.len()).flat_map(|tensor| result(&buckets, tensor));
                assert_eq!(results.collect::<Vec<_>>(), by_one_call(comm, &lens, step));
            }
        });
    }
}

#[test]
fn the_order_of_the_first_step_fills_the_next_buckets() {
    let model = of_f32(&[4, 4, 4, 4]);
    ranks(2, |comm| {
        let mut buckets = Buckets::new(comm, &model, options(32)).unwrap();
        let order = |buckets: &Buckets| -> Vec<usize> {
            let parts = buckets.plan().buckets().iter().flat_map(|it| &it.parts);
            parts.map(|part| part.tensor).collect()
        };
        assert_eq!(order(&buckets), [3, 2, 1, 0]);
        for _ in 0..2 {
            for tensor in [1, 3, 0, 2] {
                buckets.ready(comm, tensor, &[1.0_f32; 4]).unwrap();
            }
            buckets.finish(comm).unwrap();
        }
        assert_eq!(order(&buckets), [1, 3, 0, 2]);
        assert_eq!(result(&buckets, 2), [2.0; 4]);
    });
}

/// This test again, in a process of its own, which can then open no more files. So it cannot make
/// memory that ranks share, either.
#[test]
fn without_memory_for_other_buckets_the_first_ones_stay() {
    const LIMITED: &str = "TEST_OF_TRAINING_WITHOUT_MEMORY";
    if std::env::var_os(LIMITED).is_some() {
        return without_memory();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "buckets::without_memory_for_other_buckets_the_first_ones_stay";
    command.args(["--exact", name, "--nocapture"]);
    command.envs([(LIMITED, "1"), ("SPARK_CCL_TIMEOUT", "60")]);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_ok = output.status.success() && printed.contains("1 passed");
    assert!(
        is_ok,
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn without_memory() {
    let model = of_f32(&[4, 4, 4]);
    ranks(2, |comm| {
        let mut buckets = Buckets::new(comm, &model, options(16)).unwrap();
        let first = buckets.plan().clone();
        for step in 1..4 {
            for tensor in [1, 2, 0] {
                buckets.ready(comm, tensor, &[1.0_f32; 4]).unwrap();
            }
            if step == 1 {
                // Both have made their first buckets.
                comm.barrier().run().unwrap();
                let mut limit = getrlimit(Resource::Nofile);
                limit.current = Some(0);
                setrlimit(Resource::Nofile, limit).unwrap();
                let error = comm.alloc::<f32>(1).unwrap_err();
                assert!(matches!(error, spark_ccl::Error::Memory { .. }), "{error}");
            }
            assert_eq!(buckets.finish(comm).unwrap().step, step);
            assert_eq!(result(&buckets, 2), [2.0; 4]);
        }
        assert_eq!(*buckets.plan(), first);
    });
}

#[test]
fn types_have_buckets_of_their_own() {
    let model = model(&[
        (3, DType::F32),
        (2, DType::F64),
        (4, DType::Bf16),
        (1, DType::F32),
    ]);
    for in_f32 in [false, true] {
        ranks(2, |comm| {
            let options = Options {
                in_f32,
                ..Options::default()
            };
            let mut buckets = Buckets::new(comm, &model, options).unwrap();
            assert_eq!(buckets.plan().buckets().len(), if in_f32 { 2 } else { 3 });
            let own = 1.0 + comm.rank() as f32;
            buckets.ready(comm, 2, &[bf16::from_f32(own); 4]).unwrap();
            buckets.ready(comm, 1, &[f64::from(own) / 3.0; 2]).unwrap();
            buckets.ready(comm, 0, &[own; 3]).unwrap();
            buckets.ready(comm, 3, &[own * 8.0]).unwrap();
            buckets.finish(comm).unwrap();
            let (mut wide, mut narrow) = ([0.0_f64; 2], [bf16::ZERO; 4]);
            buckets.copy(1, &mut wide).unwrap();
            buckets.copy(2, &mut narrow).unwrap();
            assert!(wide.iter().all(|it| (it - 0.5).abs() < 1e-15), "{wide:?}");
            assert_eq!(narrow, [bf16::from_f32(1.5); 4]);
            assert_eq!(
                (result(&buckets, 0), result(&buckets, 3)),
                (vec![1.5; 3], vec![12.0])
            );
        });
    }
}

/// 256 + 1 + 1 is 256 in bf16, if each sum is rounded.
#[test]
fn sums_in_f32_are_rounded_once() {
    let model = model(&[(1, DType::Bf16)]);
    for (in_f32, expected) in [(false, 512.0), (true, 516.0)] {
        ranks(2, |comm| {
            let options = Options {
                in_f32,
                ..options(64)
            };
            let mut buckets = Buckets::new(comm, &model, options).unwrap();
            buckets.accumulate(0, &[bf16::from_f32(256.0)]).unwrap();
            buckets.accumulate(0, &[bf16::ONE]).unwrap();
            buckets.ready(comm, 0, &[bf16::ONE]).unwrap();
            buckets.finish(comm).unwrap();
            let mut sum = [bf16::ZERO];
            buckets.copy(0, &mut sum).unwrap();
            assert_eq!(sum, [bf16::from_f32(expected)]);
        });
    }
}

#[test]
fn micro_batches_accumulate_without_sync() {
    let model = of_f32(&[5]);
    ranks(2, |comm| {
        let mut buckets = Buckets::new(comm, &model, options(8)).unwrap();
        for step in 0..2 {
            if comm.rank() == 0 {
                // If these were calls between ranks, rank 1 would have to take part.
                for micro in 0..3 {
                    let own = gradient(0, 0, step * 10 + micro, 5);
                    buckets.accumulate(0, &own).unwrap();
                }
                comm.barrier().run().unwrap();
            } else {
                comm.barrier().run().unwrap();
            }
            buckets
                .ready(comm, 0, &gradient(comm.rank(), 0, step * 10 + 3, 5))
                .unwrap();
            buckets.finish(comm).unwrap();
            let mut expected = gradient(1, 0, step * 10 + 3, 5);
            for micro in 0..4 {
                let own = gradient(0, 0, step * 10 + micro, 5);
                expected
                    .iter_mut()
                    .zip(own)
                    .for_each(|(sum, it)| *sum += it);
            }
            assert_eq!(result(&buckets, 0), expected);
        }
    });
}

#[test]
fn gradients_that_ranks_lack_are_zeros_and_named() {
    let model = of_f32(&[2, 2, 2]);
    ranks(3, |comm| {
        let mut buckets = Buckets::new(comm, &model, options(16)).unwrap();
        for step in 0..3 {
            // Values of the last step must not count again.
            for tensor in [2, 1, 0] {
                let lacks = tensor == 1 && comm.rank() != 1 || tensor == 2 && step == 1;
                if !lacks {
                    buckets.ready(comm, tensor, &[1.0_f32; 2]).unwrap();
                }
            }
            let report = buckets.finish(comm).unwrap();
            let absent = report.absent.iter();
            let absent: Vec<_> = absent.map(|it| (&*it.name, &it.ranks[..])).collect();
            assert_eq!(absent[0], ("tensor 1", &[0, 2][..]));
            assert_eq!(
                absent.get(1),
                (step == 1).then_some(&("tensor 2", &[0, 1, 2][..]))
            );
            assert_eq!(result(&buckets, 1), [1.0; 2]);
            assert_eq!(result(&buckets, 2), [if step == 1 { 0.0 } else { 3.0 }; 2]);
        }
    });
}

#[test]
fn a_gradient_that_is_not_finite_is_named_and_the_next_step_begins() {
    let model = of_f32(&[2, 3]);
    let find = Options {
        find_non_finite: true,
        ..options(8)
    };
    let results = ranks(3, |comm| {
        let mut buckets = Buckets::new(comm, &model, find.clone()).unwrap();
        let mut own = [1.0_f32; 3];
        own[2] = if comm.rank() == 1 { f32::NAN } else { 1.0 };
        buckets.ready(comm, 1, &own).unwrap();
        buckets.ready(comm, 0, &[1.0_f32; 2]).unwrap();
        let outcome = buckets.finish(comm);
        buckets.ready(comm, 1, &[1.0_f32; 3]).unwrap();
        buckets.ready(comm, 0, &[1.0_f32; 2]).unwrap();
        assert_eq!(buckets.finish(comm).unwrap().step, 2);
        assert_eq!(result(&buckets, 1), [3.0; 3]);
        outcome
    });
    assert!(matches!(&results[0], Err(Error::NotFinite(it)) if it.rank == 1));
    let text = error_of_all(&results);
    assert!(
        text.contains("rank 1") && text.contains("tensor \"tensor 1\": element 2"),
        "{text}"
    );
}

/// Two ranks: what the second one does differently.
fn two(second: impl Fn(&Communicator, &mut Buckets) + Sync) -> Vec<Result<StepReport, Error>> {
    let model = of_f32(&[2]);
    ranks(2, |comm| {
        let mut buckets = Buckets::new(comm, &model, options(8))?;
        if comm.rank() == 1 {
            second(comm, &mut buckets);
        }
        buckets.ready(comm, 0, &[1.0_f32; 2])?;
        let outcome = buckets.finish(comm);
        if matches!(outcome, Err(Error::Step(_))) {
            let stale = buckets.accumulate(0, &[1.0_f32; 2]).unwrap_err();
            assert!(matches!(stale, Error::Stale { .. }), "{stale}");
        }
        outcome
    })
}

#[test]
fn a_rank_that_skips_a_step_is_named() {
    let results = two(|_, buckets| buckets.set_steps(7).unwrap());
    assert!(matches!(&results[0], Err(Error::Step(it)) if it.rank == 1));
    let text = error_of_all(&results);
    assert!(
        text.contains("rank 1") && text.contains("step 8, but expected 1"),
        "{text}"
    );
}

#[test]
fn another_model_is_named_by_rank_and_tensor() {
    let results = ranks(3, |comm| {
        let lens = if comm.rank() == 2 { [4, 6] } else { [4, 5] };
        Buckets::new(comm, &of_f32(&lens), Options::default()).map(drop)
    });
    assert!(matches!(&results[1], Err(Error::Model(it)) if it.rank == 2));
    let text = error_of_all(&results);
    let expected = "tensor \"tensor 1\": has shape [6], but [5] on rank 0";
    assert!(text.contains("rank 2") && text.contains(expected), "{text}");
}

#[test]
fn wrong_gradients_are_refused() {
    let model = model(&[(2, DType::F32), (2, DType::Bf16)]);
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buckets = Buckets::new(&comm, &model, Options::default()).unwrap();
    let mut refused = |tensor, gradient: &[f32], expected: &str| {
        let error = buckets
            .ready(&comm, tensor, gradient)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(2, &[1.0], "tensor 2 of a model with 2");
    refused(0, &[1.0], "\"tensor 0\" has 2 elements, its gradient 1");
    refused(1, &[1.0; 2], "\"tensor 1\" is bfloat16, its gradient float");
    buckets.ready(&comm, 0, &[1.0_f32; 2]).unwrap();
    let error = buckets
        .accumulate(0, &[1.0_f32; 2])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"tensor 0\" was ready before in step 1"),
        "{error}"
    );
    assert!(
        buckets.copy(0, &mut [0.0_f32; 2]).is_err(),
        "the step is not finished"
    );
    // What was refused has changed nothing.
    buckets.finish(&comm).unwrap();
    assert_eq!(result(&buckets, 0), [1.0; 2]);
    let integers = Model::new(vec![TensorInfo::new("steps", DType::I64, &[1])]).unwrap();
    let error = Buckets::new(&comm, &integers, Options::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("int64"), "{error}");
}

#[test]
fn another_world_is_refused() {
    let model = of_f32(&[2]);
    let alone = Communicator::local(1).unwrap().remove(0);
    ranks(2, |comm| {
        let mut buckets = Buckets::new(comm, &model, Options::default()).unwrap();
        let error = buckets.ready(&alone, 0, &[1.0_f32; 2]).unwrap_err();
        assert!(
            matches!(
                error,
                Error::World {
                    size: 2,
                    seen_size: 1,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("the last checkpoint"), "{error}");
    });
}

#[test]
fn an_accumulated_gradient_is_not_absent() {
    let model = of_f32(&[2, 3]);
    let results = ranks(2, |comm| {
        let mut buckets = Buckets::new(comm, &model, Options::default()).unwrap();
        buckets.ready(comm, 0, &[1.0_f32; 2]).unwrap();
        if comm.rank() == 0 {
            buckets.accumulate(1, &[4.0_f32; 3]).unwrap();
        }
        let report = buckets.finish(comm).unwrap();
        (report.absent, result(&buckets, 1))
    });
    for (absent, mean) in results {
        assert_eq!((absent.len(), &*absent[0].name), (1, "tensor 1"));
        assert_eq!(absent[0].ranks, [1]);
        assert_eq!(mean, [2.0; 3]);
    }
}
