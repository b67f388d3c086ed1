//! Models of Llama's shape, as Hugging Face stores them. Each rank has a part: some heads and
//! columns of all blocks, or, in a pipeline, some blocks.

mod config;

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use candle_nn::var_builder::{Backend, Shard};
use candle_nn::{Linear, Module};
pub use config::{Config, RopeParameters, RopeScaling};

use crate::attention::{Attention, KeyValues, Rope};
use crate::error::Error;
use crate::group::Group;
use crate::layers::{ColumnParallel, Embedding, Form, Norm, RowParallel, Weights};

/// A model, or some blocks of one.
///
/// With [`Form::Sequence`], between blocks each rank has a part of the tokens, which the number of
/// ranks must divide: a form for training.
#[derive(Debug, Clone)]
pub struct Llama {
    /// `None` without the first block.
    embedding: Option<Embedding>,
    blocks: Vec<Block>,
    /// `None` without the last block.
    head: Option<Head>,
    rope: Rope,
}

/// The layers behind the last block: a norm, and the tokens' logits.
#[derive(Debug, Clone)]
struct Head {
    group: Group,
    norm: Norm,
    logits: ColumnParallel,
    /// The logits' weight is that of this rank's embedding.
    shares_embedding: bool,
}

/// Keys and values of the tokens before, by block.
#[derive(Debug, Clone)]
pub struct Cache(Vec<KeyValues>);

impl Cache {
    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.0.first().map_or(0, KeyValues::tokens)
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(KeyValues::bytes).sum()
    }
}

impl Llama {
    /// Loads this rank's part of a model.
    ///
    /// # Errors
    /// [`Error::Division`] if the ranks cannot share heads, tokens of the vocabulary or columns
    /// evenly; [`Error::Model`] for a configuration of another kind of model; those of the weights.
    pub fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        config: &Config,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        Self::load_blocks(group, form, config, weights, 0..config.num_hidden_layers)
    }

    /// Loads this rank's part of some blocks: with the first one also the embedding, and with the
    /// last one also the logits.
    ///
    /// Where embedding and logits are one weight (`tie_word_embeddings`), some blocks alone cannot
    /// be trained: two ranks would have the weight, each with half of its gradient.
    ///
    /// # Errors
    /// As [`load`](Self::load); and [`Error::Model`] for variables of a tied model without all of
    /// its blocks.
    pub fn load_blocks<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        config: &Config,
        weights: &Weights<'_, B>,
        blocks: Range<usize>,
    ) -> Result<Self> {
        config.check()?;
        if blocks.is_empty() || blocks.end > config.num_hidden_layers {
            let count = config.num_hidden_layers;
            let problem = format!("there are no blocks {blocks:?}: the model has {count}");
            Err(Error::Model(problem))?;
        }
        let model = weights.pp("model");
        let embedding = || {
            let (tokens, hidden) = (config.vocab_size, config.hidden_size);
            Embedding::load(group, form, tokens, hidden, &model.pp("embed_tokens"))
        };
        let (is_first, is_last) = (blocks.start == 0, blocks.end == config.num_hidden_layers);
        let all = model.pp("layers");
        let load = |at| Block::load(group, form, config, &all.pp(at));
        let embedding = is_first.then(embedding).transpose()?;
        let blocks: Vec<_> = blocks.map(load).collect::<Result<_>>()?;
        let is_trained = blocks.iter().any(|it| it.before_linear.is_trained());
        if config.tie_word_embeddings && is_trained && !(is_first && is_last) {
            let problem = "embedding and logits are one weight (tie_word_embeddings), which a \
                           pipeline cannot train: take a model with two, or all blocks on each \
                           rank";
            Err(Error::Model(problem.to_owned()))?;
        }
        let head = || Head::load(group, form, config, weights, embedding.as_ref());
        Ok(Self {
            head: is_last.then(head).transpose()?,
            embedding,
            blocks,
            rope: config.rope(weights.dtype(), weights.device())?,
        })
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(Block::bytes).sum();
        let head = self.head.as_ref().map_or(0, Head::bytes);
        blocks + head + self.embedding.as_ref().map_or(0, Embedding::bytes)
    }

    /// The device of the weights, on which tokens must be.
    pub fn device(&self) -> &Device {
        self.rope.device()
    }

    /// A cache without tokens.
    pub fn cache(&self) -> Cache {
        Cache(vec![KeyValues::default(); self.blocks.len()])
    }

    /// The logits of all tokens of a batch, which come after those in the cache. Without the first
    /// block, the input is what the block before gives instead of tokens; without the last one, the
    /// output is what the next block takes.
    ///
    /// # Errors
    /// [`Error::Model`] for a cache of a model with another number of blocks; those of the group's
    /// calls, and candle's.
    pub fn forward(&self, input: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        if cache.0.len() != self.blocks.len() {
            let (own, other) = (self.blocks.len(), cache.0.len());
            let problem = format!("a cache of {other} blocks is not for a model with {own} here");
            Err(Error::Model(problem))?;
        }
        // Taken once in a pass, even if the logits use it, too, so that its gradient is one sum.
        let weight = self.embedding.as_ref().map(Embedding::weight).transpose()?;
        let mut values = match (&self.embedding, &weight) {
            (Some(embedding), Some(weight)) => embedding.rows(weight, input)?,
            _ => input.clone(),
        };
        for (block, before) in self.blocks.iter().zip(&mut cache.0) {
            values = block.forward(&values, &self.rope, before)?;
        }
        match &self.head {
            Some(head) => head.forward(&values, weight.filter(|_| head.shares_embedding)),
            None => Ok(values),
        }
    }
}

