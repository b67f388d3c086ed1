//! Layers of which each rank has a part.
//!
//! A row-parallel layer follows a column-parallel one. The column-parallel layer gives each rank
//! its own outputs, which are the inputs of its part of the row-parallel layer; that sums over the
//! ranks.

use candle_core::{Result, Tensor};
use candle_nn::var_builder::{Backend, Shard, VarBuilderArgs};
use candle_nn::{Linear, Module, RmsNorm};

use crate::group::Group;
use crate::hook::Hook;

/// Weights by name, of which a rank asks for its part: [`Files`](crate::Files),
/// [`Trainable`](crate::variables::Trainable) or candle's `ShardedVarBuilder`.
pub type Weights<'a, B> = VarBuilderArgs<'a, B>;

/// How activations are divided among ranks, between divided layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each rank has all of them.
    Whole,
    /// Each rank has a part of the sequence, the dimension `dim`: norms and residual sums take a
    /// part of the memory and time. As many bytes are sent.
    Sequence {
        /// The dimension.
        dim: usize,
    },
}

impl Form {
    /// The whole input of divided layers.
    pub(crate) fn enter(self, group: &Group, input: &Tensor, name: &str) -> Result<Tensor> {
        match self {
            Self::Whole => group.fan_out(input, name),
            Self::Sequence { dim } => group.fan_out_gathered(input, dim, name),
        }
    }

    /// The ranks' sum of an output.
    fn leave(self, group: &Group, output: &Tensor, name: &str) -> Result<Tensor> {
        match self {
            Self::Whole => group.all_reduce(output, name),
            Self::Sequence { dim } => group.reduce_scatter(output, dim, name),
        }
    }

    /// A parameter that all ranks have, for the activations of this form.
    fn shared(self, group: &Group, parameter: &Parameter) -> Result<Tensor> {
        let now = parameter.now()?;
        match self {
            Self::Whole => Ok(now),
            Self::Sequence { .. } => group.fan_out(&now, &parameter.name),
        }
    }
}

/// A parameter, or a rank's part of one.
#[derive(Debug, Clone)]
struct Parameter {
    name: String,
    tensor: Tensor,
    hook: Option<Hook>,
}

impl Parameter {
    fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        shape: &[usize],
        name: &str,
        shard: Shard,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        Ok(Self {
            name: named(weights, name),
            tensor: weights.get_with_hints(shape, name, shard)?,
            hook: group.hook().cloned(),
        })
    }

    fn bytes(&self) -> usize {
        self.tensor.elem_count() * self.tensor.dtype().size_in_bytes()
    }

    /// The parameter, for one forward pass.
    fn now(&self) -> Result<Tensor> {
        match &self.hook {
            Some(hook) => hook.watch(&self.name, &self.tensor),
            None => Ok(self.tensor.clone()),
        }
    }
}

fn named<B: Backend>(weights: &Weights<'_, B>, name: &str) -> String {
    match weights.prefix() {
        prefix if prefix.is_empty() => name.to_owned(),
        prefix => format!("{prefix}.{name}"),
    }
}

/// This rank's part along a dimension.
fn own(group: &Group, dim: usize) -> Shard {
    Shard {
        dim,
        rank: group.rank(),
        world_size: group.size(),
    }
}

/// A linear layer of which each rank computes some outputs.
#[derive(Debug, Clone)]
pub struct ColumnParallel {
    group: Group,
    form: Form,
    weight: Parameter,
    bias: Option<Parameter>,
}

impl ColumnParallel {
    /// Loads this rank's part: `weight`, and `bias` if the weights have one.
    ///
    /// # Errors
    /// [`Error::Division`](crate::Error::Division), and those of the weights.
    pub fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        inputs: usize,
        outputs: usize,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        group.share(&named(weights, "weight"), outputs, "outputs")?;
        let load =
            |shape: &[usize], name| Parameter::load(group, shape, name, own(group, 0), weights);
        let has_bias = weights.contains_tensor("bias");
        Ok(Self {
            group: group.clone(),
            form,
            weight: load(&[outputs, inputs], "weight")?,
            bias: has_bias.then(|| load(&[outputs], "bias")).transpose()?,
        })
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        self.weight.bytes() + self.bias.as_ref().map_or(0, Parameter::bytes)
    }

    /// The whole input, for this and other column-parallel layers that take the same.
    ///
    /// # Errors
    /// Those of the group's calls.
    pub fn enter(&self, input: &Tensor) -> Result<Tensor> {
        let name = format!("input of {}", self.weight.name);
        self.form.enter(&self.group, input, &name)
    }

    /// This rank's outputs of an input that [`enter`](Self::enter) gave.
    ///
    /// # Errors
    /// candle's.
    pub fn own(&self, entered: &Tensor) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Parameter::now).transpose()?;
        Linear::new(self.weight.now()?, bias).forward(entered)
    }
}

impl Module for ColumnParallel {
    /// This rank's outputs.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.own(&self.enter(input)?)
    }
}

/// A linear layer of which each rank takes some inputs.
#[derive(Debug, Clone)]
pub struct RowParallel {
    group: Group,
    form: Form,
    weight: Parameter,
    bias: Option<Parameter>,
}

