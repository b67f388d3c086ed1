//! A Llama whose blocks are divided among ranks: rank 0 has the first ones. Each step's batch goes
//! through them in small parts, so that ranks work at the same time: activations go from rank to
//! rank, and their gradients back.
//!
//! `cargo run --example pipeline -- --ranks 4` starts four ranks on this host. Under a launcher
//! each process is a rank. The losses are those of one rank (`--ranks 1`).

#[path = "shared/counting.rs"]
mod counting;
#[path = "shared/ranks.rs"]
mod ranks;

use std::time::Instant;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, VarMap, loss};
use counting::TOKENS;
use ranks::{Failure, number};
use spark_ccl_candle::llama::{Config, Llama};
use spark_ccl_candle::variables::{Trainable, in_order};
use spark_ccl_candle::{Files, Form, Group};

/// Parts of a batch, and sequences in each.
const PARTS: usize = 4;
const SEQUENCES: usize = 2;

fn main() -> Result<(), Failure> {
    ranks::run(|_| Ok(Device::Cpu), train)
}

fn train(group: &Group, _: &Device) -> Result<(), Failure> {
    let model = ranks::model()?;
    let config = Config::of_folder(&model.folder)?;
    let blocks = group.share("the model", config.num_hidden_layers, "blocks")?;
    let variables = VarMap::new();
    let files = Files::of_folder(&model.folder)?;
    let weights = Trainable::builder(files, &variables, DType::F32, &Device::Cpu);
    // The blocks of a rank are not divided further.
    let alone = Group::alone()?;
    let stage = Stage {
        group: group.clone(),
        llama: Llama::load_blocks(&alone, Form::Whole, &config, &weights, blocks)?,
        hidden: config.hidden_size,
    };
    let own = in_order(&variables)?.into_iter().map(|(_, var)| var);
    let mut optimizer = AdamW::new_lr(own.collect(), 0.002)?;
    let part = |part| (part * SEQUENCES)..(part + 1) * SEQUENCES;
    let part = |it| counting::sequences(part(it), config.vocab_size, &Device::Cpu);
    let batch: Vec<_> = (0..PARTS).map(part).collect::<Result<_, _>>()?;
    for step in 0..number("--steps", 8)? {
        let (begin, before) = (Instant::now(), group.spent());
        let (loss, gradients) = stage.step(&batch)?;
        optimizer.step(&gradients)?;
        if let Some(loss) = loss {
            let calls = group.spent().time.saturating_sub(before.time);
            counting::show(step, loss, PARTS * SEQUENCES, begin.elapsed(), calls);
        }
    }
    Ok(group.communicator().finalize()?)
}

/// A part of a batch: tokens, and the token after each.
type Part = (Tensor, Tensor);

/// This rank's blocks.
struct Stage {
    group: Group,
    llama: Llama,
    hidden: usize,
}

impl Stage {
    /// The mean of a batch's losses, on the last rank; and the gradients of this rank's variables.
    fn step(&self, batch: &[Part]) -> Result<(Option<f32>, GradStore), Failure> {
        let mut under_way = Vec::new();
        for (tokens, _) in batch {
            under_way.push(self.forward(tokens)?);
        }
        let mut sum: Option<GradStore> = None;
        let mut total = None;
        for ((input, output), (_, following)) in under_way.into_iter().zip(batch) {
            let (loss, gradients) = self.backward(input.as_ref(), &output, following)?;
            if let Some(loss) = loss {
                *total.get_or_insert(0.0) += loss;
            }
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => sum.extend(gradients)?,
            }
        }
        Ok((total, sum.ok_or("a batch has parts")?))
    }

    /// What this rank gets for a part, if not tokens; and its output, which the next one has got.
    fn forward(&self, tokens: &Tensor) -> Result<(Option<Var>, Tensor), Failure> {
        let mut cache = self.llama.cache();
        let rank = self.group.rank();
        let input = match rank {
            0 => None,
            _ => Some(Var::from_tensor(&self.receive(rank - 1, "activations")?)?),
        };
        let output = match &input {
            None => self.llama.forward(tokens, &mut cache)?,
            Some(input) => self.llama.forward(input, &mut cache)?,
        };
        if rank + 1 < self.group.size() {
            self.group.send(&output, rank + 1, "activations")?;
        }
        Ok((input, output))
    }

    /// The loss of a part, on the last rank, and gradients; the rank before gets those of the
    /// input.
    fn backward(
        &self,
        input: Option<&Var>,
        output: &Tensor,
        following: &Tensor,
    ) -> Result<(Option<f32>, GradStore), Failure> {
        let rank = self.group.rank();
        let (loss, gradients) = if rank + 1 == self.group.size() {
            let logits = output.flatten_to(1)?;
            let loss = (loss::cross_entropy(&logits, &following.flatten_all()?)? / PARTS as f64)?;
            (Some(loss.to_scalar()?), loss.backward()?)
        } else {
            // A number with these gradients: candle begins with a number.
            let gradient = self.receive(rank + 1, "gradients")?;
            (None, (output * gradient)?.sum_all()?.backward()?)
        };
        if let Some(input) = input {
            let gradient = gradients.get(input).ok_or("the blocks use their input")?;
            self.group.send(gradient, rank - 1, "gradients")?;
        }
        Ok((loss, gradients))
    }

    fn receive(&self, from: usize, name: &str) -> Result<Tensor, Failure> {
        let shape = (SEQUENCES, TOKENS, self.hidden);
        Ok(self
            .group
            .recv(shape, DType::F32, &Device::Cpu, from, name)?)
    }
}
