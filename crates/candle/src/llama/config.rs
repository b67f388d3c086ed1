//! What a model's `config.json` says, as far as it matters here.

use std::f32::consts::TAU;
use std::path::Path;

use candle_core::{DType, Device, Result};
use serde::Deserialize;

use crate::attention::{Heads, Rope};
use crate::error::Error;

/// The sizes of a model. The names are those in `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the names say it, and are not ours")]
pub struct Config {
    #[serde(default = "llama")]
    pub model_type: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    #[serde(default = "silu")]
    pub hidden_act: String,
    #[serde(default = "max_position_embeddings")]
    pub max_position_embeddings: usize,
    #[serde(default = "rms_norm_eps")]
    pub rms_norm_eps: f64,
    #[serde(default = "rope_theta")]
    pub rope_theta: f32,
    pub rope_scaling: Option<RopeScaling>,
    #[serde(default)]
    pub tie_word_embeddings: bool,
}

/// How Llama 3.1 and later stretch positions beyond those that the first training had.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the names say it, and are not ours")]
pub struct RopeScaling {
    #[serde(default)]
    pub rope_type: String,
    pub factor: f32,
    #[serde(default)]
    pub low_freq_factor: f32,
    #[serde(default)]
    pub high_freq_factor: f32,
    #[serde(default)]
    pub original_max_position_embeddings: usize,
}

fn llama() -> String {
    "llama".to_owned()
}

fn silu() -> String {
    "silu".to_owned()
}

fn max_position_embeddings() -> usize {
    4096
}

fn rms_norm_eps() -> f64 {
    1e-5
}

fn rope_theta() -> f32 {
    10_000.0
}

impl Config {
    /// Reads `config.json` of a model's folder.
    ///
    /// # Errors
    /// [`Error::File`] if there is none, or it lacks a size; [`Error::Model`] for another model.
    pub fn of_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join("config.json");
        let wrong = |problem: String| Error::File {
            path: path.clone(),
            problem,
        };
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        let config = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        Self::check(&config)?;
        Ok(config)
    }

    /// The attention's heads.
    pub(super) fn heads(&self) -> Heads {
        let queries = self.num_attention_heads;
        Heads {
            queries,
            keys: self.num_key_value_heads.unwrap_or(queries),
            width: self.head_dim.unwrap_or(self.hidden_size / queries),
        }
    }

    /// Whether this crate has the model.
    pub(super) fn check(&self) -> Result<()> {
        let problem = if self.model_type != "llama" {
            format!(
                "a model of the type llama is needed, and this is {}",
                self.model_type
            )
        } else if self.hidden_act != "silu" {
            format!(
                "the activation silu is needed, and this is {}",
                self.hidden_act
            )
        } else if self.num_attention_heads == 0 {
            "the model has no heads".to_owned()
        } else {
            let (heads, scaling) = (self.heads(), self.rope_scaling.as_ref());
            let scaling = scaling.map_or("llama3", |it| &it.rope_type);
            if heads.keys == 0 || !heads.queries.is_multiple_of(heads.keys) {
                format!(
                    "{} heads of queries cannot share {}",
                    heads.queries, heads.keys
                )
            } else if heads.width == 0 || !heads.width.is_multiple_of(2) {
                format!(
                    "heads of {} elements cannot be turned in pairs",
                    heads.width
                )
            } else if scaling != "llama3" {
                format!("positions are scaled by {scaling:?}, and only llama3 is known")
            } else {
                return Ok(());
            }
        };
        Err(Error::Model(problem))?
    }

    /// The angles of positions.
    pub(super) fn rope(&self, dtype: DType, device: &Device) -> Result<Rope> {
        let width = self.heads().width;
        let turns = (0..width / 2).map(|pair| {
            let turn = self.rope_theta.powf(-2.0 * pair as f32 / width as f32);
            self.rope_scaling
                .as_ref()
                .map_or(turn, |scaling| scaling.scaled(turn))
        });
        let turns: Vec<f32> = turns.collect();
        Rope::new(&turns, self.max_position_embeddings, dtype, device)
    }
}

impl RopeScaling {
    /// A turn per position: slow ones are slowed down by the factor, fast ones are not.
    fn scaled(&self, turn: f32) -> f32 {
        let rounds = self.original_max_position_embeddings as f32 * turn / TAU;
        let fast = (rounds - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let fast = fast.clamp(0.0, 1.0);
        turn * (fast + (1.0 - fast) / self.factor)
    }
}
