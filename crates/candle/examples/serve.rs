//! A Llama that is divided among ranks, so that each has a part of its memory: tokens, one after
//! the other, the most likely one each time.
//!
//! `cargo run --example serve -- --ranks 4` starts four ranks on this host, with a small model that
//! it makes. Under a launcher each process is a rank. `--model FOLDER` takes a folder of Hugging
//! Face's (config.json and *.safetensors), `--prompt 1,2,3` the tokens to begin with, `--tokens 32`
//! how many are to follow. With the feature `cuda`, ranks take the GPUs of a host in turn, or all
//! `--device 0`. With `--check`, rank 0 also loads the whole model, and compares.

#[path = "shared/gpu.rs"]
mod gpu;
#[path = "shared/ranks.rs"]
mod ranks;

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use ranks::{Failure, number, text};
use spark_ccl_candle::llama::{Cache, Config, Llama};
use spark_ccl_candle::{Files, Form, Group, Spent};

/// Tokens between two lines of progress.
const EVERY: usize = 8;

/// Logits may differ by this, since sums are in another order.
const CLOSE: f32 = 1e-4;

fn main() -> Result<(), Failure> {
    ranks::run(gpu::device, serve)
}

fn serve(group: &Group, device: &Device) -> Result<(), Failure> {
    let model = ranks::model()?;
    let config = Config::of_folder(&model.folder)?;
    let load = |group: &Group| {
        let weights = Files::of_folder(&model.folder)?.builder(DType::F32, device);
        Ok::<_, Failure>(Llama::load(group, Form::Whole, &config, &weights)?)
    };
    let llama = load(group)?;
    let prompt = prompt()?;
    let mut cache = llama.cache();
    let run = Run::new(group, &llama, &mut cache, &prompt, number("--tokens", 32)?)?;
    report(group, &run, llama.bytes(), cache.bytes());
    // Before the check: the others are not to wait for it.
    group.communicator().finalize()?;
    if group.rank() == 0 && std::env::args().any(|it| it == "--check") {
        let largest = run.check(&load(&Group::alone()?)?, &prompt)?;
        println!("one rank alone: logits differ by {largest:.1e} at most, and tokens are the same");
    }
    Ok(())
}

/// The tokens to begin with.
fn prompt() -> Result<Vec<u32>, Failure> {
    let text = text("--prompt")?.unwrap_or_else(|| "1,15,4,273,99".to_owned());
    let tokens = text.split(',').map(|it| it.trim().parse());
    tokens
        .collect::<Result<_, _>>()
        .map_err(|_| format!("--prompt {text}: not tokens").into())
}

/// Tokens that a model has given.
struct Run {
    tokens: Vec<u32>,
    /// The logits of each token, before it was chosen.
    logits: Vec<Vec<f32>>,
    /// The time of all tokens but the first, which takes the whole prompt.
    time: Duration,
    spent: Spent,
}

impl Run {
    fn new(
        group: &Group,
        llama: &Llama,
        cache: &mut Cache,
        prompt: &[u32],
        count: usize,
    ) -> Result<Self, Failure> {
        let mut run = Self {
            tokens: Vec::new(),
            logits: Vec::new(),
            time: Duration::ZERO,
            spent: Spent::default(),
        };
        let (mut begin, mut before) = (Instant::now(), group.spent());
        for at in 0..count {
            let logits = match run.tokens.last() {
                None => next(llama, cache, prompt)?,
                Some(&last) => next(llama, cache, &[last])?,
            };
            run.tokens.push(most_likely(&logits).0);
            run.logits.push(logits);
            if at == 0 {
                (begin, before) = (Instant::now(), group.spent());
                continue;
            }
            run.time = begin.elapsed();
            run.spent = difference(group.spent(), before);
            if group.rank() == 0 && at.is_multiple_of(EVERY) {
                let (seconds, calls) = (run.time.as_secs_f64(), run.spent.time.as_secs_f64());
                let (speed, share) = (at as f64 / seconds, calls / seconds * 100.0);
                println!("after {at} tokens: {speed:.1} tokens/s, {share:.1} % in calls");
            }
        }
        Ok(run)
    }

    /// How far the logits are from those of one rank that has the whole model.
    fn check(&self, whole: &Llama, prompt: &[u32]) -> Result<f32, Failure> {
        let mut cache = whole.cache();
        let mut input = prompt.to_vec();
        let mut largest = 0.0_f32;
        for (at, (&token, logits)) in self.tokens.iter().zip(&self.logits).enumerate() {
            let alone = next(whole, &mut cache, &input)?;
            let differences = alone
                .iter()
                .zip(logits)
                .map(|(one, other)| (one - other).abs());
            for difference in differences {
                if difference > CLOSE || difference.is_nan() {
                    return Err(format!("token {at}: logits differ by {difference}").into());
                }
                largest = largest.max(difference);
            }
            let (likely, ahead) = most_likely(&alone);
            if likely != token && ahead > 2.0 * CLOSE {
                return Err(format!("token {at} is {token}, and one rank gives {likely}").into());
            }
            input = vec![token];
        }
        Ok(largest)
    }
}

/// What was spent between two moments.
fn difference(after: Spent, before: Spent) -> Spent {
    Spent {
        calls: after.calls - before.calls,
        bytes: after.bytes - before.bytes,
        time: after.time.saturating_sub(before.time),
    }
}

/// The logits of the token after these.
fn next(llama: &Llama, cache: &mut Cache, tokens: &[u32]) -> Result<Vec<f32>, Failure> {
    let input = Tensor::new(tokens, llama.device())?.unsqueeze(0)?;
    let logits = llama.forward(&input, cache)?;
    let last = logits.narrow(1, tokens.len() - 1, 1)?.flatten_all()?;
    Ok(last.to_dtype(DType::F32)?.to_vec1()?)
}

/// The token with the largest logit, and how far it is ahead of the next one.
fn most_likely(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    let mut second = f32::NEG_INFINITY;
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            second = best.1;
            best = (token, logit);
        } else {
            second = second.max(logit);
        }
    }
    (best.0, best.1 - second)
}

fn report(group: &Group, run: &Run, weights: usize, cache: usize) {
    let (rank, size) = (group.rank(), group.size());
    println!("rank {rank} of {size}: {weights} bytes of weights, {cache} of keys and values");
    if rank != 0 {
        return;
    }
    let tokens = run.tokens.len().saturating_sub(1).max(1) as f64;
    let each = |time: Duration| time.as_secs_f64() * 1e3 / tokens;
    println!("tokens: {:?}", run.tokens);
    println!(
        "{:.3} ms per token, {:.3} ms of it in {:.0} calls with {:.0} bytes",
        each(run.time),
        each(run.spent.time),
        run.spent.calls as f64 / tokens,
        run.spent.bytes as f64 / tokens
    );
}
