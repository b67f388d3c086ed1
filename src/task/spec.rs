//! Specs: calls without their buffers and without types.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_types::{DType, Operation, Reduction, Signature};

use super::Task;
use crate::memory::blocks::Blocks;
use crate::memory::buffer::Region;

/// A call without its buffers.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) operation: Operation,
    pub(crate) dtype: DType,
    pub(crate) reduction: Reduction,
    /// Where the reduction's factor is, if it is in memory of a device.
    pub(crate) factor_at: Option<u64>,
    /// 0 without a root.
    pub(crate) root: usize,
    /// The peer that is sent to.
    pub(crate) to: usize,
    /// The peer that is received from.
    pub(crate) from: usize,
    pub(crate) in_place: bool,
    /// The code of the name that the user gives it; 0 without one.
    pub(crate) name: u32,
    /// `SPARK_CCL_PATH=zero-copy` does not bind it.
    pub(crate) by_any_path: bool,
    /// The library itself makes it, and not the user.
    pub(crate) is_internal: bool,
    /// Elements of an allocation.
    pub(crate) elements: usize,
    /// The call's timeout; `None` for the one that the communicator has when it begins.
    pub(crate) limit: Option<Duration>,
    pub(crate) tables: Option<Arc<Tables>>,
}

/// The blocks of an `all_to_all_v`.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) send: Blocks,
    pub(crate) recv: Blocks,
}

impl Spec {
    pub(crate) fn new(operation: Operation, dtype: DType) -> Self {
        Self {
            operation,
            dtype,
            reduction: Reduction::NONE,
            factor_at: None,
            root: 0,
            to: 0,
            from: 0,
            in_place: false,
            name: 0,
            by_any_path: false,
            is_internal: false,
            elements: 0,
            limit: None,
            tables: None,
        }
    }

    /// Marks it as the library's own: it is not counted as the user's, and may take any path.
    pub(crate) fn internal(self) -> Self {
        Self {
            by_any_path: true,
            is_internal: true,
            ..self
        }
    }

    pub(crate) fn reducing(operation: Operation, dtype: DType, reduction: Reduction) -> Self {
        Self {
            reduction,
            ..Self::new(operation, dtype)
        }
    }

    /// The task of a call with these buffers, unchecked.
    #[inline]
    pub(crate) fn task(&self, (input, output): (Region, Region)) -> Task {
        Task {
            signature: Signature {
                operation: self.operation,
                dtype: self.dtype,
                op: self.reduction.code(),
                in_place: false,
                root: self.root as u32,
                name: self.name,
                count: 0,
                place: 0,
            },
            input,
            output,
            reduction: self.reduction,
            #[cfg(feature = "cuda")]
            factor_at: self.factor_at,
            in_place: self.in_place,
            input_block: None,
            by_any_path: self.by_any_path,
            is_internal: self.is_internal,
            limit: self.limit,
            to: self.to as u32,
            from: self.from as u32,
            tables: self.tables.clone(),
        }
    }

    pub(crate) fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }

    pub(crate) fn to(self, to: usize) -> Self {
        Self { to, ..self }
    }

    pub(crate) fn from(self, from: usize) -> Self {
        Self { from, ..self }
    }

    pub(crate) fn in_place(self) -> Self {
        Self {
            in_place: true,
            ..self
        }
    }
}
