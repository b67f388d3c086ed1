//! Variables that are trained, in one order on all ranks. A `VarMap` is a hash map, whose order
//! differs between processes.

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::VarMap;
use candle_nn::var_builder::{Backend, VarBuilderArgs};

use crate::group::Group;

/// The variables and their names, in the order of the names.
///
/// # Errors
/// candle's, if a thread has panicked with the map.
pub fn in_order(variables: &VarMap) -> Result<Vec<(String, Var)>> {
    let map = variables.data().lock().map_err(|_| poisoned())?;
    let all = map.iter().map(|(name, var)| (name.clone(), var.clone()));
    let mut all: Vec<_> = all.collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

/// Gives all ranks rank 0's values. All have the same variables.
///
/// # Errors
/// [`Error::Tensor`](crate::Error::Tensor) if ranks have another number of them; another name, type
/// or shape is an [`Error::Call`](crate::Error::Call), which names the ranks.
pub fn start_alike(group: &Group, variables: &VarMap) -> Result<()> {
    for (name, var) in agreed(group, variables)? {
        var.set(&group.broadcast(&var, 0, &name)?)?;
    }
    Ok(())
}

/// Checks that all ranks have rank 0's values, bit by bit.
///
/// # Errors
/// [`Error::Tensor`](crate::Error::Tensor), on all ranks, with the first variable that differs and
/// the rank; and those of [`start_alike`].
pub fn check_alike(group: &Group, variables: &VarMap) -> Result<()> {
    let all = agreed(group, variables)?;
    let mut differs = all.len();
    for (at, (name, var)) in all.iter().enumerate().rev() {
        if bits(&group.broadcast(var, 0, name)?)? != bits(var)? {
            differs = at;
        }
    }
    let by_rank = gathered(group, differs, "what differs")?;
    let mut found = by_rank.iter().enumerate();
    match found.find(|&(_, &at)| at < all.len()) {
        None => Ok(()),
        Some((rank, &at)) => {
            let problem = format!("rank {rank}'s is not rank 0's");
            Err(group.refuse("check_alike", &all[at].0, problem))
        }
    }
}

/// The variables in order, if all ranks have the same number.
fn agreed(group: &Group, variables: &VarMap) -> Result<Vec<(String, Var)>> {
    let all = in_order(variables)?;
    let counts = gathered(group, all.len(), "number of variables")?;
    let mut others = counts.iter().enumerate();
    match others.find(|&(_, &count)| count != all.len()) {
        None => Ok(all),
        Some((rank, count)) => {
            let problem = format!("there are {} here, and {count} on rank {rank}", all.len());
            Err(group.refuse("comparison", "the variables", problem))
        }
    }
}

/// A number of each rank.
fn gathered(group: &Group, own: usize, name: &str) -> Result<Vec<usize>> {
    let own = Tensor::new(&[own as i64], &Device::Cpu)?;
    let all = group.all_gather(&own, 0, name)?.to_vec1::<i64>()?;
    Ok(all.into_iter().map(|it| it as usize).collect())
}

/// The bits of the values, converted without loss: floats to f64, integers to i64. NaNs keep their
/// bits.
fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    let tensor = tensor.flatten_all()?;
    if tensor.dtype().is_int() {
        let values = tensor.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        return Ok(values.into_iter().map(|it| it as u64).collect());
    }
    let values = tensor.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

fn poisoned() -> candle_core::Error {
    candle_core::Error::Msg("a thread has panicked while it used the variables".to_owned())
}

/// Weights that are trained: what a model loads becomes a variable of a `VarMap`.
pub struct Trainable<B> {
    weights: B,
    variables: VarMap,
}

impl<B: Backend + 'static> Trainable<B> {
    /// A builder of candle's, for models. The variables begin with these weights.
    pub fn builder(
        weights: B,
        variables: &VarMap,
        dtype: DType,
        device: &Device,
    ) -> VarBuilderArgs<'static, Self> {
        let variables = variables.clone();
        VarBuilderArgs::new_with_args(Self { weights, variables }, dtype, device)
    }

    /// The variable of this name, or a new one.
    fn variable(&self, name: &str, load: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let mut map = self.variables.data().lock().map_err(|_| poisoned())?;
        if let Some(var) = map.get(name) {
            return Ok(var.as_tensor().clone());
        }
        let var = Var::from_tensor(&load()?)?;
        let tensor = var.as_tensor().clone();
        map.insert(name.to_owned(), var);
        Ok(tensor)
    }
}

impl<B: Backend + 'static> Backend for Trainable<B> {
    type Hints = B::Hints;

    fn get(
        &self,
        shape: Shape,
        name: &str,
        hints: B::Hints,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        self.variable(name, || self.weights.get(shape, name, hints, dtype, device))
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.variable(name, || self.weights.get_unchecked(name, dtype, device))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.weights.contains_tensor(name)
    }
}
