//! Kernels that may start before the one ahead of them in their stream has ended.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

use crate::current::make_current;
use crate::driver::function;
use crate::images::capability;
use crate::pack::Capability;
use crate::{Error, Feature, Function, checked, require};

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const MAY_START_EARLY: u32 = 6;

/// `CUlaunchAttribute`, which cudarc lacks for CUDA before 11.8.
#[repr(C)]
struct Attribute {
    id: u32,
    pad: [u8; 4],
    /// A union; for this attribute, a number of 32 bits.
    value: [u64; 8],
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: sys::CUstream,
    attributes: *mut Attribute,
    count: u32,
}

type LaunchKernelEx = unsafe extern "C" fn(
    *const Config,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> sys::CUresult;

/// Launches kernels so that the GPU may start them before the kernel ahead of them in their stream
/// has ended (programmatic dependent launch), also where they are captured into graphs. It does so
/// once all threads of that kernel have executed `griddepcontrol.launch_dependents`, or have ended.
#[derive(Debug, Clone, Copy)]
pub struct DependentLaunch {
    launch_kernel_ex: LaunchKernelEx,
}

impl DependentLaunch {
    /// `None` if the GPU (of a compute capability below 9.0) or the driver does not do that.
    /// Drivers for CUDA before 12.3 do not: kernels in graphs always wait there for the whole of
    /// others.
    ///
    /// # Errors
    /// The driver fails.
    pub fn find(context: &Arc<CudaContext>) -> Result<Option<Self>, Error> {
        let device = make_current(context)?;
        if capability(context, device)? < Capability(9, 0)
            || require(Feature::DependentLaunch).is_err()
        {
            return Ok(None);
        }
        // SAFETY: the function has this type in every version of CUDA that has it.
        let launch_kernel_ex = unsafe { function("cuLaunchKernelEx")? };
        Ok(Some(Self { launch_kernel_ex }))
    }

    /// Launches a kernel on a grid of this many CTAs, and threads of each.
    ///
    /// # Safety
    /// - Each parameter must point to a value of the layout that the kernel has for it. All memory
    ///   that they name must be there until the kernel has ended.
    /// - Each thread of the kernel must execute `griddepcontrol.wait` before it accesses memory
    ///   other than its parameters.
    ///
    /// # Errors
    /// The driver fails.
    pub unsafe fn launch(
        self,
        stream: &CudaStream,
        function: &Function,
        [ctas, threads]: [u32; 2],
        parameters: &mut [*mut c_void],
    ) -> Result<(), Error> {
        let device = make_current(stream.context())?;
        let mut attribute = Attribute {
            id: MAY_START_EARLY,
            pad: [0; 4],
            value: [0; 8],
        };
        attribute.value[0] = 1;
        let config = Config {
            grid: [ctas, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            stream: stream.cu_stream(),
            attributes: &raw mut attribute,
            count: 1,
        };
        // SAFETY: `config` and its one attribute are local variables of the driver's layout, and
        // `parameters` is borrowed; the driver reads them before it returns. The caller gives each
        // parameter the layout that the kernel has for it, and keeps the memory that they name
        // until the kernel has ended. Each thread of the kernel waits before it uses memory.
        // `stream` and `function` are borrowed, so neither has been destroyed.
        let launched = unsafe {
            (self.launch_kernel_ex)(
                &raw const config,
                function.handle(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        checked("cuLaunchKernelEx", device, launched.result())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_driver_has_them() {
        assert_eq!(size_of::<Attribute>(), 72);
        assert_eq!(offset_of!(Attribute, value), 8);
        assert_eq!(offset_of!(Config, stream), 32);
        assert_eq!(offset_of!(Config, attributes), 40);
        assert_eq!(offset_of!(Config, count), 48);
        assert_eq!(size_of::<Config>(), 56);
    }
}
