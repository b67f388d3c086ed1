//! The optimizer's state of a rank: all tensors, or its share of each bucket (ZeRO-1). Knows no
//! calls.

use std::ops::Range;

use crate::agreement::{Complaint, Outcome};
use crate::buckets::{Buckets, Sharing};
use crate::model::{Model, TensorInfo};
use crate::optimizer::Optimizer;
use crate::parameters::{Parameters, bytes_of};
use crate::values::{Number, Values, each};
use crate::world::World;

/// A part of a tensor, with all that the optimizer knows about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Share {
    /// Its elements within the tensor.
    pub(crate) range: Range<usize>,
    /// The parameters, unrounded.
    pub(crate) parameters: Vec<f32>,
    /// Each of the optimizer's states, as long as the parameters.
    pub(crate) states: Vec<Vec<f32>>,
}

/// This rank's share of each tensor, which may be empty.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) by_tensor: Vec<Share>,
}

impl Shares {
    /// The shares of what the buckets own, with the present parameters and no state.
    pub(crate) fn new(
        buckets: &Buckets,
        parameters: &impl Parameters,
        optimizer: &impl Optimizer,
    ) -> Outcome<Self> {
        let mut by_tensor = Vec::new();
        for (tensor, info) in buckets.model().tensors().iter().enumerate() {
            let (bucket, part) = buckets.plan().place(tensor);
            let range = within(&buckets.owned(bucket), &part.range());
            let mut values = Values::zeros(info.dtype, info.len()).map_err(Complaint::from)?;
            let bytes = bytes_of(parameters, tensor, info)?;
            values.bytes_mut().copy_from_slice(&bytes);
            by_tensor.push(Share {
                parameters: each!(Values, &values, it => as_f32(&it[range.clone()])),
                states: vec![vec![0.0; range.len()]; optimizer.states().len()],
                range,
            });
        }
        Ok(Self { by_tensor })
    }

    /// Has the optimizer change this rank's share of a tensor. `gradients` are those of the share.
    pub(crate) fn update(
        &mut self,
        optimizer: &impl Optimizer,
        updates: u64,
        (tensor, info): (usize, &TensorInfo),
        gradients: &[f32],
    ) -> &[f32] {
        let share = &mut self.by_tensor[tensor];
        let states = &mut share.states;
        optimizer.update(updates, info, &mut share.parameters, gradients, states);
        &share.parameters
    }

    /// The bytes of this rank's state.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = self.by_tensor.iter();
        let numbers = numbers.map(|it| it.parameters.len() * (1 + it.states.len()));
        numbers.sum::<usize>() * size_of::<f32>()
    }

    /// The elements of each tensor that this rank saves: one rank saves each element.
    pub(crate) fn saved(&self, model: &Model, sharing: Sharing, world: World) -> Vec<Range<usize>> {
        if sharing == Sharing::Sharded {
            return self
                .by_tensor
                .iter()
                .map(|share| share.range.clone())
                .collect();
        }
        let own = world.own(model.tensors().iter().map(TensorInfo::len).sum());
        let mut end = 0;
        let tensors = model.tensors().iter().map(|info| {
            let begin = end;
            end += info.len();
            within(&own, &(begin..end))
        });
        tensors.collect()
    }
}

/// The common elements of `owned` and `part`, from the beginning of `part` on.
fn within(owned: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    let begin = owned.start.clamp(part.start, part.end) - part.start;
    let end = owned.end.clamp(part.start, part.end) - part.start;
    begin..end.max(begin)
}

/// Numbers as `f32`.
pub(crate) fn as_f32<T: Number>(values: &[T]) -> Vec<f32> {
    values.iter().map(|it| it.to_f32()).collect()
}

/// Writes numbers of any type.
pub(crate) fn round_into<T: Number>(own: &mut [T], numbers: &[f32]) {
    let pairs = own.iter_mut().zip(numbers);
    pairs.for_each(|(own, it)| *own = T::from_f32(*it));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_overlap_with_what_is_owned() {
        let cases = [
            (0..10, 2..5, 0..3),
            (3..4, 2..5, 1..2),
            (4..9, 2..5, 2..3),
            (5..9, 2..5, 3..3),
            (0..2, 2..5, 0..0),
        ];
        for (owned, part, expected) in cases {
            assert_eq!(within(&owned, &part), expected, "{owned:?} {part:?}");
        }
    }
}
