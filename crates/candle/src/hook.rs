//! Gradients that are handed over while backward still runs. Knows no communicator.

use std::fmt;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::copy::copied;

/// Takes gradients as backward makes them: those of the last layers come first.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use candle_core::{Device, Tensor, Var};
/// use spark_ccl_candle::Hook;
///
/// # fn main() -> candle_core::Result<()> {
/// let names = Arc::new(Mutex::new(Vec::new()));
/// let seen = Arc::clone(&names);
/// let hook = Hook::new(move |name, gradient: &Tensor| {
///     seen.lock().unwrap().push((name.to_owned(), gradient.to_vec1::<f32>()?));
///     Ok(())
/// });
/// let weight = Var::new(&[2_f32, 3.], &Device::Cpu)?;
/// let used = hook.watch("weight", &weight)?;
/// let gradients = used.sqr()?.sum_all()?.backward()?;
/// assert_eq!(*names.lock().unwrap(), [("weight".to_owned(), vec![4., 6.])]);
/// // candle's own store has it, too.
/// assert_eq!(gradients.get(&weight).unwrap().to_vec1::<f32>()?, [4., 6.]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Hook(Arc<Take>);

type Take = dyn Fn(&str, &Tensor) -> Result<()> + Send + Sync;

impl Hook {
    /// Calls `take` with the name of a parameter and its gradient. An error ends backward.
    pub fn new(take: impl Fn(&str, &Tensor) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// The parameter for one forward pass, in a new graph node: candle reports gradients of nodes
    /// only. That copies it. If the result is used twice in one pass, its gradient is the sum of
    /// both; if this is called twice, each has its own gradient.
    ///
    /// # Errors
    /// candle's.
    pub fn watch(&self, name: &str, parameter: &Tensor) -> Result<Tensor> {
        if !parameter.track_op() {
            return Ok(parameter.clone());
        }
        parameter.contiguous()?.apply_op1(Watched {
            name: name.to_owned(),
            hook: self.clone(),
        })
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}

/// A copy of a parameter.
struct Watched {
    name: String,
    hook: Hook,
}

impl CustomOp1 for Watched {
    fn name(&self) -> &'static str {
        "watched parameter"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        copied(storage, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        copied(storage, layout)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        (self.hook.0)(&self.name, gradient)?;
        Ok(Some(gradient.clone()))
    }
}
