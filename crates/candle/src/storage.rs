//! The common part of calls on tensors of the host and of devices: the kinds of calls, and checks
//! of their tensors.

use std::ops::Range;

use candle_core::{DType, Layout, Result, Shape};

use crate::group::Group;

/// The result of a call, from the tensors of all ranks. Tensors are joined and divided along the
/// first dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The rank's own tensor.
    Same,
    /// The sum of all ranks' tensors, on all ranks.
    Sum,
    /// All ranks' tensors, joined, on all ranks.
    Gather,
    /// The rank's part of the sum of all ranks' tensors.
    Scatter,
    /// The rank's part of its own tensor.
    Part,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Same => "copy",
            Self::Sum => "all_reduce",
            Self::Gather => "all_gather",
            Self::Scatter => "reduce_scatter",
            Self::Part => "part",
        }
    }

    /// The shape of the result.
    fn shape(self, group: &Group, tensor: &str, shape: &Shape) -> Result<Shape> {
        let mut dims = shape.dims().to_vec();
        match (self, dims.first_mut()) {
            (Self::Same | Self::Sum, _) => {}
            (_, None) => {
                let problem = "a tensor with a dimension is needed, and it is a number".to_owned();
                return Err(group.refuse(self.name(), tensor, problem));
            }
            (Self::Gather, Some(first)) => *first *= group.size(),
            (Self::Scatter | Self::Part, Some(first)) => {
                *first = group.share(tensor, *first, "rows")?.len();
            }
        }
        Ok(Shape::from_dims(&dims))
    }
}

/// A call that is checked, as far as one rank can.
pub(crate) struct Checked {
    /// The tensor's elements in its storage.
    pub(crate) elements: Range<usize>,
    /// The shape of the result.
    pub(crate) shape: Shape,
}

impl Checked {
    pub(crate) fn new(group: &Group, kind: Kind, tensor: &str, layout: &Layout) -> Result<Self> {
        Ok(Self {
            elements: elements(group, kind, tensor, layout)?,
            shape: kind.shape(group, tensor, layout.shape())?,
        })
    }
}

/// A tensor's elements in its storage, if they are contiguous.
pub(crate) fn elements(
    group: &Group,
    kind: Kind,
    tensor: &str,
    layout: &Layout,
) -> Result<Range<usize>> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        let problem = format!(
            "a contiguous tensor is needed, and this one has shape {:?} and strides {:?}: call \
             `contiguous` before",
            layout.dims(),
            layout.stride()
        );
        return Err(group.refuse(kind.name(), tensor, problem));
    };
    Ok(start..end)
}

/// The error of a type that calls do not take.
pub(crate) fn no_such_type(
    group: &Group,
    operation: &'static str,
    tensor: &str,
    dtype: DType,
) -> candle_core::Error {
    let problem = format!("it has elements of {dtype:?}; f32, bf16, f16, f64, u8, u32 and i64 go");
    group.refuse(operation, tensor, problem)
}
