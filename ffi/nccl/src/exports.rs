//! The one table of NCCL's functions. From each row, a macro makes the function, its twin at the
//! same address, and an entry that documents and tests are compared with.
//!
//! A row begins with its kind. `native`: names the function here that does it. `single`: `native`,
//! without a twin. `refuse`: names the reason why it is not done; with `SPARK_CCL_NCCL_FALLBACK`,
//! the call goes to the library that the variable names. `either`: native without that library, and
//! its function with it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::refusal::{Answer, failed, refused};
#[allow(clippy::wildcard_imports, reason = "the table has nearly all")]
use crate::types::*;
use crate::{
    allocation, collectives, comm, fallback, forward, groups, growing, info, memory, operations,
    params, properties, rendezvous, simulation, teams,
};

const SIGNALS: &str = "one-sided signals are not implemented: use ncclSend and ncclRecv, or name \
                       NVIDIA's libnccl.so.2 by SPARK_CCL_NCCL_FALLBACK";
const DEVICE_API: &str = "kernels of a program cannot communicate by themselves: use the calls of \
                          the host, or name NVIDIA's libnccl.so.2 by SPARK_CCL_NCCL_FALLBACK";

/// Calls the function of the same name in another library.
macro_rules! sent {
    ($real:ident $name:ident($($arg:ident: $type:ty)*) -> $output:ty) => {{
        type Function = unsafe extern "C" fn($($type),*) -> <$output as Answer>::Raw;
        forward::send(stringify!($name), $real, || {
            #[allow(unused_mut, reason = "some functions have no arguments")]
            let mut used = Vec::new();
            $(let $arg = forward::passed($arg, &mut used, stringify!($name), $real)?;)*
            // SAFETY: NCCL's function has this type, with numbers for the enumerations that it
            // returns.
            let function = unsafe { $real.function::<Function>(stringify!($name)) }?;
            // SAFETY: the arguments are as NCCL demands, as for each function of the table, and
            // each handle is now NCCL's own, or null.
            let result = unsafe { function($($arg),*) };
            forward::returned(used);
            Ok(result)
        })
    }};
}

/// The body of a row's function.
macro_rules! body {
    (refuse $name:ident($($arg:ident: $type:ty)*) -> $output:ty, $reason:path) => {
        match fallback::real() {
            Ok(None) => refused(stringify!($name), $reason),
            Ok(Some(real)) => sent!(real $name($($arg: $type)*) -> $output),
            Err(failure) => failed(failure),
        }
    };
    (either $name:ident($($arg:ident: $type:ty)*) -> $output:ty, $function:path) => {
        match fallback::real() {
            // SAFETY: the arguments are as NCCL demands of its function of this name, as for each
            // function of the table; the function that the row names demands no more.
            Ok(None) => unsafe { $function($($arg),*) },
            Ok(Some(real)) => sent!(real $name($($arg: $type)*) -> $output),
            Err(failure) => failed(failure),
        }
    };
    ($how:ident $name:ident($($arg:ident: $type:ty)*) -> $output:ty, $function:path) => {{
        if $(forward::is_foreign(&$arg) ||)* false {
            match fallback::real() {
                Ok(None) => {}
                Ok(Some(real)) => return sent!(real $name($($arg: $type)*) -> $output),
                Err(failure) => return failed(failure),
            }
        }
        // SAFETY: the arguments are as NCCL demands of its function of this name, as for each
        // function of the table; the function that the row names demands no more.
        unsafe { $function($($arg),*) }
    }};
}

/// The twin of a row's function: its name with a `p` before it, by which a tool reaches the
/// function that it replaces. An alias works only within one module of the compiler's output, so
/// both are here.
macro_rules! twin {
    (single $name:ident) => {};
    ($how:ident $name:ident) => {
        std::arch::global_asm!(
            concat!(".globl p", stringify!($name)),
            concat!(".type p", stringify!($name), ", @function"),
            concat!(".set p", stringify!($name), ", ", stringify!($name)),
        );
    };
}

