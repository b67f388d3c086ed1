//! Tensors that one rank sends to another, or to all. They go by way of the host, and have no
//! gradients: the caller that sends activations sends their gradients back.

use candle_core::{DType, Device, Result, Shape, Tensor, WithDType};
use spark_ccl::{Element, bf16, f16};

use crate::group::Group;
use crate::storage::no_such_type;

/// Evaluates an expression in which `$type` is the Rust type of a candle type.
macro_rules! typed {
    ($dtype:expr, $type:ident => $typed:expr, $other:expr) => {
        match $dtype {
            DType::F32 => {
                type $type = f32;
                $typed
            }
            DType::BF16 => {
                type $type = bf16;
                $typed
            }
            DType::F16 => {
                type $type = f16;
                $typed
            }
            DType::F64 => {
                type $type = f64;
                $typed
            }
            DType::U8 => {
                type $type = u8;
                $typed
            }
            DType::U32 => {
                type $type = u32;
                $typed
            }
            DType::I64 => {
                type $type = i64;
                $typed
            }
            other => Err($other(other)),
        }
    };
}

impl Group {
    /// Rank `root`'s tensor, on all ranks. The other ranks' tensors give type and shape only.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast(&self, tensor: &Tensor, root: usize, name: &str) -> Result<Tensor> {
        let no_such = |dtype| no_such_type(self, "broadcast", name, dtype);
        typed!(tensor.dtype(), T => {
            let values = values::<T>(tensor)?;
            let bytes = size_of_val(&values[..]);
            let values = self.call("broadcast", name, bytes, |comm| {
                comm.broadcast_in_place(values, root).named(name).run()
            })?;
            Tensor::from_vec(values, tensor.shape(), tensor.device())
        }, no_such)
    }

    /// Sends a tensor to a rank, which calls [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn send(&self, tensor: &Tensor, to: usize, name: &str) -> Result<()> {
        let no_such = |dtype| no_such_type(self, "send", name, dtype);
        typed!(tensor.dtype(), T => {
            let values = values::<T>(tensor)?;
            let bytes = size_of_val(&values[..]);
            self.call("send", name, bytes, |comm| {
                comm.send(&values[..], to).named(name).run()
            })
        }, no_such)
    }

    /// Receives a tensor of this shape and type from a rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); also if the sender's type or count is another one.
    pub fn recv(
        &self,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
        from: usize,
        name: &str,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let no_such = |dtype| no_such_type(self, "recv", name, dtype);
        typed!(dtype, T => {
            let room = vec![T::default(); shape.elem_count()];
            let values = self.call("recv", name, 0, |comm| {
                comm.recv(room, from).named(name).run()
            })?;
            Tensor::from_vec(values, shape, device)
        }, no_such)
    }
}

fn values<T: Element + WithDType>(tensor: &Tensor) -> Result<Vec<T>> {
    tensor.flatten_all()?.to_vec1()
}
