//! The results of work requests, and the meaning of failures.

use std::fmt;

use crate::{Peer, raw};

/// A work request that has succeeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// The id that it was posted with.
    pub wr_id: u64,
    /// The kind of request.
    pub opcode: Opcode,
    /// How many bytes arrived; meaningful for receives, reads and atomics only.
    pub bytes: u32,
    /// The immediate value that came with the message, for receives.
    pub imm: Option<u32>,
    /// The number of the local queue pair.
    pub qp_num: u32,
}

/// The kind of a completed request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opcode {
    /// A send.
    Send,
    /// A write.
    Write,
    /// A read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A receive that a send of the peer consumed.
    Receive,
    /// A receive that a write with an immediate value consumed; the receive's memory was not
    /// written.
    ReceiveOfWrite,
    /// Another kind, with libibverbs' number.
    Other(u32),
}

/// A work request that has failed. Its queue pair is in the error state, and all other requests
/// posted on it end as [`Status::Flushed`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CompletionError {
    /// The id that it was posted with.
    pub wr_id: u64,
    /// How it failed.
    pub status: Status,
    /// The device vendor's error code.
    pub vendor_error: u32,
    /// The number of the local queue pair.
    pub qp_num: u32,
}

impl std::error::Error for CompletionError {}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wr_id,
            status,
            vendor_error,
            qp_num,
        } = self;
        write!(
            f,
            "work request {wr_id} of queue pair {qp_num} failed: {} (status {}, vendor error \
             {vendor_error:#x}); {}",
            status.meaning(),
            status.number(),
            status.advice()
        )
    }
}

/// A failed work request with its device and peer, for messages; see [`crate::QueuePair::failure`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub struct Failure {
    /// How it failed.
    #[source]
    pub error: CompletionError,
    /// The local device.
    pub device: String,
    /// The peer that the queue pair is connected to.
    pub peer: Option<Peer>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        if let Some(Peer { gid, qp_num, .. }) = self.peer {
            write!(f, " to {gid}, queue pair {qp_num} there")?;
        }
        write!(f, ": {}", self.error)
    }
}

/// Declares [`Status`]: name, libibverbs' constant, meaning, advice.
macro_rules! statuses {
    ($($name:ident = $constant:ident, $meaning:literal, $advice:literal;)*) => {
        /// How a work request failed.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum Status {
            $(#[doc = concat!("`", stringify!($constant), "`: ", $meaning, ".")] $name,)*
            /// A number that this crate does not know.
            Other(u32),
        }

        impl Status {
            pub(crate) fn from_raw(status: raw::ibv_wc_status) -> Status {
                match status {
                    $(raw::$constant => Status::$name,)*
                    other => Status::Other(other),
                }
            }

            /// libibverbs' number for it.
            pub fn number(self) -> u32 {
                match self {
                    $(Status::$name => raw::$constant,)*
                    Status::Other(number) => number,
                }
            }

            /// What happened.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Status::$name => $meaning,)*
                    Status::Other(_) => "a failure unknown here",
                }
            }

            /// What to check.
            pub fn advice(self) -> &'static str {
                match self {
                    $(Status::$name => $advice,)*
                    Status::Other(_) => "see the driver's documentation",
                }
            }
        }
    };
}

