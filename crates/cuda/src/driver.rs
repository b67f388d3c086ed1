//! Whether the driver is there.

use std::error::Error as _;

use libloading::Library;
use once_cell::race::OnceBox;

use crate::Error;

/// Every function of the driver that this project calls, mostly through cudarc. All are in CUDA 11.4.
const USED: &[&str] = &[
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceCanAccessPeer",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetDefaultMemPool",
    "cuMemPoolSetAccess",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
];

/// Looks for the driver, once. After it has succeeded, cudarc finds all that this project calls.
///
/// # Errors
/// There is no driver, or it is too old.
pub fn open() -> Result<(), Error> {
    // A forked child has not got the thread that may be at it; to look twice does no harm.
    static FOUND: OnceBox<Result<(), Error>> = OnceBox::new();
    FOUND.get_or_init(|| Box::new(look())).clone()
}

fn look() -> Result<(), Error> {
    let library = library()?;
    for symbol in USED {
        // SAFETY: it is looked for, not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(*symbol) }.is_err() {
            return Err(Error::Symbol { symbol });
        }
    }
    std::mem::forget(library);
    Ok(())
}

fn library() -> Result<Library, Error> {
    // SAFETY: the driver's initialisers only set up its own state.
    let open = |name| unsafe { Library::new(name) };
    // As cudarc: in a folder for linking, the first name may be another library than the second.
    let library = open("libcuda.so").or_else(|_| open("libcuda.so.1"));
    library.map_err(|error| Error::Library {
        // The loader's own words are the source.
        reason: error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string),
    })
}

/// A function of the driver that cudarc takes in a later version only.
///
/// # Safety
/// It has the type `F`.
pub(crate) unsafe fn function<F: Copy>(symbol: &'static str) -> Result<F, Error> {
    open()?;
    // SAFETY: as the caller promises; the driver stays loaded, since `open` has succeeded.
    let found = unsafe { library()?.get::<F>(symbol).map(|found| *found) };
    found.map_err(|_| Error::Symbol { symbol })
}
