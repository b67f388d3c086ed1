//! The command line: pairs of a name and a number or path, and words.

use std::path::PathBuf;

pub(crate) const USAGE: &str = "\
usage: train [NAME=VALUE]...
  ranks=2        processes to start, without a launcher
  steps=200      steps to take
  batch=16       samples in a step, of all ranks together
  width=32       numbers for each character
  layers=2       layers of the transformer
  context=32     characters that a prediction sees at most
  sharded=0      1: each rank has only its share of the optimizer's state (ZeRO-1)
  every=20       steps between progress lines, and between checkpoints
  folder=PATH    where to keep checkpoints, and to go on from the newest one
  text=PATH      a text, or a folder of Markdown files; this repository's documents";

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub ranks: usize,
    pub steps: u64,
    pub batch: usize,
    pub width: usize,
    pub layers: usize,
    pub context: usize,
    pub sharded: bool,
    pub every: u64,
    pub folder: Option<PathBuf>,
    pub text: PathBuf,
}

impl Options {
    /// Reads the arguments; returns what is wrong with them.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            ranks: 2,
            steps: 200,
            batch: 16,
            width: 32,
            layers: 2,
            context: 32,
            sharded: false,
            every: 20,
            folder: None,
            text: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")),
        };
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or(USAGE)?;
            let number = || match value.parse::<usize>() {
                Ok(number) => Ok(number),
                Err(error) => Err(format!("{argument}: {error}\n{USAGE}")),
            };
            match name {
                "ranks" => options.ranks = number()?.max(1),
                "steps" => options.steps = number()? as u64,
                "batch" => options.batch = number()?,
                "width" => options.width = number()?.max(2),
                "layers" => options.layers = number()?,
                "context" => options.context = number()?.max(1),
                "sharded" => options.sharded = number()? != 0,
                "every" => options.every = number()?.max(1) as u64,
                "folder" => options.folder = Some(value.into()),
                "text" => options.text = value.into(),
                _ => return Err(format!("{argument}: there is no {name}\n{USAGE}")),
            }
        }
        if !options.width.is_multiple_of(2) {
            return Err(format!(
                "width={}: two heads need an even width",
                options.width
            ));
        }
        Ok(options)
    }
}
