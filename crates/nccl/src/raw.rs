//! The functions of a libnccl loaded at run time.
//!
//! Results and reductions have integer types here, not cudarc's enumerations. A library may return
//! a result of a later version, or take the number of a reduction that was created at run time. A
//! Rust enum must not hold a value that it does not list.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

pub(crate) use cudarc::nccl::sys::{
    cudaStream_t, ncclComm, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclRedOp_t,
    ncclScalarResidence_t, ncclUniqueId, ncclWindow_t,
};

use crate::{Error, Version};

/// An `ncclResult_t`; may be a value that this crate does not list.
pub(crate) type Code = c_uint;
/// An `ncclDataType_t`.
pub(crate) type DataType = c_uint;
/// An `ncclRedOp_t`; may be one that was created at run time.
pub(crate) type RedOp = c_uint;

/// Declares [`Api`]: the functions of all supported versions, and those added later.
macro_rules! api {
    (
        always { $($name:ident($($argument:ty),*) -> $result:ty;)* }
        $(since ($major:literal, $minor:literal, $patch:literal) {
            $($late:ident($($late_argument:ty),*);)*
        })*
    ) => {
        /// The functions of one library.
        #[derive(Debug)]
        #[allow(non_snake_case)]
        pub(crate) struct Api {
            pub(crate) path: PathBuf,
            pub(crate) version: Version,
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            $($($late: Option<unsafe extern "C" fn($($late_argument),*) -> Code>,)*)*
        }

        #[allow(non_snake_case)]
        impl Api {
            /// Looks up the functions, and asks for the version.
            pub(crate) fn find(library: &libloading::Library, path: &Path) -> Result<Self, Error> {
                let missing = |symbol| Error::Symbol { path: path.to_owned(), symbol };
                let mut api = Self {
                    path: path.to_owned(),
                    version: Version::from_code(0),
                    // SAFETY: each field has the type that nccl.h declares for the function of its
                    // name; the code that opened the library vouches that it is NCCL's.
                    $($name: unsafe { find(library, concat!(stringify!($name), "\0")) }
                        .ok_or_else(|| missing(stringify!($name)))?,)*
                    // SAFETY: each field has the type that nccl.h declares for the function of its
                    // name; the code that opened the library vouches that it is NCCL's.
                    $($($late: unsafe { find(library, concat!(stringify!($late), "\0")) },)*)*
                };
                let mut version = 0;
                // SAFETY: NCCL writes one `int` to `version`. If the call fails, `version` stays 0,
                // which is refused as too old.
                unsafe { (api.ncclGetVersion)(&raw mut version) };
                api.version = Version::from_code(version.cast_unsigned());
                Ok(api)
            }

            /// The functions added later, with the version that added each, and whether this
            /// library has them.
            pub(crate) fn late(&self) -> Vec<(&'static str, Version, bool)> {
                vec![$($((
                    stringify!($late),
                    Version::new($major, $minor, $patch),
                    self.$late.is_some(),
                ),)*)*]
            }

            $($(
                /// The function, if the library is new enough.
                pub(crate) fn $late(
                    &self,
                ) -> Result<unsafe extern "C" fn($($late_argument),*) -> Code, Error> {
                    self.$late.ok_or(Error::Unsupported {
                        what: stringify!($late),
                        since: Version::new($major, $minor, $patch),
                        found: self.version,
                    })
                }
            )*)*
        }
    };
}

type Memory = *mut c_void;
type Constant = *const c_void;

api! {
    always {
        ncclGetVersion(*mut c_int) -> Code;
        ncclGetErrorString(Code) -> *const c_char;
        ncclGetLastError(ncclComm_t) -> *const c_char;
        ncclGetUniqueId(*mut ncclUniqueId) -> Code;
        ncclCommInitRankConfig(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Code;
        ncclCommInitAll(*mut ncclComm_t, c_int, *const c_int) -> Code;
        ncclCommSplit(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> Code;
        ncclCommFinalize(ncclComm_t) -> Code;
        ncclCommDestroy(ncclComm_t) -> Code;
        ncclCommAbort(ncclComm_t) -> Code;
        ncclCommGetAsyncError(ncclComm_t, *mut Code) -> Code;
        ncclCommCount(ncclComm_t, *mut c_int) -> Code;
        ncclCommUserRank(ncclComm_t, *mut c_int) -> Code;
        ncclCommCuDevice(ncclComm_t, *mut c_int) -> Code;
        ncclGroupStart() -> Code;
        ncclGroupEnd() -> Code;
        ncclRedOpCreatePreMulSum(*mut RedOp, Memory, DataType, ncclScalarResidence_t, ncclComm_t) -> Code;
        ncclRedOpDestroy(RedOp, ncclComm_t) -> Code;
        ncclAllReduce(Constant, Memory, usize, DataType, RedOp, ncclComm_t, cudaStream_t) -> Code;
        ncclReduce(Constant, Memory, usize, DataType, RedOp, c_int, ncclComm_t, cudaStream_t) -> Code;
        ncclBroadcast(Constant, Memory, usize, DataType, c_int, ncclComm_t, cudaStream_t) -> Code;
        ncclAllGather(Constant, Memory, usize, DataType, ncclComm_t, cudaStream_t) -> Code;
        ncclReduceScatter(Constant, Memory, usize, DataType, RedOp, ncclComm_t, cudaStream_t) -> Code;
        ncclSend(Constant, usize, DataType, c_int, ncclComm_t, cudaStream_t) -> Code;
        ncclRecv(Memory, usize, DataType, c_int, ncclComm_t, cudaStream_t) -> Code;
    }
    since (2, 19, 1) {
        ncclMemAlloc(*mut Memory, usize);
        ncclMemFree(Memory);
        ncclCommRegister(ncclComm_t, Memory, usize, *mut Memory);
        ncclCommDeregister(ncclComm_t, Memory);
    }
    since (2, 23, 4) {
        ncclCommInitRankScalable(
            *mut ncclComm_t, c_int, c_int, c_int, *mut ncclUniqueId, *mut ncclConfig_t);
    }
    since (2, 27, 3) {
        ncclCommShrink(
            ncclComm_t, *mut c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t, c_int);
        ncclCommWindowRegister(ncclComm_t, Memory, usize, *mut ncclWindow_t, c_int);
        ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
    }
    since (2, 28, 3) {
        ncclAlltoAll(Constant, Memory, usize, DataType, ncclComm_t, cudaStream_t);
        ncclGather(Constant, Memory, usize, DataType, c_int, ncclComm_t, cudaStream_t);
        ncclScatter(Constant, Memory, usize, DataType, c_int, ncclComm_t, cudaStream_t);
    }
    since (2, 28, 7) {
        ncclCommRevoke(ncclComm_t, c_int);
    }
    since (2, 29, 2) {
        ncclCommGetUniqueId(ncclComm_t, *mut ncclUniqueId);
        ncclCommGrow(
            ncclComm_t, c_int, *const ncclUniqueId, c_int, *mut ncclComm_t, *mut ncclConfig_t);
    }
    since (2, 29, 7) {
        ncclCommMemStats(ncclComm_t, ncclCommMemStat_t, *mut u64);
    }
}

/// Looks up a function by its name, which ends with a zero byte.
///
/// # Safety
///
/// `F` must be the function's pointer type.
unsafe fn find<F: Copy>(library: &libloading::Library, name: &str) -> Option<F> {
    // SAFETY: `F` is the type of the function that `name` refers to, as this function requires;
    // `name` ends with a zero byte.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}
