//! A Llama learns on several ranks. Each has the whole model and its share of the sequences.
//! Gradients become means over the ranks as backward makes them, on GPUs in candle's stream.
//!
//! `cargo run --example train -- --ranks 4` starts four ranks on this host. Under a launcher each
//! process is a rank. With the feature `cuda`, ranks take the GPUs of a host in turn, or all
//! `--device 0`. The losses are those of one rank (`--ranks 1`).

#[path = "shared/counting.rs"]
mod counting;
#[path = "shared/gpu.rs"]
mod gpu;
#[path = "shared/ranks.rs"]
mod ranks;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarMap, loss};
use ranks::{Failure, number};
use spark_ccl_candle::llama::{Config, Llama};
use spark_ccl_candle::variables::{Trainable, check_alike, in_order, start_alike};
use spark_ccl_candle::{Files, Form, Group, Hook};

/// Sequences in a step, of all ranks together.
const SEQUENCES: usize = 8;

fn main() -> Result<(), Failure> {
    ranks::run(gpu::device, train)
}

/// Means of gradients, by the name of their parameter.
type Means = Arc<Mutex<HashMap<String, Tensor>>>;

fn train(group: &Group, device: &Device) -> Result<(), Failure> {
    let model = ranks::model()?;
    let config = Config::of_folder(&model.folder)?;
    let means = Means::default();
    let hooked = Group::alone()?.hooked(averaging(group, &means));
    let variables = VarMap::new();
    let files = Files::of_folder(&model.folder)?;
    let weights = Trainable::builder(files, &variables, DType::F32, device);
    let llama = Llama::load(&hooked, Form::Whole, &config, &weights)?;
    start_alike(group, &variables)?;
    let all = in_order(&variables)?;
    let settings = ParamsAdamW {
        lr: 0.002,
        // Small gradients would make steps of their rounding errors.
        eps: 1e-4,
        ..ParamsAdamW::default()
    };
    let own = all.iter().map(|(_, var)| var.clone());
    let mut optimizer = AdamW::new(own.collect(), settings)?;
    let share = group.share("the batch", SEQUENCES, "sequences")?;
    let (tokens, following) = counting::sequences(share, config.vocab_size, device)?;
    for step in 0..number("--steps", 8)? {
        let (begin, before) = (Instant::now(), group.spent());
        let logits = llama.forward(&tokens, &mut llama.cache())?;
        let loss = loss::cross_entropy(&logits.flatten_to(1)?, &following.flatten_all()?)?;
        let mut gradients = loss.backward()?;
        let means = std::mem::take(&mut *means.lock().map_err(|_| "a hook panicked")?);
        for (name, var) in &all {
            let mean = means.get(name).ok_or("a parameter has no gradient")?;
            gradients.insert(var, mean.clone());
        }
        optimizer.step(&gradients)?;
        let sum = group.all_reduce(&loss.reshape(1)?, "loss")?;
        let loss = sum.to_vec1::<f32>()?[0] / group.size() as f32;
        if group.rank() == 0 {
            let calls = group.spent().time.saturating_sub(before.time);
            counting::show(step, loss, SEQUENCES, begin.elapsed(), calls);
        }
    }
    check_alike(group, &variables)?;
    Ok(group.communicator().finalize()?)
}

/// A hook that makes each gradient the mean over the ranks.
fn averaging(group: &Group, means: &Means) -> Hook {
    let (group, means) = (group.clone(), Arc::clone(means));
    Hook::new(move |name, gradient| {
        let sum = group.all_reduce(&gradient.detach().contiguous()?, name)?;
        let mean = (sum / group.size() as f64)?;
        let mut means = means
            .lock()
            .map_err(|_| candle_core::Error::Msg("poisoned".to_owned()))?;
        means.insert(name.to_owned(), mean);
        Ok(())
    })
}
