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
    /// The sum, divided by the number of ranks.
    Avg,
    /// The sum of each rank's elements times its own factor.
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

/// A sum with a factor, made by [`Communicator::pre_mul_sum`] for that communicator.
#[derive(Debug)]
pub struct PreMulSum {
    pub(crate) code: raw::RedOp,
    pub(crate) dtype: DType,
    pub(crate) communicator: u64,
}

impl Communicator {
    /// Makes a sum that multiplies this rank's elements, of type `T`, by a factor first.
    ///
    /// # Errors
    ///
    /// NCCL's.
    pub fn pre_mul_sum<T: Element>(&self, mut factor: T) -> Result<PreMulSum, Error> {
        let operation = self.begin("ncclRedOpCreatePreMulSum")?;
        let mut code = 0;
        let dtype = T::DTYPE;
        // SAFETY: the communicator lives; the factor is of that type, and is read before this returns.
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

    /// Frees a reduction, which otherwise lasts as long as the communicator. Calls that have returned
    /// do not need it any more.
    ///
    /// # Errors
    ///
    /// It is another communicator's.
    #[expect(clippy::needless_pass_by_value, reason = "it must not be used again")]
    pub fn destroy_op(&self, op: PreMulSum) -> Result<(), Error> {
        let operation = self.begin("ncclRedOpDestroy")?;
        operation.own("reduction", op.communicator)?;
        // SAFETY: the communicator lives, and made it.
        let code = unsafe { (operation.api().ncclRedOpDestroy)(op.code, operation.raw) };
        operation.finish(code)
    }
}
