//! A small transformer learns the text of this repository's documents on several ranks, without any
//! framework: `cargo run --release -p spark-ccl-training --example train`.
//!
//! By itself it starts two ranks as processes; under a launcher, each process is a rank. With a
//! folder for checkpoints, it goes on from the last one with fewer ranks if one dies, and when it
//! is started again: `... --example train -- folder=checkpoints`. The losses do not depend on the
//! number of ranks.

mod attention;
mod model;
mod ops;
mod options;
mod text;

use std::process::Command;
use std::time::{Duration, Instant};

use model::Transformer;
use options::Options;
use spark_ccl::{Communicator, RedOp, rank_variables};
use spark_ccl_training::{
    AdamW, Checkpoints, DataParallel, Error, HostTensor, LastBatch, Sampler, Sharing, compare,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Decides the first parameters and the order of samples.
const SEED: u64 = 7;

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    if spark_ccl::launcher()?.is_some() {
        return rank(Communicator::from_env()?, &options);
    }
    let id = Communicator::builder().unique_id()?;
    let mut processes = Vec::new();
    for rank in 0..options.ranks {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        command.envs(rank_variables(&id, rank, options.ranks));
        processes.push(command.spawn()?);
    }
    let mut ended = Vec::new();
    for (rank, mut process) in processes.into_iter().enumerate() {
        let status = process.wait()?;
        if !status.success() {
            ended.push(format!("rank {rank}: {status}"));
        }
    }
    if ended.is_empty() {
        Ok(())
    } else {
        Err(ended.join(", ").into())
    }
}

/// Trains to the end, with the ranks that are left.
fn rank(mut comm: Communicator, options: &Options) -> Result<()> {
    let store = options.folder.as_ref().map(Checkpoints::new);
    loop {
        let trained = train(&comm, options, store.as_ref());
        match trained.and_then(|()| Ok(comm.finalize()?)) {
            Err(error) if is_fault(&*error) => {
                eprintln!(
                    "rank {}: {error}; going on with the ranks that are left",
                    comm.rank()
                );
                comm = comm.recover()?;
            }
            outcome => return outcome,
        }
    }
}

/// Whether the communicator has failed.
fn is_fault(error: &(dyn std::error::Error + 'static)) -> bool {
    spark_ccl::Error::find(error).is_some_and(|error| error.fault().is_some())
}

/// The state at the beginning: that of the newest checkpoint, if there is one.
fn begin(
    comm: &Communicator,
    options: &Options,
    store: Option<&Checkpoints>,
    parameters: &mut Vec<HostTensor>,
    sampler: &mut Sampler,
) -> std::result::Result<DataParallel<AdamW>, Error> {
    let sharing = if options.sharded {
        Sharing::Sharded
    } else {
        Sharing::Replicated
    };
    let settings = spark_ccl_training::Options {
        sharing,
        find_non_finite: true,
        ..Default::default()
    };
    let optimizer = AdamW {
        // Small gradients would make steps of their rounding errors.
        epsilon: 1e-4,
        ..AdamW::new(3e-3)
    };
    if let Some(store) = store {
        let (optimizer, settings) = (optimizer.clone(), settings.clone());
        let sampler = Some(sampler);
        let resumed = DataParallel::resume(comm, parameters, optimizer, settings, store, sampler)?;
        if let Some(training) = resumed {
            return Ok(training);
        }
    }
    DataParallel::new(comm, parameters, optimizer, settings)
}

fn train(comm: &Communicator, options: &Options, store: Option<&Checkpoints>) -> Result<()> {
    let transformer = Transformer {
        characters: text::CHARACTERS,
        context: options.context,
        width: options.width,
        heads: 2,
        layers: options.layers,
    };
    let text = text::read(&options.text)?;
    let samples: Vec<_> = text
        .windows(options.context + 1)
        .step_by(options.context)
        .collect();
    let mut parameters = transformer.parameters(SEED)?;
    let mut sampler = Sampler::new(samples.len(), options.batch, SEED, LastBatch::Padded)?;
    let mut training = begin(comm, options, store, &mut parameters, &mut sampler)?;
    let (mut losses, mut taken, mut since) = (Vec::new(), 0, Instant::now());
    let mut exposed = Duration::ZERO;
    while training.steps() < options.steps {
        let batch = sampler.next_batch(comm);
        let own: Vec<_> = batch.indices[..batch.real]
            .iter()
            .map(|&it| samples[it])
            .collect();
        // So that the mean over ranks is the mean over all predictions of the batch.
        let predictions = (batch.total * options.context) as f32;
        let scale = batch.ranks as f32 / predictions;
        let ready = |tensor, gradient: &[f32]| training.ready(comm, tensor, gradient);
        let mut loss = [transformer.learn(&parameters, &own, scale, ready)?];
        let report = training.step(comm, &mut parameters)?;
        comm.all_reduce_in_place(&mut loss, RedOp::Sum).run()?;
        losses.push(loss[0] / f64::from(predictions));
        taken += batch.total;
        exposed += report.times.exposed;
        if !report.step.is_multiple_of(options.every) && report.step != options.steps {
            continue;
        }
        if comm.rank() == 0 {
            let seconds = since.elapsed().as_secs_f64();
            let (step, loss) = (report.step, losses[losses.len() - 1]);
            let speed = taken as f64 / seconds;
            let exposed = exposed.as_secs_f64() / seconds * 100.0;
            println!("step {step}: loss {loss:.9}, {speed:.2} samples/s, {exposed:.1} % exposed");
        }
        if let Some(store) = store {
            training.save(comm, store, Some(&sampler))?;
        }
        (taken, since, exposed) = (0, Instant::now(), Duration::ZERO);
    }
    compare(comm, &parameters)?;
    if comm.rank() == 0 {
        summarise(comm, &training, &losses);
    }
    Ok(())
}

fn summarise(comm: &Communicator, training: &DataParallel<AdamW>, losses: &[f64]) {
    let memory = training.memory();
    // There are none if all steps were done before.
    if !losses.is_empty() {
        print!("loss\n{}", text::plot(losses, 60, 8));
    }
    println!(
        "{} ranks, {} MB of parameters; of {} MB of the optimizer's state, {} MB here",
        comm.size(),
        megabytes(memory.parameters),
        megabytes(memory.whole_state),
        megabytes(memory.state),
    );
}

fn megabytes(bytes: usize) -> String {
    format!("{:.2}", bytes as f64 / 1e6)
}