/// Has the linker export the twins. Rust passes the linker a list of the names that it has
/// compiled, and the linker takes them as patterns. This name is a pattern that matches all twins,
/// and is none of them.
#[unsafe(export_name = "[p]nccl[A-Z]*")]
extern "C" fn twins() {}

/// A row, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) how: &'static str,
    pub(crate) name: &'static str,
    /// Names and types of the arguments, as written in Rust.
    pub(crate) arguments: &'static [[&'static str; 2]],
    pub(crate) output: &'static str,
    /// Why the function is refused; empty if it is not.
    pub(crate) reason: &'static str,
}

/// Why a row is refused.
#[cfg(test)]
macro_rules! reason {
    (refuse $reason:path) => {
        $reason
    };
    ($how:ident $function:path) => {
        ""
    };
}

/// Notes the message of a row's function, if it is refused.
#[cfg(test)]
macro_rules! refusal {
    ($said:ident refuse $name:ident($($type:ty)*)) => {
        // SAFETY: a refused function looks at no argument, and zeros are valid for each type: a
        // number, a pointer, or a structure of these.
        let _ = unsafe { $name($(std::mem::zeroed::<$type>()),*) };
        $said.push((stringify!($name), spark_ccl_abi::failure::last_message()));
    };
    ($said:ident $how:ident $name:ident($($type:ty)*)) => {};
}

macro_rules! exports {
    ($($how:ident $name:ident($($arg:ident: $type:ty),*) -> $output:ty = $what:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, as NCCL documents it.")]
            ///
            /// # Safety
            /// Pointers are null, or valid for what NCCL's documentation of the function says of
            /// them. Buffers are as long as it says.
            #[unsafe(no_mangle)]
            #[allow(
                non_snake_case,
                clippy::too_many_arguments,
                unused_unsafe,
                reason = "as in C; some demand nothing"
            )]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $output {
                body!($how $name($($arg: $type)*) -> $output, $what)
            }
            twin!($how $name);
        )*

        #[cfg(test)]
        pub(crate) const ROWS: &[Row] = &[$(Row {
            how: stringify!($how),
            name: stringify!($name),
            arguments: &[$([stringify!($arg), stringify!($type)]),*],
            output: stringify!($output),
            reason: reason!($how $what),
        }),*];

        /// The messages of refused functions, with the functions' names.
        #[cfg(test)]
        pub(crate) fn refusals() -> Vec<(&'static str, String)> {
            let mut said = Vec::new();
            $(refusal!(said $how $name($($type)*));)*
            said
        }
    };
}

