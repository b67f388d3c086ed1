//! Factors of sums, by the numbers of the reductions that the user has made with them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use spark_ccl::{DType, ReduceOp};
use spark_ccl_abi::arguments::reduction;
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_log::Mutex;

use crate::types::ncclRedOp_t;

/// The first number after NCCL's own reductions.
const FIRST: c_int = 5;

/// The next number. No number is used twice, not even by two communicators.
static NEXT: AtomicI32 = AtomicI32::new(FIRST);

/// The factors of one communicator, by their numbers.
#[derive(Default)]
pub(crate) struct Factors(Mutex<BTreeMap<ncclRedOp_t, Factor>>);

/// A factor, and its type.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    pub(crate) dtype: DType,
    pub(crate) value: Value,
}

/// Where a factor is.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    /// The factor's bytes.
    Bytes([u8; 8]),
    /// The factor's address in a GPU's memory, from which each call reads it.
    At(usize),
}

impl Factors {
    /// Gives a factor a number.
    pub(crate) fn insert(&self, factor: Factor) -> Result<ncclRedOp_t, Failure> {
        let next = |number: c_int| number.checked_add(1);
        // Pairs with nothing: only the number counts.
        let number = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let number = number
            .map_err(|_| Failure::new(Kind::System, "no number is left for another ncclRedOp_t"))?;
        self.0.lock().insert(number, factor);
        Ok(number)
    }

    /// Removes a number.
    pub(crate) fn remove(&self, op: ncclRedOp_t) -> Result<(), Failure> {
        let removed = self.0.lock().remove(&op);
        removed.map(drop).ok_or_else(|| unknown(op))
    }

    /// The reduction that a number stands for, with its factor if it has one, for elements of a
    /// type.
    pub(crate) fn find(&self, op: ncclRedOp_t, dtype: DType) -> Result<(ReduceOp, Value), Failure> {
        if op < FIRST {
            return Ok((reduction(op, "ncclRedOp_t")?, Value::Bytes([0; 8])));
        }
        let made = self.0.lock().get(&op).copied();
        let Factor { dtype: own, value } = made.ok_or_else(|| unknown(op))?;
        if own != dtype {
            return Err(Failure::invalid(format!(
                "the ncclRedOp_t {op} has a factor of type {own}, and the call elements of {dtype}"
            )));
        }
        Ok((ReduceOp::PreMulSum, value))
    }
}

fn unknown(op: ncclRedOp_t) -> Failure {
    Failure::invalid(format!(
        "{op} is no ncclRedOp_t of this communicator: it was destroyed, or belongs to another one"
    ))
}
