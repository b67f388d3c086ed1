//! NCCL's reductions, and those made at run time.

use spark_ccl_types::{DType, Element};

use super::Communicator;
use crate::Error;
use crate::raw::{self, ncclRedOp_t, ncclScalarResidence_t};

/// How elements are reduced.
#[derive(Clone, Copy, Debug)]
pub enum RedOp<'a> {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The mean: of floats, the sum of products with 1/ranks; of integers, the sum, divided.
    Avg,
    /// The sum of the ranks' elements, each multiplied by its rank's factor.
    PreMulSum(&'a PreMulSum),
}

impl RedOp<'_> {
    pub(crate) fn code(self) -> raw::RedOp {
        match self {
            Self::Sum => ncclRedOp_t::ncclSum as raw::RedOp,
            Self::Prod => ncclRedOp_t::ncclProd as raw::RedOp,
            Self::Max => ncclRedOp_t::ncclMax as raw::RedOp,
            Self::Min => ncclRedOp_t::ncclMin as raw::RedOp,
            Self::Avg => ncclRedOp_t::ncclAvg as raw::RedOp,
            Self::PreMulSum(made) => made.code,
        }
    }
}

/// A sum with a factor, made by [`Communicator::pre_mul_sum`] for that communicator only.
#[derive(Debug)]
pub struct PreMulSum {
    pub(crate) code: raw::RedOp,
    pub(crate) dtype: DType,
    pub(crate) communicator: u64,
}

impl Communicator {
    /// Makes a sum that first multiplies this rank's elements, of type `T`, by a factor.
    ///
    /// # Errors
    ///
    /// Those of [`pre_mul_sum_of`](Self::pre_mul_sum_of).
    pub fn pre_mul_sum<T: Element>(&self, factor: T) -> Result<PreMulSum, Error> {
        let mut bytes = [0; 8];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&factor));
        self.pre_mul_sum_of(T::DTYPE, bytes)
    }

    /// [`pre_mul_sum`](Self::pre_mul_sum) of elements whose type is known at run time. The factor's
    /// bytes are the first ones; the rest is not used.
    ///
    /// # Errors
    ///
    /// The library is too old for the type; NCCL's.
    pub fn pre_mul_sum_of(&self, dtype: DType, factor: [u8; 8]) -> Result<PreMulSum, Error> {
        let operation = self.begin("ncclRedOpCreatePreMulSum")?;
        self.inner.library.reduces(dtype)?;
        let mut code = 0;
        // NCCL reads it as a number of its element type.
        let mut factor = u64::from_ne_bytes(factor);
        // SAFETY: `begin` returned the handle of a live communicator. `factor` has the type that
        // NCCL is told, and NCCL reads it before it returns; NCCL writes one number to `code`.
        let result = unsafe {
            (operation.api().ncclRedOpCreatePreMulSum)(
                &raw mut code,
                (&raw mut factor).cast(),
                dtype.code().into(),
                ncclScalarResidence_t::ncclScalarHostImmediate,
                operation.raw,
            )
        };
        operation.finish(result)?;
        Ok(PreMulSum {
            code,
            dtype,
            communicator: self.inner.number,
        })
    }

    /// Frees a reduction, which otherwise lives as long as the communicator. Calls that have
    /// returned no longer need it.
    ///
    /// # Errors
    ///
    /// It belongs to another communicator.
    #[expect(clippy::needless_pass_by_value, reason = "it must not be used again")]
    pub fn destroy_op(&self, op: PreMulSum) -> Result<(), Error> {
        let operation = self.begin("ncclRedOpDestroy")?;
        operation.check_owner("reduction", op.communicator)?;
        // SAFETY: `begin` returned the handle of a live communicator. `check_owner` has checked
        // that it made the reduction, which is consumed here, so it is freed only once.
        let code = unsafe { (operation.api().ncclRedOpDestroy)(op.code, operation.raw) };
        operation.finish(code)
    }
}
