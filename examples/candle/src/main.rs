//! Data-parallel training with candle: each rank has examples of its own, and all step with the
//! mean of their gradients.
//!
//! `cargo run --manifest-path examples/candle/Cargo.toml` trains two ranks, as threads; under a
//! launcher, each process is a rank.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss};
use spark_ccl::{Communicator, Failed, RedOp};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const STEPS: usize = 200;
const EXAMPLES: usize = 64;
/// Gradients of several parameters go in one call, of about this many elements.
const BUCKET: usize = 64;

fn main() -> Result<()> {
    if spark_ccl::launcher()?.is_some() {
        return train(&Communicator::from_env()?);
    }
    let ranks = Communicator::local(2)?.into_iter();
    let threads: Vec<_> = ranks
        .map(|comm| std::thread::spawn(move || train(&comm)))
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a rank panicked")??;
    }
    Ok(())
}

fn train(comm: &Communicator) -> Result<()> {
    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let model = Model::new(builder)?;
    let buckets = buckets(by_name(&variables)?);
    start_alike(comm, &buckets)?;
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 0.02)?;
    let (inputs, targets) = examples(comm.rank())?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let loss = loss::mse(&model.forward(&inputs)?, &targets)?;
        let mut gradients = loss.backward()?;
        average(comm, &buckets, &mut gradients)?;
        optimizer.step(&gradients)?;
        losses.push(mean(comm, loss.to_scalar()?)?);
    }
    check_alike(comm, &buckets)?;
    let (first, last) = (losses[0], losses[STEPS - 1]);
    // Not so if it is no number.
    let fell = last < first / 10.0;
    if !fell {
        return Err(format!("the loss did not fall: {first}, then {last}").into());
    }
    let (rank, size) = (comm.rank(), comm.size());
    println!(
        "rank {rank} of {size}: the loss fell from {first:.4} to {last:.4}, and all parameters are \
         alike"
    );
    Ok(comm.finalize()?)
}

/// Two layers.
struct Model {
    hidden: Linear,
    output: Linear,
}

impl Model {
    fn new(builder: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            hidden: linear(2, 32, builder.pp("hidden"))?,
            output: linear(32, 1, builder.pp("output"))?,
        })
    }

    fn forward(&self, inputs: &Tensor) -> candle_core::Result<Tensor> {
        self.output.forward(&self.hidden.forward(inputs)?.tanh()?)
    }
}

/// A parameter and its name.
type Parameter = (String, Var);

/// The parameters in the order of their names. A `VarMap` is a hash map: its own order, also that
/// of `all_vars`, is another one in each process, and ranks that took it would average gradients of
/// different parameters.
fn by_name(variables: &VarMap) -> Result<Vec<Parameter>> {
    let variables = variables.data().lock().map_err(|_| "a thread panicked")?;
    let mut sorted: Vec<_> = variables
        .iter()
        .map(|(name, var)| (name.clone(), var.clone()))
        .collect();
    sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(sorted)
}

/// The parameters in groups, alike on all ranks, since names and shapes are.
fn buckets(parameters: Vec<Parameter>) -> Vec<Vec<Parameter>> {
    let mut buckets = Vec::new();
    let mut last = Vec::new();
    for parameter in parameters {
        last.push(parameter);
        let len: usize = last
            .iter()
            .map(|(_, var): &Parameter| var.elem_count())
            .sum();
        if len >= BUCKET {
            buckets.push(std::mem::take(&mut last));
        }
    }
    buckets.extend((!last.is_empty()).then_some(last));
    buckets
}

/// Replaces the gradients by their means over the ranks. All calls are under way before the first
/// is waited for. Each has the name of a parameter: ranks that are not in the same call get an
/// error that names both, instead of wrong gradients.
fn average(
    comm: &Communicator,
    buckets: &[Vec<Parameter>],
    gradients: &mut GradStore,
) -> Result<()> {
    let mut under_way = Vec::new();
    for bucket in buckets {
        let mut values = Vec::new();
        for (_, var) in bucket {
            // Where this rank's examples did not use it, it takes part all the same.
            let gradient = gradients.get(var).cloned();
            let gradient = gradient.map_or_else(|| var.zeros_like(), Ok)?;
            values.extend(gradient.flatten_all()?.to_vec1::<f32>()?);
        }
        let call = comm
            .all_reduce_in_place(values, RedOp::Avg)
            .named(&bucket[0].0);
        under_way.push(call.start().map_err(|Failed { error, .. }| error)?);
    }
    for (bucket, pending) in buckets.iter().zip(under_way) {
        let means = pending.wait()?;
        let mut rest = &means[..];
        for (_, var) in bucket {
            let (own, others) = rest.split_at(var.elem_count());
            gradients.insert(var, Tensor::from_slice(own, var.shape(), var.device())?);
            rest = others;
        }
    }
    Ok(())
}

/// Gives all ranks the parameters of rank 0: each has drawn its own.
fn start_alike(comm: &Communicator, buckets: &[Vec<Parameter>]) -> Result<()> {
    for (name, var) in buckets.iter().flatten() {
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        comm.broadcast_in_place(&mut values, 0).named(name).run()?;
        var.set(&Tensor::from_slice(&values, var.shape(), var.device())?)?;
    }
    Ok(())
}

/// Compares the parameters with those of rank 0, bit by bit.
fn check_alike(comm: &Communicator, buckets: &[Vec<Parameter>]) -> Result<()> {
    for (name, var) in buckets.iter().flatten() {
        let own = var.flatten_all()?.to_vec1::<f32>()?;
        let mut first = own.clone();
        comm.broadcast_in_place(&mut first, 0).named(name).run()?;
        let bits = |values: &[f32]| {
            values
                .iter()
                .map(|value| value.to_bits())
                .collect::<Vec<_>>()
        };
        if bits(&own) != bits(&first) {
            return Err(format!("{name} of rank {} is not that of rank 0", comm.rank()).into());
        }
    }
    Ok(())
}

fn mean(comm: &Communicator, value: f32) -> Result<f32> {
    let mut mean = [value];
    comm.all_reduce_in_place(&mut mean, RedOp::Avg).run()?;
    Ok(mean[0])
}

/// A rank's examples of a product: pairs of numbers from -1 to 1, and what they multiply to.
fn examples(rank: usize) -> Result<(Tensor, Tensor)> {
    let mut state = rank as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let inputs: Vec<f32> = (0..2 * EXAMPLES).map(|_| next()).collect();
    let products: Vec<f32> = inputs.chunks(2).map(|pair| pair[0] * pair[1]).collect();
    Ok((
        Tensor::from_vec(inputs, (EXAMPLES, 2), &Device::Cpu)?,
        Tensor::from_vec(products, (EXAMPLES, 1), &Device::Cpu)?,
    ))
}
