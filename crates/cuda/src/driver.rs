//! Loads CUDA's driver, and checks which functions it has. Optional functions are grouped by
//! [`Feature`]: with an old driver a feature is missing, and the rest works.

use std::error::Error as _;

use libloading::Library;
use once_cell::race::OnceBox;

use crate::Error;

/// The functions without which this project cannot use a driver. It calls most of them through
/// cudarc, which panics if one is missing. CUDA 11.0 has all of them.
const CORE: &[&str] = &[
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
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuPointerGetAttribute",
    "cuMemGetInfo_v2",
    "cuMemGetAddressRange_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamGetCtx",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
];

/// An optional group of driver functions; [`require`] checks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// Memory pools, which came with CUDA 11.2. cudarc allocates from them where devices have them.
    Pools,
    /// Memory that is mapped, and exported to other processes.
    Mapping,
    /// Memory of a GPU that is exported as a dma-buf, since CUDA 11.7.
    DmaBuf,
    /// Memory of the host that the driver allocates, and that kernels reach.
    PinnedMemory,
    /// Memory of the host from elsewhere, which kernels reach once it is registered.
    RegisteredMemory,
    /// Memory of a GPU that the kernels of another reach.
    PeerAccess,
    /// Graphs that are captured, instantiated and launched; with flags since CUDA 11.4.
    Graphs,
    /// Kernels that may start before the one ahead of them has ended; in graphs, too, since CUDA
    /// 12.3, whose edges can say so.
    DependentLaunch,
}

impl Feature {
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Pools => &[
                "cuDeviceGetDefaultMemPool",
                "cuMemPoolSetAccess",
                "cuMemAllocAsync",
                "cuMemFreeAsync",
            ],
            Self::Mapping => &[
                "cuMemGetAllocationGranularity",
                "cuMemCreate",
                "cuMemRelease",
                "cuMemAddressReserve",
                "cuMemAddressFree",
                "cuMemMap",
                "cuMemUnmap",
                "cuMemSetAccess",
                "cuMemExportToShareableHandle",
                "cuMemImportFromShareableHandle",
            ],
            Self::DmaBuf => &["cuMemGetHandleForAddressRange"],
            Self::PinnedMemory => &[
                "cuMemHostAlloc",
                "cuMemFreeHost",
                "cuMemHostGetDevicePointer_v2",
            ],
            Self::RegisteredMemory => &[
                "cuMemHostRegister_v2",
                "cuMemHostUnregister",
                "cuMemHostGetDevicePointer_v2",
            ],
            Self::PeerAccess => &["cuDeviceGetP2PAttribute"],
            Self::Graphs => &[
                "cuStreamBeginCapture_v2",
                "cuStreamEndCapture",
                "cuGraphInstantiateWithFlags",
                "cuGraphUpload",
                "cuGraphLaunch",
                "cuGraphDestroy",
                "cuGraphExecDestroy",
            ],
            Self::DependentLaunch => &["cuLaunchKernelEx", "cuGraphGetEdges_v2"],
        }
    }
}

/// Looks for the driver, once. After success, cudarc finds every function that this project calls,
/// except for those of a [`Feature`].
///
/// # Errors
/// There is no driver, or it is too old.
pub fn open() -> Result<(), Error> {
    // Not a lock: a forked child may lack the thread that holds it. Two threads may look at once,
    // which is harmless.
    static FOUND: OnceBox<Result<(), Error>> = OnceBox::new();
    let look = || {
        let library = library()?;
        find_all(&library, CORE)?;
        // Leaked, so that the driver is never unloaded.
        std::mem::forget(library);
        Ok(())
    };
    FOUND.get_or_init(|| Box::new(look())).clone()
}

/// Looks for the driver's functions of a feature. The feature may be called, also by cudarc, only
/// after this has succeeded.
///
/// # Errors
/// There is no driver, or it lacks one of them.
pub fn require(feature: Feature) -> Result<(), Error> {
    open()?;
    find_all(&library()?, feature.functions())
}

/// The version of CUDA that the driver is for, such as `13.0`.
///
/// # Errors
/// There is no driver.
pub fn driver_version() -> Result<String, Error> {
    Ok(version(&library()?))
}

fn find_all(library: &Library, functions: &[&'static str]) -> Result<(), Error> {
    for symbol in functions {
        // SAFETY: the type need not be that of the function, since the symbol is only looked up,
        // and not called.
        unsafe { find::<unsafe extern "C" fn()>(library, symbol)? };
    }
    Ok(())
}

/// # Safety
/// The function must have the type `F`, or not be called.
unsafe fn find<F: Copy>(library: &Library, symbol: &'static str) -> Result<F, Error> {
    // SAFETY: the caller names the type `F` of the function, or never calls it. The reference into
    // the library ends in this statement, which only copies the pointer.
    let found = unsafe { library.get::<F>(symbol).map(|found| *found) };
    found.map_err(|_| Error::Symbol {
        symbol,
        version: version(library),
    })
}

/// The version of CUDA that a driver was made for, such as `11.2`.
fn version(library: &Library) -> String {
    type Function = unsafe extern "C" fn(*mut i32) -> i32;
    let mut version = 0;
    // SAFETY: `Function` is the type of `cuDriverGetVersion` in every version of CUDA.
    if let Ok(ask) = unsafe { library.get::<Function>("cuDriverGetVersion") } {
        // SAFETY: the driver writes one number to `version`. If it fails, `version` stays 0.
        let _ = unsafe { ask(&raw mut version) };
    }
    format!("{}.{}", version / 1000, version % 1000 / 10)
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
    // SAFETY: the caller names the type `F` of the function. The pointer stays valid, because
    // `open` has succeeded and never unloads the driver.
    unsafe { find(&library()?, symbol) }
}
