//! Sequences that can be learned, and how a step of learning is shown.

use std::ops::Range;
use std::time::Duration;

use candle_core::{Device, Tensor};

use super::ranks::Failure;

/// Tokens in each sequence.
pub(crate) const TOKENS: usize = 24;

/// Some of the sequences, which count in steps of several sizes: tokens, and the token after each.
pub(crate) fn sequences(
    numbers: Range<usize>,
    vocabulary: usize,
    device: &Device,
) -> Result<(Tensor, Tensor), Failure> {
    let count = numbers.len();
    let shifted = |by: usize| {
        let token = |number: usize, at: usize| (7 * number + at * (number % 2 + 1)) % vocabulary;
        let rows = numbers
            .clone()
            .map(|number| (by..by + TOKENS).map(move |at| token(number, at)));
        let all = rows.flatten().map(|it| it as u32);
        Tensor::from_vec(all.collect(), (count, TOKENS), device)
    };
    Ok((shifted(0)?, shifted(1)?))
}

/// Prints the progress of a step: its loss, samples per second, and the share of its time in calls.
pub(crate) fn show(step: usize, loss: f32, samples: usize, time: Duration, calls: Duration) {
    let seconds = time.as_secs_f64();
    let (speed, share) = (
        samples as f64 / seconds,
        calls.as_secs_f64() / seconds * 100.0,
    );
    println!("step {step}: loss {loss:.7}, {speed:.2} samples/s, {share:.1} % in calls");
}
