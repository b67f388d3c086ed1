//! Attention of which each rank has some heads.

use std::ops::Range;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::var_builder::{Backend, Shard};
use candle_nn::{Module, rotary_emb};

use crate::group::Group;
use crate::layers::{ColumnParallel, Form, RowParallel, Weights};

/// The heads of an attention, of all ranks together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// How many heads there are.
    pub queries: usize,
    /// How many heads have keys and values of their own, which queries share.
    pub keys: usize,
    /// How many elements each head has.
    pub width: usize,
}

/// Angles by which queries and keys are turned, by their positions.
#[derive(Debug, Clone)]
pub struct Rope {
    cosines: Tensor,
    sines: Tensor,
}

impl Rope {
    /// Tables for positions below `positions`, of the angle that each pair of elements turns by per
    /// position.
    ///
    /// # Errors
    /// candle's.
    pub fn new(turns: &[f32], positions: usize, dtype: DType, device: &Device) -> Result<Self> {
        let turns = Tensor::new(turns, device)?.unsqueeze(0)?;
        let positions = Tensor::arange(0, positions as u32, device)?.to_dtype(DType::F32)?;
        let angles = positions.unsqueeze(1)?.matmul(&turns)?;
        Ok(Self {
            cosines: angles.cos()?.to_dtype(dtype)?,
            sines: angles.sin()?.to_dtype(dtype)?,
        })
    }

    pub(crate) fn device(&self) -> &Device {
        self.cosines.device()
    }

    fn turn(&self, heads: &Tensor, positions: Range<usize>) -> Result<Tensor> {
        let part = |table: &Tensor| table.narrow(0, positions.start, positions.len());
        let (cosines, sines) = (part(&self.cosines)?, part(&self.sines)?);
        // candle's faster form has no gradient.
        if heads.track_op() {
            rotary_emb::rope_slow(heads, &cosines, &sines)
        } else {
            rotary_emb::rope(heads, &cosines, &sines)
        }
    }
}

/// Keys and values of the tokens before, of this rank's heads. Empty at first.
#[derive(Debug, Clone, Default)]
pub struct KeyValues(Option<(Tensor, Tensor)>);

impl KeyValues {
    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        let keys = self.0.as_ref().map(|(keys, _)| keys.dims()[2]);
        keys.unwrap_or_default()
    }

    /// How many bytes the keys and values take.
    pub fn bytes(&self) -> usize {
        let both = self.0.iter().flat_map(|(keys, values)| [keys, values]);
        both.map(|it| it.elem_count() * it.dtype().size_in_bytes())
            .sum()
    }

    /// Appends keys and values of more tokens; returns all.
    fn extended(&mut self, keys: Tensor, values: Tensor) -> Result<(Tensor, Tensor)> {
        let all = match &self.0 {
            None => (keys, values),
            Some((before, values_before)) => (
                Tensor::cat(&[before, &keys], 2)?,
                Tensor::cat(&[values_before, &values], 2)?,
            ),
        };
        Ok(self.0.insert(all).clone())
    }
}

/// Causal attention with rotary positions, as in Llama.
#[derive(Debug, Clone)]
pub struct Attention {
    queries: ColumnParallel,
    keys: ColumnParallel,
    values: ColumnParallel,
    output: RowParallel,
    /// The heads of this rank.
    heads: Heads,
}

impl Attention {
    /// Loads this rank's heads of `q_proj`, `k_proj`, `v_proj` and `o_proj`.
    ///
    /// # Errors
    /// [`Error::Division`](crate::Error::Division) for a number of heads that the ranks cannot
    /// share, and those of the weights.
    pub fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        hidden: usize,
        heads: Heads,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        let name = weights.prefix();
        let own = Heads {
            queries: group.share(&name, heads.queries, "heads of queries")?.len(),
            keys: group
                .share(&name, heads.keys, "heads of keys and values")?
                .len(),
            ..heads
        };
        let column = |heads: usize, width: usize, name| {
            ColumnParallel::load(group, form, hidden, heads * width, &weights.pp(name))
        };
        let inputs = heads.queries * heads.width;
        Ok(Self {
            queries: column(heads.queries, heads.width, "q_proj")?,
            keys: column(heads.keys, heads.width, "k_proj")?,
            values: column(heads.keys, heads.width, "v_proj")?,
            output: RowParallel::load(group, form, inputs, hidden, &weights.pp("o_proj"))?,
            heads: own,
        })
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        let columns = [&self.queries, &self.keys, &self.values];
        columns.map(ColumnParallel::bytes).iter().sum::<usize>() + self.output.bytes()
    }

    /// The output for a batch of sequences, which come after the tokens in `before`.
    ///
    /// # Errors
    /// Those of the group's calls, and candle's.
    pub fn forward(&self, input: &Tensor, rope: &Rope, before: &mut KeyValues) -> Result<Tensor> {
        let Heads {
            queries,
            keys,
            width,
        } = self.heads;
        let entered = self.queries.enter(input)?;
        let (batch, tokens, _) = entered.dims3()?;
        let by_head = |layer: &ColumnParallel, heads: usize| {
            let own = layer
                .own(&entered)?
                .reshape((batch, tokens, heads, width))?;
            own.transpose(1, 2)?.contiguous()
        };
        let start = before.tokens();
        let positions = start..start + tokens;
        let query = rope.turn(&by_head(&self.queries, queries)?, positions.clone())?;
        let key = rope.turn(&by_head(&self.keys, keys)?, positions)?;
        let (key, value) = before.extended(key, by_head(&self.values, keys)?)?;
        let each = queries / keys;
        let attended = attend(&query, &repeated(&key, each)?, &repeated(&value, each)?)?;
        let joined = attended
            .transpose(1, 2)?
            .reshape((batch, tokens, queries * width))?;
        self.output.forward(&joined)
    }
}

/// Each head as many times as queries share it.
fn repeated(heads: &Tensor, each: usize) -> Result<Tensor> {
    if each == 1 {
        return Ok(heads.clone());
    }
    let (batch, count, tokens, width) = heads.dims4()?;
    let wide = heads
        .unsqueeze(2)?
        .broadcast_as((batch, count, each, tokens, width))?;
    wide.reshape((batch, count * each, tokens, width))
}

/// The mix of values for each query, by the keys of its own and earlier tokens, in f32.
fn attend(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let (dtype, width) = (query.dtype(), query.dim(D::Minus1)?);
    let wide = |it: &Tensor| it.to_dtype(DType::F32);
    let scores = wide(query)?.matmul(&wide(key)?.t()?)?;
    let scores = (scores / (width as f64).sqrt())?;
    let scores = scores.broadcast_add(&mask(query.dim(2)?, key.dim(2)?, query.device())?)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    weights.matmul(&wide(value)?)?.to_dtype(dtype)
}

/// Added to scores: zero for keys that a query may use, minus infinity for others. The last query
/// may use all keys.
fn mask(queries: usize, keys: usize, device: &Device) -> Result<Tensor> {
    let before = keys - queries;
    let allowed = |query: usize, key: usize| key <= before + query;
    let value = |at: usize| {
        if allowed(at / keys, at % keys) {
            0.0
        } else {
            f32::NEG_INFINITY
        }
    };
    let values: Vec<f32> = (0..queries * keys).map(value).collect();
    Tensor::from_vec(values, (queries, keys), device)
}
