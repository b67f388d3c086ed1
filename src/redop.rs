//! Reduction operators as users name them, and what the engine makes of them.

use spark_ccl_compute::{DType, Element, ReduceOp, Scale};

/// How elements of different ranks become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RedOp<T> {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// The smallest; NaN wins over numbers.
    Min,
    /// The largest; NaN wins over numbers.
    Max,
    /// Mean over the ranks. Floats are multiplied by 1/size before they are summed, so that sums of
    /// half precision cannot overflow; integers are summed and then divided, rounding towards zero.
    Avg,
    /// Every rank's elements times that rank's factor, summed.
    PreMulSum(T),
}

/// The number of [`RedOp::PreMulSum`] in signatures.
const PRE_MUL_SUM: u8 = 5;

/// [`RedOp`] without its type: elementwise operation, factor on input, division at the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reduction {
    pub(crate) op: ReduceOp,
    pub(crate) scale: Scale,
    pub(crate) divisor: Option<u64>,
    /// Number for signatures, NCCL's where it has one.
    pub(crate) code: u8,
    /// The bytes of a factor, as its type has them.
    #[cfg(feature = "cuda")]
    pub(crate) factor: [u8; 8],
}

impl Reduction {
    /// For collectives that only move data.
    pub(crate) const NONE: Self = Self {
        op: ReduceOp::Sum,
        scale: Scale::One,
        divisor: None,
        code: u8::MAX,
        #[cfg(feature = "cuda")]
        factor: [0; 8],
    };

    /// Whether ranks may scale their contributions differently.
    pub(crate) fn differs_by_rank(&self) -> bool {
        self.code == PRE_MUL_SUM
    }
}

impl<T: Element> RedOp<T> {
    pub(crate) fn lower(self, size: u32) -> Reduction {
        let plain = |op, code| Reduction {
            op,
            scale: Scale::One,
            divisor: None,
            code,
            #[cfg(feature = "cuda")]
            factor: [0; 8],
        };
        match self {
            Self::Sum => plain(ReduceOp::Sum, 0),
            Self::Prod => plain(ReduceOp::Prod, 1),
            Self::Max => plain(ReduceOp::Max, 2),
            Self::Min => plain(ReduceOp::Min, 3),
            Self::Avg if is_integer(T::DTYPE) => Reduction {
                divisor: Some(u64::from(size)),
                ..plain(ReduceOp::Sum, 4)
            },
            Self::Avg => Reduction {
                scale: Scale::Float(1.0 / f64::from(size)),
                ..plain(ReduceOp::Sum, 4)
            },
            Self::PreMulSum(factor) => Reduction {
                scale: factor.to_scale(),
                #[cfg(feature = "cuda")]
                factor: bytes(factor),
                ..plain(ReduceOp::Sum, PRE_MUL_SUM)
            },
        }
    }
}

#[cfg(feature = "cuda")]
fn bytes<T: Element>(factor: T) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&factor));
    bytes
}

fn is_integer(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::U64
    )
}
