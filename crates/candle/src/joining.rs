//! How ranks join a group whose tensors are on a device.

use candle_core::Device;
use spark_ccl::{Builder, Communicator, Error};

/// A builder of communicators for tensors of a device. For a GPU, context and number are candle's,
/// and the backend is the best that all ranks have, unless `SPARK_CCL_BACKEND` says otherwise. The
/// rank need not be the device's number.
///
/// A GPU's device must have a stream of its own, of `Device::new_cuda_with_stream`.
/// `Device::new_cuda` takes the per-thread default stream, which calls refuse.
///
/// # Errors
/// [`Error::Invalid`] where a communicator of the GPU was made before, with another context.
#[cfg_attr(
    not(feature = "cuda"),
    allow(clippy::unnecessary_wraps, reason = "for devices, it can fail")
)]
pub fn builder(device: &Device) -> Result<Builder, Error> {
    let builder = Communicator::builder();
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let context = device.cuda_stream().context().clone();
            spark_ccl::cuda::adopt_context(&context)?;
            let builder = builder.set("SPARK_CCL_DEVICE", &context.ordinal().to_string());
            match builder.get("SPARK_CCL_BACKEND") {
                Some(_) => Ok(builder),
                None => Ok(builder.backend(spark_ccl::Backend::Auto)),
            }
        }
        _ => Ok(builder),
    }
}
