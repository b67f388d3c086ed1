//! The tests of this crate. Ranks are threads, but those of the examples, which are processes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::float_cmp)]

mod examples;
mod files;
mod hooks;
mod llama;
mod mistral;
mod ops;
mod refused;
mod variables;
mod versions;

use candle_core::{Result, Tensor};
use spark_ccl::Communicator;
use spark_ccl_candle::Group;

/// What each rank of a group returns.
fn ranks<R: Send>(size: usize, rank: impl Fn(&Group) -> Result<R> + Sync) -> Vec<R> {
    outcomes(size, rank)
        .into_iter()
        .map(|it| it.unwrap())
        .collect()
}

/// The error of each rank.
fn errors<R: Send>(size: usize, rank: impl Fn(&Group) -> Result<R> + Sync) -> Vec<String> {
    let texts = outcomes(size, rank).into_iter().map(|it| match it {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.to_string(),
    });
    texts.collect()
}

fn outcomes<R: Send>(size: usize, rank: impl Fn(&Group) -> Result<R> + Sync) -> Vec<Result<R>> {
    let comms = Communicator::local(size).unwrap();
    std::thread::scope(|scope| {
        let threads = comms.into_iter().map(|comm| {
            let rank = &rank;
            scope.spawn(move || {
                let group = Group::new(comm);
                let result = rank(&group)?;
                group
                    .communicator()
                    .finalize()
                    .map_err(candle_core::Error::wrap)?;
                Ok(result)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// The largest difference of two tensors.
fn apart(one: &Tensor, other: &Tensor) -> f32 {
    assert_eq!(one.dims(), other.dims());
    let numbers = |it: &Tensor| {
        it.to_dtype(candle_core::DType::F32)?
            .flatten_all()?
            .to_vec1()
    };
    let (one, other): (Vec<f32>, Vec<f32>) = (numbers(one).unwrap(), numbers(other).unwrap());
    let differences = one
        .iter()
        .zip(&other)
        .map(|(one, other)| (one - other).abs());
    // Not a number is as far as can be.
    differences.fold(0.0, |most, it| {
        if it <= most {
            most
        } else if it.is_nan() {
            f32::MAX
        } else {
            it
        }
    })
}

/// Numbers that look random, from -1 to 1.
fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let number =
        |at: usize| ((at * 7919 + seed * 104_729 + at * at * 31) % 2003) as f32 / 1001.0 - 1.0;
    let values: Vec<f32> = (0..count).map(number).collect();
    Tensor::from_vec(values, shape, &candle_core::Device::Cpu).unwrap()
}
