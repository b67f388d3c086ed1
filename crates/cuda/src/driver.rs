//! Loads CUDA's driver, and checks that it has all functions that this project uses.

use std::error::Error as _;

use libloading::Library;
use once_cell::race::OnceBox;

use crate::Error;

/// All driver functions that this project calls, mostly through cudarc. CUDA 11.4 has all of them.
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

/// Looks for the driver, once. After success, cudarc finds every function that this project calls.
///
/// # Errors
/// There is no driver, or it is too old.
pub fn open() -> Result<(), Error> {
    // Not a lock: a forked child may lack the thread that holds it. A second look is harmless.
    static FOUND: OnceBox<Result<(), Error>> = OnceBox::new();
    FOUND.get_or_init(|| Box::new(look())).clone()
}

fn look() -> Result<(), Error> {
    let library = library()?;
    for symbol in USED {
        // SAFETY: the symbol is only looked up, not called.
        if unsafe { library.get::<unsafe extern "C" fn()>(*symbol) }.is_err() {
            return Err(Error::Symbol { symbol });
        }
    }
    std::mem::forget(library);
    Ok(())
}

fn library() -> Result<Library, Error> {
    // SAFETY: the initialisers of the driver's library only set up its own state.
    let open = |name| unsafe { Library::new(name) };
    // The same order as cudarc's. In a folder for linking, the first name may be another library
    // than the second.
    let library = open("libcuda.so").or_else(|_| open("libcuda.so.1"));
    library.map_err(|error| Error::Library {
        // The wrapped error is the loader's own message.
        reason: error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string),
    })
}

/// A driver function that cudarc only offers in its bindings for later versions.
///
/// # Safety
/// The function must have the type `F`.
pub(crate) unsafe fn function<F: Copy>(symbol: &'static str) -> Result<F, Error> {
    open()?;
    // SAFETY: the caller promises that the function has the type `F`. The pointer stays valid,
    // because `open` has succeeded and never unloads the driver.
    let found = unsafe { library()?.get::<F>(symbol).map(|found| *found) };
    found.map_err(|_| Error::Symbol { symbol })
}