statuses! {
    LocalLength = IBV_WC_LOC_LEN_ERR,
        "a message is longer than the receive posted for it, or than the port allows",
        "compare the lengths at both ends";
    LocalOperation = IBV_WC_LOC_QP_OP_ERR,
        "this end could not carry the request out",
        "check that the local key is that of a registered region that contains the memory, that a \
         receive is as long as what is sent into it, and that the network interface here is up and \
         still has its address";
    LocalContext = IBV_WC_LOC_EEC_OP_ERR,
        "this end's end-to-end context failed", "this crate uses none: see the driver";
    LocalProtection = IBV_WC_LOC_PROT_ERR,
        "the memory named here is not what its region allows",
        "check the local key, that the region is still registered and contains the memory, and \
         that it may be written if the request writes it";
    Flushed = IBV_WC_WR_FLUSH_ERR,
        "the queue pair was in the error state before the request's turn came",
        "look for the first failure of this queue pair; where there is none, it was moved to the \
         error state, the network interface here went down, or, on soft-RoCE, the local key is \
         wrong";
    Bind = IBV_WC_MW_BIND_ERR,
        "a memory window could not be bound", "this crate uses none: see the driver";
    BadResponse = IBV_WC_BAD_RESP_ERR,
        "the peer answered with what is no answer",
        "check that both ends are of one version, and their drivers";
    LocalAccess = IBV_WC_LOC_ACCESS_ERR,
        "a write with a number of the peer could not be carried out here",
        "check that the region it names may be written by peers";
    RemoteInvalid = IBV_WC_REM_INV_REQ_ERR,
        "the peer does not take such a request",
        "check the lengths at both ends, and what the peer's queue pair allows";
    RemoteAccess = IBV_WC_REM_ACCESS_ERR,
        "the peer refused access to its memory",
        "the key named is wrong, its region is gone or does not contain all of the memory, or the \
         region or the peer's queue pair does not allow this";
    RemoteOperation = IBV_WC_REM_OP_ERR,
        "the peer could not carry the request out",
        "look at the peer's completions; most likely its receive is shorter than the message";
    RetryExceeded = IBV_WC_RETRY_EXC_ERR,
        "the peer did not answer in spite of retries",
        "the peer is gone, its queue pair is in the error state or was never connected to this \
         one, or the network loses packets: check the peer, its port and interface, and the queue \
         pair number that was exchanged";
    ReceiverNotReady = IBV_WC_RNR_RETRY_EXC_ERR,
        "the peer had no receive posted in spite of retries",
        "check that the peer posts receives before it is sent to, or raise rnr_retry (7 is \
         forever)";
    LocalDomain = IBV_WC_LOC_RDD_VIOL_ERR,
        "a reliable datagram domain was violated", "this crate uses none: see the driver";
    RemoteInvalidRead = IBV_WC_REM_INV_RD_REQ_ERR,
        "the peer does not take such a read", "this crate uses no datagrams: see the driver";
    RemoteAborted = IBV_WC_REM_ABORT_ERR,
        "the peer aborted the operation", "look at the peer";
    InvalidContextNumber = IBV_WC_INV_EECN_ERR,
        "an end-to-end context's number is wrong", "this crate uses none: see the driver";
    InvalidContextState = IBV_WC_INV_EEC_STATE_ERR,
        "an end-to-end context is in a wrong state", "this crate uses none: see the driver";
    Fatal = IBV_WC_FATAL_ERR,
        "the device has failed", "look into the kernel's log; the device may need a reset";
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR,
        "the peer did not answer in time", "check the peer and the network";
    General = IBV_WC_GENERAL_ERR,
        "the device gives no reason", "look into the kernel's log";
    TagMatching = IBV_WC_TM_ERR,
        "tag matching failed", "this crate uses none: see the driver";
    TagMatchingIncomplete = IBV_WC_TM_RNDV_INCOMPLETE,
        "tag matching left a message to software", "this crate uses none: see the driver";
}

/// Translates a completion. Of a failed one, only some fields are valid.
pub(crate) fn translate(wc: &raw::ibv_wc) -> Result<Completion, CompletionError> {
    let &raw::ibv_wc { wr_id, qp_num, .. } = wc;
    if wc.status != raw::IBV_WC_SUCCESS {
        let status = Status::from_raw(wc.status);
        let vendor_error = wc.vendor_err;
        return Err(CompletionError {
            wr_id,
            status,
            vendor_error,
            qp_num,
        });
    }
    let with_imm = wc.wc_flags & raw::IBV_WC_WITH_IMM != 0;
    // SAFETY: both fields of the union are 32-bit integers; the flag says that this one was meant.
    let imm = with_imm.then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
    Ok(Completion {
        wr_id,
        opcode: opcode(wc.opcode),
        bytes: wc.byte_len,
        imm,
        qp_num,
    })
}

fn opcode(opcode: raw::ibv_wc_opcode) -> Opcode {
    match opcode {
        raw::IBV_WC_SEND => Opcode::Send,
        raw::IBV_WC_RDMA_WRITE => Opcode::Write,
        raw::IBV_WC_RDMA_READ => Opcode::Read,
        raw::IBV_WC_COMP_SWAP => Opcode::CompareSwap,
        raw::IBV_WC_FETCH_ADD => Opcode::FetchAdd,
        raw::IBV_WC_RECV => Opcode::Receive,
        raw::IBV_WC_RECV_RDMA_WITH_IMM => Opcode::ReceiveOfWrite,
        other => Opcode::Other(other),
    }
}
