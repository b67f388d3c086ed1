//! The memory of a bucket: registered, so that ranks of one host reduce it where it is. Knows no
//! step.

use std::ops::Range;

use spark_ccl::{Communicator, DType, Registered};

use crate::error::Error;
use crate::values::{Number, dtype_of, each, not_trained};

/// The numbers of a bucket.
#[derive(Debug)]
pub(crate) enum Contents {
    F32(Registered<f32>),
    F64(Registered<f64>),
    F16(Registered<spark_ccl::f16>),
    Bf16(Registered<spark_ccl::bf16>),
}

impl Contents {
    /// This many zeros. Collective.
    pub(crate) fn zeros(comm: &Communicator, dtype: DType, len: usize) -> Result<Self, Error> {
        match dtype {
            DType::F32 => Ok(comm.alloc(len).map(Self::F32)?),
            DType::F64 => Ok(comm.alloc(len).map(Self::F64)?),
            DType::F16 => Ok(comm.alloc(len).map(Self::F16)?),
            DType::Bf16 => Ok(comm.alloc(len).map(Self::Bf16)?),
            other => Err(not_trained(other)),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        each!(Contents, self, numbers => dtype_of(numbers))
    }

    pub(crate) fn len(&self) -> usize {
        each!(Contents, self, numbers => numbers.len())
    }

    /// Their bytes, in this machine's order.
    pub(crate) fn bytes(&self) -> &[u8] {
        each!(Contents, self, numbers => bytemuck::cast_slice(numbers))
    }

    /// The numbers, if they are of this type.
    pub(crate) fn get<T: Number>(&self) -> Option<&[T]> {
        (self.dtype() == T::DTYPE).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// The numbers, if they are of this type.
    pub(crate) fn get_mut<T: Number>(&mut self) -> Option<&mut [T]> {
        let is_of_type = self.dtype() == T::DTYPE;
        is_of_type.then(move || each!(Contents, self, numbers => bytemuck::cast_slice_mut(numbers)))
    }

    /// Writes zeros into this part.
    pub(crate) fn clear(&mut self, range: Range<usize>) {
        each!(Contents, self, numbers => numbers[range].fill(bytemuck::Zeroable::zeroed()));
    }
}

macro_rules! from {
    ($($variant:ident $type:ty),*) => {$(
        impl From<Registered<$type>> for Contents {
            fn from(numbers: Registered<$type>) -> Self {
                Self::$variant(numbers)
            }
        }
    )*};
}

from!(F32 f32, F64 f64, F16 spark_ccl::f16, Bf16 spark_ccl::bf16);
