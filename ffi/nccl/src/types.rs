//! The types of NCCL's functions, by their names in C: structures that callers fill, and structures
//! that they only have pointers to.

#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use spark_ccl::cuda::cudarc::driver::sys::{CUevent, CUstream};

pub use crate::status::Status as ncclResult_t;

/// A communicator: its handle. No other argument is of this type.
pub type ncclComm_t = *mut ncclComm;
/// A result that C passes: any number.
pub type ncclResultNumber = c_int;
/// An element type. C may pass any number, which an enumeration of Rust could not hold.
pub type ncclDataType_t = c_int;
/// A reduction: one of NCCL's, or one that the user has made.
pub type ncclRedOp_t = c_int;
/// Where a factor is.
pub type ncclScalarResidence_t = c_int;
/// Which statistic `ncclCommMemStats` returns.
pub type ncclCommMemStat_t = c_int;
/// Which team `ncclTeamCft` returns.
pub type ncclCftTeamMode_t = c_int;
/// A window. This library has none.
pub type ncclWindow_t = *mut c_void;
/// A parameter.
pub type ncclParamHandle_t = *mut c_void;
/// A CUDA stream.
pub type cudaStream_t = CUstream;
/// A CUDA event.
pub type cudaEvent_t = CUevent;
/// Memory of several GPUs at one address: a structure of one pointer.
pub type ncclMultimemHandle_t = *mut c_void;
/// The number of a logical endpoint.
pub type ncclCftLeId = u32;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclUniqueId {
    pub(crate) internal: [u8; 128],
}

/// `ncclTeam_t`: ranks at equal distances.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclTeam_t {
    pub(crate) nRanks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

/// Structures that callers only have pointers to, or whose members nothing here reads.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    ncclComm
    ncclWaitSignalDesc_t
    ncclDevCommRequirements_t
    ncclDevComm_t
    ncclDevResourceRequirements_t
    ncclLsaBarrierHandle_t
    ncclGinBarrierHandle_t
    ncclLLA2AHandle_t
    ncclGinOutboxHandle
    ncclGinInboxA2AHandle
}

/// `ncclSimInfo_t`.
#[repr(C)]
#[derive(Debug)]
pub struct ncclSimInfo_t {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimatedTime: f32,
}

/// `ncclConfigExt_t`: an option of a call, in a list.
#[repr(C)]
#[derive(Debug)]
pub struct ncclConfigExt_t {
    pub(crate) next: *const Self,
    pub(crate) vendorId: c_int,
    pub(crate) optionId: c_int,
    pub(crate) val: ncclConfigExtValue,
}

/// The value of an option.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ncclConfigExtValue {
    pub(crate) i: c_int,
    pub(crate) s: *const c_char,
}

impl std::fmt::Debug for ncclConfigExtValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ncclConfigExtValue")
    }
}

/// A structure that gets more members in later versions.
pub(crate) trait Growing {
    /// How many bytes the whole members have, in a structure of this size.
    fn whole(size: usize) -> usize;
}

