//! What a call asks for, without its buffers.

use crate::buffer::Region;
use crate::engine::Task;
use spark_ccl_types::{DType, Operation, Reduction, Signature};

/// A call without its buffers.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) operation: Operation,
    pub(crate) reduction: Reduction,
    /// The root, or the peer that is sent to.
    pub(crate) root: usize,
    /// The peer that is received from.
    pub(crate) from: usize,
    pub(crate) in_place: bool,
    /// What is said about all calls' paths does not concern it.
    pub(crate) by_any_path: bool,
    /// Elements of an allocation.
    pub(crate) elements: usize,
    pub(crate) tables: Option<Box<Tables>>,
}

/// Counts and displacements of an `all_to_all_v`, in elements.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) send_counts: Vec<usize>,
    pub(crate) send_displs: Vec<usize>,
    pub(crate) recv_counts: Vec<usize>,
    pub(crate) recv_displs: Vec<usize>,
}

impl Spec {
    pub(crate) fn new(operation: Operation) -> Self {
        Self {
            operation,
            reduction: Reduction::NONE,
            root: 0,
            from: 0,
            in_place: false,
            by_any_path: false,
            elements: 0,
            tables: None,
        }
    }

    pub(crate) fn reducing(operation: Operation, reduction: Reduction) -> Self {
        Self {
            reduction,
            ..Self::new(operation)
        }
    }

    /// The task of a call with these buffers, unchecked.
    #[inline]
    pub(super) fn task(&self, dtype: DType, (input, output): (Region, Region)) -> Task {
        Task {
            signature: self.signature(dtype, 0),
            input,
            output,
            reduction: self.reduction,
            input_block: None,
        }
    }

    #[inline]
    pub(super) fn signature(&self, dtype: DType, count: usize) -> Signature {
        let root = if self.operation.is_rooted() {
            self.root as u32
        } else {
            0
        };
        Signature {
            operation: self.operation,
            dtype,
            op: self.reduction.code,
            in_place: false,
            root,
            count: count as u64,
            place: 0,
        }
    }

    pub(crate) fn root(self, root: usize) -> Self {
        Self { root, ..self }
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