exports! {
    // About the library.
    native ncclGetVersion(version: *mut c_int) -> ncclResult_t = info::version;
    native ncclGetErrorString(result: ncclResultNumber) -> *const c_char = info::error_string;
    native ncclGetLastError(comm: ncclComm_t) -> *const c_char = info::last_error_of;
    native ncclResetDebugInit() -> () = info::reset_logging;
    single ncclResetDebugInitInternal() -> () = info::reset_logging;

    // How ranks meet and part.
    native ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t = rendezvous::unique_id;
    native ncclCommInitRank(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int
    ) -> ncclResult_t = rendezvous::init_rank;
    native ncclCommInitRankConfig(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
        config: *mut ncclConfig_t
    ) -> ncclResult_t = rendezvous::init_rank_config;
    native ncclCommInitRankScalable(
        newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int,
        commIds: *mut ncclUniqueId, config: *mut ncclConfig_t
    ) -> ncclResult_t = rendezvous::init_rank_scalable;
    native ncclCommInitAll(
        comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int
    ) -> ncclResult_t = rendezvous::init_all;
    native ncclCommSplit(
        comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t
    ) -> ncclResult_t = rendezvous::split;
    native ncclCommShrink(
        comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t, shrinkFlags: c_int
    ) -> ncclResult_t = rendezvous::shrink;
    native ncclCommGetUniqueId(
        comm: ncclComm_t, uniqueId: *mut ncclUniqueId
    ) -> ncclResult_t = growing::unique_id;
    native ncclCommGrow(
        comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int,
        newcomm: *mut ncclComm_t, config: *mut ncclConfig_t
    ) -> ncclResult_t = growing::grow;
    native ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t = comm::finalize;
    native ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t = comm::destroy;
    native ncclCommAbort(comm: ncclComm_t) -> ncclResult_t = comm::abort;
    native ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t = comm::revoke;
    native ncclSetEncryption(
        config: *const ncclEncryptionConfig_t
    ) -> ncclResult_t = info::set_encryption;

    // About a communicator.
    native ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t = comm::count;
    native ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t = comm::user_rank;
    native ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t = comm::device;
    native ncclCommGetAsyncError(
        comm: ncclComm_t, asyncError: *mut ncclResult_t
    ) -> ncclResult_t = comm::async_error;
    native ncclCommQueryProperties(
        comm: ncclComm_t, props: *mut ncclCommProperties_t
    ) -> ncclResult_t = properties::query;
    native ncclCommMemStats(
        comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64
    ) -> ncclResult_t = properties::memory;
    native ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t = comm::suspend;
    native ncclCommResume(comm: ncclComm_t) -> ncclResult_t = comm::resume;

    // Collectives and messages.
    native ncclAllReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::all_reduce;
    native ncclReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::reduce;
    native ncclBroadcast(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::broadcast;
    native ncclAllGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::all_gather;
    native ncclReduceScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::reduce_scatter;
    native ncclAlltoAll(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::all_to_all;
    native ncclGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::gather;
    native ncclScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::scatter;
    native ncclBcast(
        buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t
    ) -> ncclResult_t = collectives::broadcast_in_place;
    native ncclSend(
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::send;
    native ncclRecv(
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = collectives::recv;
    native ncclAllReduceConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::all_reduce_config;
    native ncclReduceConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t,
        config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::reduce_config;
    native ncclBroadcastConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::broadcast_config;
    native ncclAllGatherConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::all_gather_config;
    native ncclReduceScatterConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
        op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::reduce_scatter_config;
    native ncclAlltoAllConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::all_to_all_config;
    native ncclGatherConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::gather_config;
    native ncclScatterConfig(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
    ) -> ncclResult_t = collectives::scatter_config;

    // Groups and reductions.
    native ncclGroupStart() -> ncclResult_t = groups::start;
    native ncclGroupEnd() -> ncclResult_t = groups::end;
    native ncclGroupSimulateEnd(
        simInfo: *mut ncclSimInfo_t
    ) -> ncclResult_t = simulation::simulate_end;
    native ncclRedOpCreatePreMulSum(
        op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t,
        residence: ncclScalarResidence_t, comm: ncclComm_t
    ) -> ncclResult_t = operations::create;
    native ncclRedOpDestroy(
        op: ncclRedOp_t, comm: ncclComm_t
    ) -> ncclResult_t = operations::destroy;

    // Memory.
    native ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t = allocation::allocate;
    native ncclMemFree(ptr: *mut c_void) -> ncclResult_t = allocation::free;
    native ncclCommRegister(
        comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void
    ) -> ncclResult_t = memory::register;
    native ncclCommDeregister(
        comm: ncclComm_t, handle: *mut c_void
    ) -> ncclResult_t = memory::deregister;
    either ncclCommWindowRegister(
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int
    ) -> ncclResult_t = memory::register_window;
    either ncclCommWindowDeregister(
        comm: ncclComm_t, win: ncclWindow_t
    ) -> ncclResult_t = memory::deregister_window;
    either ncclWinGetUserPtr(
        comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void
    ) -> ncclResult_t = memory::pointer_of;

    // One-sided signals.
    refuse ncclPutSignal(
        localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
        peerWin: ncclWindow_t, peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint,
        comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t = SIGNALS;
    refuse ncclSignal(
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t,
        stream: cudaStream_t
    ) -> ncclResult_t = SIGNALS;
    refuse ncclWaitSignal(
        nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t,
        stream: cudaStream_t
    ) -> ncclResult_t = SIGNALS;

    // Device API.
    refuse ncclDevCommCreate(
        comm: ncclComm_t, reqs: *const ncclDevCommRequirements_t, outDevComm: *mut ncclDevComm_t
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclDevCommDestroy(
        comm: ncclComm_t, devComm: *const ncclDevComm_t
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetLsaDevicePointer(
        window: ncclWindow_t, offset: usize, lsaRank: c_int, outPtr: *mut *mut c_void
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetLsaMultimemDevicePointer(
        window: ncclWindow_t, offset: usize, outPtr: *mut *mut c_void
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetMultimemDevicePointer(
        window: ncclWindow_t, offset: usize, multimem: ncclMultimemHandle_t,
        outPtr: *mut *mut c_void
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetPeerDevicePointer(
        window: ncclWindow_t, offset: usize, peer: c_int, outPtr: *mut *mut c_void
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetMultimemDeviceLeInfo(
        window: ncclWindow_t, offset: usize, leId: *mut ncclCftLeId, leOffset: *mut usize
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetCftDeviceLeInfo(
        window: ncclWindow_t, offset: usize, peerCft: c_int, cftTeam: ncclTeam_t,
        leId: *mut ncclCftLeId, leOffset: *mut usize
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGetPeerDeviceLeInfo(
        window: ncclWindow_t, offset: usize, peerWorld: c_int, leId: *mut ncclCftLeId,
        leOffset: *mut usize
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclLsaBarrierCreateRequirement(
        team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclLsaBarrierHandle_t,
        outReq: *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGinBarrierCreateRequirement(
        comm: ncclComm_t, team: ncclTeam_t, nBarriers: c_int,
        outHandle: *mut ncclGinBarrierHandle_t, outReq: *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int = DEVICE_API;
    refuse ncclLLA2ACreateRequirement(
        nBlocks: c_int, nSlots: c_int, outHandle: *mut ncclLLA2AHandle_t,
        outReq: *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGinOutboxCreateRequirement(
        nBlocks: c_int, size_log2: c_int, outHandle: *mut ncclGinOutboxHandle,
        outReq: *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = DEVICE_API;
    refuse ncclGinInboxA2ACreateRequirement(
        peers: ncclTeam_t, nBlocks: c_int, size_log2: c_int, outHandle: *mut ncclGinInboxA2AHandle,
        outReq: *mut ncclDevResourceRequirements_t
    ) -> ncclResult_t = DEVICE_API;

    // Teams.
    native ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t = teams::world;
    native ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t = teams::alone;
    native ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t = teams::world;
    native ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t = teams::alone;
    native ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t = teams::alone_in;
    native ncclTeamRankToWorld(
        comm: ncclComm_t, team: ncclTeam_t, rank: c_int
    ) -> c_int = teams::rank_in_world;
    native ncclTeamRankToLsa(
        comm: ncclComm_t, team: ncclTeam_t, rank: c_int
    ) -> c_int = teams::rank_alone;

    // Parameters.
    native ncclParamBind(
        out: *mut ncclParamHandle_t, key: *const c_char
    ) -> ncclResult_t = params::bind;
    native ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t = params::number;
    native ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t = params::number;
    native ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t = params::number;
    native ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t = params::number;
    native ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t = params::number;
    native ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t = params::number;
    native ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t = params::number;
    native ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t = params::number;
    native ncclParamGetStr(
        h: ncclParamHandle_t, out: *mut *const c_char
    ) -> ncclResult_t = params::string;
    native ncclParamGet(
        h: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int
    ) -> ncclResult_t = params::bytes;
    native ncclParamGetParameter(
        key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int
    ) -> ncclResult_t = params::parameter;
    native ncclParamGetAllParameterKeys(
        table: *mut *mut *const c_char, tableLen: *mut c_int
    ) -> ncclResult_t = params::keys;
    native ncclParamDumpAll() -> () = params::dump;
}

#[cfg(test)]
mod tests;