/// Structures that get more members in later versions. The members are in order, each with the
/// version of NCCL that brought it, and its value when it is not set.
macro_rules! growing {
    ($($(#[$doc:meta])* $name:ident { $($since:literal $member:ident: $type:ty = $unset:expr;)* })*)
        => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            $(pub(crate) $member: $type,)*
        }

        impl Growing for $name {
            fn whole(size: usize) -> usize {
                let ends = [$(std::mem::offset_of!($name, $member) + size_of::<$type>()),*];
                ends.into_iter().filter(|&end| end <= size).max().unwrap_or(0)
            }
        }

        impl $name {
            /// A structure with nothing set.
            pub(crate) const UNSET: Self = Self { $($member: $unset,)* };

            /// Each member's name, its offset, and the version that brought it.
            #[cfg(test)]
            pub(crate) const MEMBERS: &[(&'static str, usize, u32)] =
                &[$((stringify!($member), std::mem::offset_of!($name, $member), $since),)*];
        }
    )*};
}

/// A number that is not set.
pub(crate) const UNDEFINED: c_int = c_int::MIN;

growing! {
    /// `ncclConfig_t`: the configuration of a communicator.
    ncclConfig_t {
        21400 size: usize = size_of::<Self>();
        21400 magic: c_uint = 0;
        21400 version: c_uint = 0;
        21400 blocking: c_int = UNDEFINED;
        21700 cgaClusterSize: c_int = UNDEFINED;
        21700 minCTAs: c_int = UNDEFINED;
        21700 maxCTAs: c_int = UNDEFINED;
        21700 netName: *const c_char = std::ptr::null();
        21800 splitShare: c_int = UNDEFINED;
        22600 trafficClass: c_int = UNDEFINED;
        22700 commName: *const c_char = std::ptr::null();
        22700 collnetEnable: c_int = UNDEFINED;
        22700 CTAPolicy: c_int = UNDEFINED;
        22700 shrinkShare: c_int = UNDEFINED;
        22700 nvlsCTAs: c_int = UNDEFINED;
        22800 nChannelsPerNetPeer: c_int = UNDEFINED;
        22800 nvlinkCentricSched: c_int = UNDEFINED;
        22900 graphUsageMode: c_int = UNDEFINED;
        22900 numRmaCtx: c_int = UNDEFINED;
        23000 maxP2pPeers: c_int = UNDEFINED;
        23005 graphStreamOrdering: c_int = UNDEFINED;
        23100 launchOrderImplicit: c_int = UNDEFINED;
        23100 numRmaSig: c_int = UNDEFINED;
        23100 rmaEagerInit: c_int = UNDEFINED;
        23100 hostCftMode: c_int = UNDEFINED;
        23200 nvlsHostMode: c_int = UNDEFINED;
    }
    /// `ncclCollConfig_t`: the configuration of a call.
    ncclCollConfig_t {
        23100 size: usize = size_of::<Self>();
        23100 magic: c_uint = 0;
        23100 version: c_uint = 0;
        23100 ext: *const ncclConfigExt_t = std::ptr::null();
        23100 minCTAs: c_int = UNDEFINED;
        23100 maxCTAs: c_int = UNDEFINED;
        23100 nvlsCTAs: c_int = UNDEFINED;
        23100 cgaClusterSize: c_int = UNDEFINED;
        23100 algSelection: *const c_char = std::ptr::null();
        23100 forceAlgSelection: c_int = 1;
        23100 CTAPolicy: c_int = UNDEFINED;
        23100 userProfilerTag: u64 = 0;
        23200 launchCompletionEvent: cudaEvent_t = std::ptr::null_mut();
    }
    /// `ncclEncryptionConfig_t`.
    ncclEncryptionConfig_t {
        23200 size: usize = size_of::<Self>();
        23200 magic: c_uint = 0;
        23200 version: c_uint = 0;
        23200 mode: c_int = 0;
        23200 psk: *const c_char = std::ptr::null();
    }
    /// `ncclCommProperties_t`, which NCCL declares beside its device API.
    ncclCommProperties_t {
        23200 size: usize = size_of::<Self>();
        23200 magic: c_uint = 0;
        23200 version: c_uint = 0;
        23200 rank: c_int = 0;
        23200 nRanks: c_int = 0;
        23200 cudaDev: c_int = -1;
        23200 nvmlDev: c_int = -1;
        23200 deviceApiSupport: u8 = 0;
        23200 multimemSupport: u8 = 0;
        23200 ginType: c_int = 0;
        23200 nLsaTeams: c_int = 0;
        23200 hostRmaSupport: u8 = 0;
        23200 railedGinType: c_int = 0;
        23200 commHash: u64 = 0;
        23200 ginMinStride: c_int = 0;
        23200 ginConnectionType: c_int = 0;
        23200 ginSupport: [u8; 64] = [0; 64];
        23200 devCommRuntimeVersionSize: usize = 0;
        23200 cftSupport: u8 = 0;
        23200 cftMulticastSupport: u8 = 0;
        23200 cftCountedSupport: u8 = 0;
    }
}