impl RowParallel {
    /// Loads this rank's part: `weight`; and all of `bias` if the weights have one.
    ///
    /// # Errors
    /// [`Error::Division`](crate::Error::Division), and those of the weights.
    pub fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        inputs: usize,
        outputs: usize,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        group.share(&named(weights, "weight"), inputs, "inputs")?;
        let has_bias = weights.contains_tensor("bias");
        let bias = || Parameter::load(group, &[outputs], "bias", Shard::default(), weights);
        let shape = [outputs, inputs];
        Ok(Self {
            group: group.clone(),
            form,
            weight: Parameter::load(group, &shape, "weight", own(group, 1), weights)?,
            bias: has_bias.then(bias).transpose()?,
        })
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        self.weight.bytes() + self.bias.as_ref().map_or(0, Parameter::bytes)
    }
}

impl Module for RowParallel {
    /// The outputs, of this rank's inputs and all others'.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let partial = Linear::new(self.weight.now()?, None).forward(input)?;
        let name = format!("output of {}", self.weight.name);
        let output = self
            .form
            .leave(&self.group, &partial.contiguous()?, &name)?;
        match &self.bias {
            Some(bias) => output.broadcast_add(&self.form.shared(&self.group, bias)?),
            None => Ok(output),
        }
    }
}

/// An embedding of which each rank has the rows of some tokens.
#[derive(Debug, Clone)]
pub struct Embedding {
    group: Group,
    form: Form,
    weight: Parameter,
    /// The first token of this rank.
    first: u32,
    /// How many tokens there are on all ranks.
    tokens: usize,
}

impl Embedding {
    /// Loads this rank's rows of `weight`.
    ///
    /// # Errors
    /// [`Error::Division`](crate::Error::Division), and those of the weights.
    pub fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        tokens: usize,
        hidden: usize,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        let rows = group.share(&named(weights, "weight"), tokens, "rows")?;
        let shape = [tokens, hidden];
        Ok(Self {
            group: group.clone(),
            form,
            weight: Parameter::load(group, &shape, "weight", own(group, 0), weights)?,
            first: rows.start as u32,
            tokens,
        })
    }

    /// A layer whose outputs are logits of the tokens, by the same weight.
    pub(crate) fn tied(&self) -> ColumnParallel {
        ColumnParallel {
            group: self.group.clone(),
            form: self.form,
            weight: self.weight.clone(),
            bias: None,
        }
    }

    /// The weight, for one forward pass.
    pub(crate) fn weight(&self) -> Result<Tensor> {
        self.weight.now()
    }

    /// Refuses tokens that no rank has, which would have rows of zeros. Reading those of a GPU
    /// would wait for it.
    fn check(&self, tokens: &Tensor) -> Result<()> {
        if !tokens.device().is_cpu() {
            return Ok(());
        }
        let all = tokens.flatten_all()?.to_vec1::<u32>()?;
        match all.into_iter().find(|&it| it as usize >= self.tokens) {
            None => Ok(()),
            Some(token) => {
                let problem = format!("token {token} is none of the {} tokens", self.tokens);
                Err(self.group.refuse("rows", &self.weight.name, problem))
            }
        }
    }

    /// The rows of tokens, by the weight of this pass.
    pub(crate) fn rows(&self, weight: &Tensor, tokens: &Tensor) -> Result<Tensor> {
        self.check(tokens)?;
        let (rows, hidden) = weight.dims2()?;
        let last = self.first + rows as u32 - 1;
        let clamped = tokens.clamp(self.first, last)?;
        // Other ranks have the rows of other tokens: here these rows are zeros.
        let is_own = tokens
            .eq(&clamped)?
            .to_dtype(weight.dtype())?
            .unsqueeze(tokens.rank())?;
        let first = Tensor::new(self.first, tokens.device())?;
        let rows = clamped.broadcast_sub(&first)?.flatten_all()?;
        let shape = [tokens.dims(), &[hidden]].concat();
        let values = weight.index_select(&rows, 0)?.reshape(shape)?;
        let values = values.broadcast_mul(&is_own)?;
        let name = format!("output of {}", self.weight.name);
        self.form.leave(&self.group, &values, &name)
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }
}

impl Module for Embedding {
    /// The rows of tokens, which are of u32. On hosts, tokens that are not in the vocabulary are
    /// refused; on GPUs, their rows are zeros.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.rows(&self.weight()?, tokens)
    }
}

/// A norm by the root of the mean square, whose weight all ranks have.
#[derive(Debug, Clone)]
pub struct Norm {
    group: Group,
    form: Form,
    weight: Parameter,
    epsilon: f64,
}

impl Norm {
    /// Loads `weight`.
    ///
    /// # Errors
    /// Those of the weights.
    pub fn load<B: Backend<Hints = Shard>>(
        group: &Group,
        form: Form,
        hidden: usize,
        epsilon: f64,
        weights: &Weights<'_, B>,
    ) -> Result<Self> {
        Ok(Self {
            group: group.clone(),
            form,
            weight: Parameter::load(group, &[hidden], "weight", Shard::default(), weights)?,
            epsilon,
        })
    }

    /// Whether the weight is a variable.
    pub(crate) fn is_trained(&self) -> bool {
        self.weight.tensor.track_op()
    }

    /// How many bytes this rank's part takes.
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }
}

impl Module for Norm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let norm = RmsNorm::new(self.form.shared(&self.group, &self.weight)?, self.epsilon);
        // candle's faster form has no gradient.
        if input.track_op() || self.is_trained() {
            norm.forward_diff(input)
        } else {
            norm.forward(input)
        }
    }
}