impl Head {
    fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        config: &Config,
        weights: &Weights<'_, B>,
        embedding: Option<&Embedding>,
    ) -> Result<Self> {
        let (hidden, tokens) = (config.hidden_size, config.vocab_size);
        let model = weights.pp("model");
        let load = |weights| ColumnParallel::load(group, form, hidden, tokens, &weights);
        let shared = embedding.filter(|_| config.tie_word_embeddings);
        let logits = match shared {
            Some(embedding) => embedding.tied(),
            None if config.tie_word_embeddings => load(model.pp("embed_tokens"))?,
            None => load(weights.pp("lm_head"))?,
        };
        Ok(Self {
            group: group.clone(),
            norm: Norm::load(group, form, hidden, config.rms_norm_eps, &model.pp("norm"))?,
            logits,
            shares_embedding: shared.is_some(),
        })
    }

    /// Bytes of the head, without the weight that it shares with the embedding.
    fn bytes(&self) -> usize {
        let own = if self.shares_embedding {
            0
        } else {
            self.logits.bytes()
        };
        self.norm.bytes() + own
    }

    /// The logits, by the embedding's weight of this pass if it is shared.
    fn forward(&self, values: &Tensor, shared: Option<Tensor>) -> Result<Tensor> {
        let entered = self.logits.enter(&self.norm.forward(values)?)?;
        let own = match shared {
            Some(weight) => Linear::new(weight, None).forward(&entered)?,
            None => self.logits.own(&entered)?,
        };
        self.group
            .all_gather(&own.contiguous()?, own.rank() - 1, "logits")
    }
}

/// Attention, and two linear layers with a gate.
#[derive(Debug, Clone)]
struct Block {
    before_attention: Norm,
    attention: Attention,
    before_linear: Norm,
    gate: ColumnParallel,
    up: ColumnParallel,
    down: RowParallel,
}

impl Block {
    fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        config: &Config,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let linear = weights.pp("mlp");
        let norm = |name| Norm::load(group, form, hidden, config.rms_norm_eps, &weights.pp(name));
        let column = |name| ColumnParallel::load(group, form, hidden, inner, &linear.pp(name));
        let attention = weights.pp("self_attn");
        Ok(Self {
            before_attention: norm("input_layernorm")?,
            attention: Attention::load(group, form, hidden, config.heads(), &attention)?,
            before_linear: norm("post_attention_layernorm")?,
            gate: column("gate_proj")?,
            up: column("up_proj")?,
            down: RowParallel::load(group, form, inner, hidden, &linear.pp("down_proj"))?,
        })
    }

    fn bytes(&self) -> usize {
        let norms = self.before_attention.bytes() + self.before_linear.bytes();
        let linear = self.gate.bytes() + self.up.bytes() + self.down.bytes();
        norms + linear + self.attention.bytes()
    }

    fn forward(&self, input: &Tensor, rope: &Rope, before: &mut KeyValues) -> Result<Tensor> {
        let normed = self.before_attention.forward(input)?;
        let attended = (input + self.attention.forward(&normed, rope, before)?)?;
        let entered = self.gate.enter(&self.before_linear.forward(&attended)?)?;
        let inner = (self.gate.own(&entered)?.silu()? * self.up.own(&entered)?)?;
        attended + self.down.forward(&inner)?
    }
}
