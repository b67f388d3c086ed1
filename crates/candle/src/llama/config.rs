//! The parts of a model's `config.json` that matter here.

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
    #[serde(alias = "rope_parameters")]
    pub rope_scaling: Option<RopeParameters>,
    #[serde(default)]
    pub tie_word_embeddings: bool,
}

/// How positions turn: `rope_scaling`, or `rope_parameters` of transformers 5 and later, which also
/// has the base.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the names say it, and are not ours")]
pub struct RopeParameters {
    pub rope_theta: Option<f32>,
    #[serde(flatten)]
    pub scaling: RopeScaling,
}

/// Whether positions are stretched beyond the context of the first training.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it, and are not ours")]
pub enum RopeScaling {
    /// Positions are not stretched.
    Default,
    /// As in Llama 3.1 and later.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_max_position_embeddings: usize,
    },
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

    /// Checks that this crate can do the model.
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
            let heads = self.heads();
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
            } else if !(self.theta() > 0.0 && self.scaling().is_possible()) {
                let (theta, scaling) = (self.theta(), self.scaling());
                format!("positions cannot turn by {scaling:?} with the base {theta}")
            } else {
                return Ok(());
            }
        };
        Err(Error::Model(problem))?
    }

    /// The base of the turns.
    fn theta(&self) -> f32 {
        let newer = self.rope_scaling.as_ref().and_then(|it| it.rope_theta);
        newer.unwrap_or(self.rope_theta)
    }

    fn scaling(&self) -> &RopeScaling {
        let given = self.rope_scaling.as_ref();
        given.map_or(&RopeScaling::Default, |it| &it.scaling)
    }

    /// The angles of positions.
    pub(super) fn rope(&self, dtype: DType, device: &Device) -> Result<Rope> {
        let width = self.heads().width;
        let turns = (0..width / 2).map(|pair| {
            let turn = self.theta().powf(-2.0 * pair as f32 / width as f32);
            self.scaling().scaled(turn)
        });
        let turns: Vec<f32> = turns.collect();
        Rope::new(&turns, self.max_position_embeddings, dtype, device)
    }
}

impl RopeScaling {
    /// Whether each turn has a value.
    fn is_possible(&self) -> bool {
        match *self {
            Self::Default => true,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: before,
            } => factor > 0.0 && high > low && before > 0,
        }
    }

    /// A turn per position: slow ones are slowed down by the factor, fast ones are not.
    fn scaled(&self, turn: f32) -> f32 {
        match *self {
            Self::Default => turn,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: before,
            } => {
                let rounds = before as f32 * turn / TAU;
                let fast = ((rounds - low) / (high - low)).clamp(0.0, 1.0);
                turn * (fast + (1.0 - fast) / factor)
            }
        }
    }
}
