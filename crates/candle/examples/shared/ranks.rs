//! How an example gets its arguments, its model, and its ranks: from a launcher, or as processes
//! that it starts itself.

#[path = "making.rs"]
mod making;

use std::path::PathBuf;
use std::process::Command;

use candle_core::Device;
use spark_ccl::{Communicator, rank_variables};
use spark_ccl_candle::{Group, builder};
use tempfile::TempDir;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The number behind an argument, for instance `--ranks`.
pub(crate) fn number(name: &str, default: usize) -> Result<usize, Failure> {
    let Some(text) = text(name)? else {
        return Ok(default);
    };
    let number = text.parse();
    number.map_err(|_| format!("{name} {text}: not a number").into())
}

/// The text behind an argument.
pub(crate) fn text(name: &str) -> Result<Option<String>, Failure> {
    let mut arguments = std::env::args().skip_while(|it| it != name);
    match (arguments.next(), arguments.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(text)) => Ok(Some(text)),
        (Some(_), None) => Err(format!("{name} needs a value").into()),
    }
}

/// A folder of Hugging Face's shape.
pub(crate) struct Model {
    pub(crate) folder: PathBuf,
    /// The folder, if the model was made here; its drop removes it.
    _made: Option<TempDir>,
}

/// The model of `--model`, or one that each rank makes for itself: then ranks on several hosts need
/// no common folder.
pub(crate) fn model() -> Result<Model, Failure> {
    if let Some(folder) = text("--model")? {
        let folder = folder.into();
        return Ok(Model {
            folder,
            _made: None,
        });
    }
    let made = tempfile::tempdir()?;
    making::make(made.path())?;
    let folder = made.path().to_owned();
    Ok(Model {
        folder,
        _made: Some(made),
    })
}

/// Runs `rank` as one of the ranks, or starts `--ranks` processes that do. Each rank makes its
/// device once, by its number on its host: two handles of a GPU are two devices for candle.
pub(crate) fn run(
    device: fn(usize) -> Result<Device, Failure>,
    rank: fn(&Group, &Device) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(launch) = spark_ccl::launcher()? {
        let device = device(launch.local_rank.unwrap_or(launch.rank))?;
        return rank(&Group::new(builder(&device)?.from_env()?), &device);
    }
    let ranks = number("--ranks", 2)?;
    if ranks == 0 {
        return Err("--ranks 0: at least one rank is needed".into());
    }
    let id = Communicator::builder().unique_id()?;
    let mut processes = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        command.envs(rank_variables(&id, rank, ranks));
        processes.push(command.spawn()?);
    }
    let mut failed = Vec::new();
    for (rank, mut process) in processes.into_iter().enumerate() {
        let status = process.wait()?;
        if !status.success() {
            failed.push(format!("rank {rank}: {status}"));
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(failed.join(", ").into())
}
