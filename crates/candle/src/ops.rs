//! A group's calls on tensors, as operations of candle with their gradients.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::group::Group;
use crate::host;
use crate::storage::{Kind, elements};

/// A call, and the one that its gradient needs.
struct Collective {
    group: Group,
    tensor: Arc<str>,
    forward: Kind,
    backward: Kind,
}

impl Collective {
    fn apply(self, tensor: &Tensor) -> Result<Tensor> {
        // With one rank, sum and part are the tensor itself; so are their gradients.
        let is_alone = self.group.size() == 1;
        match tensor.track_op() {
            _ if is_alone => Ok(tensor.clone()),
            true => tensor.apply_op1(self),
            false if self.forward == Kind::Same => Ok(tensor.clone()),
            false => tensor.apply_op1_no_bwd(&self),
        }
    }
}

impl CustomOp1 for Collective {
    fn name(&self) -> &'static str {
        self.forward.name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        host::run(&self.group, self.forward, &self.tensor, storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        crate::device::run(&self.group, self.forward, &self.tensor, storage, layout)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let backward = Self {
            group: self.group.clone(),
            tensor: format!("gradient of {}", self.tensor).into(),
            forward: self.backward,
            backward: self.forward,
        };
        backward.apply(&gradient.contiguous()?).map(Some)
    }
}

/// Calls on tensors. The last argument is the tensor's name, the same on all ranks, which errors
/// show. Tensors are contiguous, and of f32, bf16, f16, f64, u8, u32 or i64.
impl Group {
    /// The sum of all ranks' tensors, on all ranks. The gradient passes: every rank computes the
    /// same of the sum, so the sum's gradient, which all have, is that of each rank's tensor.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor) for a tensor that calls do not take, and
    /// [`Error::Call`](crate::Error::Call): also where ranks' types or shapes differ.
    pub fn all_reduce(&self, tensor: &Tensor, name: &str) -> Result<Tensor> {
        self.collective(tensor, name, Kind::Sum, Kind::Same)
    }

    /// The same tensor, which all ranks have alike, for what each rank computes with a part of the
    /// model. The gradient is the sum of the ranks'.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), in backward.
    pub fn fan_out(&self, tensor: &Tensor, name: &str) -> Result<Tensor> {
        self.collective(tensor, name, Kind::Same, Kind::Sum)
    }

    /// All ranks' tensors, joined along a dimension, on all ranks. The gradient is a rank's part:
    /// all compute the same of the whole.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&self, tensor: &Tensor, dim: usize, name: &str) -> Result<Tensor> {
        self.along(tensor, dim, name, Kind::Gather, Kind::Part)
    }

    /// [`all_gather`](Self::all_gather) for what each rank computes with a part of the model. The
    /// gradient is a rank's part of the ranks' sum.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn fan_out_gathered(&self, tensor: &Tensor, dim: usize, name: &str) -> Result<Tensor> {
        self.along(tensor, dim, name, Kind::Gather, Kind::Scatter)
    }

    /// A rank's part, along a dimension, of the sum of all ranks' tensors. The gradient is all
    /// ranks', joined.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and [`Error::Division`](crate::Error::Division).
    pub fn reduce_scatter(&self, tensor: &Tensor, dim: usize, name: &str) -> Result<Tensor> {
        self.along(tensor, dim, name, Kind::Scatter, Kind::Gather)
    }

    /// A rank's part, along a dimension, of a tensor that all ranks have alike. The gradient is all
    /// ranks', joined.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Self::reduce_scatter).
    pub fn part(&self, tensor: &Tensor, dim: usize, name: &str) -> Result<Tensor> {
        self.along(tensor, dim, name, Kind::Part, Kind::Gather)
    }

    fn collective(
        &self,
        tensor: &Tensor,
        name: &str,
        forward: Kind,
        backward: Kind,
    ) -> Result<Tensor> {
        let collective = Collective {
            group: self.clone(),
            tensor: name.into(),
            forward,
            backward,
        };
        collective.apply(tensor)
    }

    /// A call that joins or divides along a dimension.
    fn along(
        &self,
        tensor: &Tensor,
        dim: usize,
        name: &str,
        forward: Kind,
        backward: Kind,
    ) -> Result<Tensor> {
        if dim == 0 || self.size() == 1 {
            return self.collective(tensor, name, forward, backward);
        }
        if dim >= tensor.rank() {
            let problem = format!(
                "it has no dimension {dim}: its shape is {:?}",
                tensor.dims()
            );
            return Err(self.refuse(forward.name(), name, problem));
        }
        elements(self, forward, name, tensor.layout())?;
        let first = tensor.transpose(0, dim)?.contiguous()?;
        let result = self.collective(&first, name, forward, backward)?;
        result.transpose(0, dim)?.contiguous()
    }
}
