//! The options of queue pairs: capacities at creation, and timeouts and retries of the transitions.
//! Plain data.

use std::ptr::null_mut;
use std::sync::Arc;

use crate::{CompletionQueue, Context, Error, raw};

/// The options of a new queue pair. The device may grant more than requested.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// The completion queue of sends, writes, reads and atomics.
    pub send_queue: CompletionQueue,
    /// The completion queue of receives; it may be the same.
    pub receive_queue: CompletionQueue,
    /// How many sends, writes, reads and atomics it holds.
    pub send_depth: u32,
    /// How many receives it holds.
    pub receive_depth: u32,
    /// Pieces of memory per send, write or read.
    pub send_pieces: u32,
    /// Pieces of memory per receive.
    pub receive_pieces: u32,
    /// Bytes that a work request may carry inline.
    pub inline: u32,
}

impl PairOptions {
    /// One queue for all completions, 128 work requests of one piece each way, nothing inline.
    pub fn new(queue: &CompletionQueue) -> Self {
        Self {
            send_queue: queue.clone(),
            receive_queue: queue.clone(),
            send_depth: 128,
            receive_depth: 128,
            send_pieces: 1,
            receive_pieces: 1,
            inline: 0,
        }
    }

    /// Checks that the queues are of the same device, because libibverbs does not.
    pub(super) fn check(&self, context: &Context) -> Result<(), Error> {
        let queues = [&self.send_queue, &self.receive_queue];
        match queues
            .into_iter()
            .find(|queue| !Arc::ptr_eq(&queue.context().0, &context.0))
        {
            None => Ok(()),
            Some(queue) => Err(Error::OtherDevice {
                wanted: context.name().into(),
                seen: queue.context().name().into(),
            }),
        }
    }

    pub(super) fn to_raw(&self) -> raw::ibv_qp_init_attr {
        raw::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.send_queue.raw(),
            recv_cq: self.receive_queue.raw(),
            srq: null_mut(),
            cap: raw::ibv_qp_cap {
                max_send_wr: self.send_depth,
                max_recv_wr: self.receive_depth,
                max_send_sge: self.send_pieces,
                max_recv_sge: self.receive_pieces,
                max_inline_data: self.inline,
            },
            qp_type: raw::IBV_QPT_RC,
            sq_sig_all: 0,
        }
    }
}

/// The options of a queue pair's receiving side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReceiveOptions {
    /// The number of the peer's first packet, 24 bits.
    pub psn: u32,
    /// Reads and atomics of the peer in flight at once; see [`crate::Limits::reads_answered`].
    pub reads_answered: u8,
    /// How long the peer waits before it retries when no receive is posted here. In InfiniBand's
    /// encoding, 12 is 0.64 ms, 1 is 0.01 ms, 31 is 491 ms, and 0 is 655 ms.
    pub rnr_timer: u8,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self {
            psn: 0,
            reads_answered: 1,
            rnr_timer: 12,
        }
    }
}

/// The options of a queue pair's sending side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendOptions {
    /// The number of the first packet, 24 bits.
    pub psn: u32,
    /// The timeout for an acknowledgement: 4.096 us times two to this power, at most 31; 0 is
    /// forever.
    pub timeout: u8,
    /// How often to retry without an acknowledgement, at most 7.
    pub retries: u8,
    /// How often to retry when the peer has no receive posted, at most 6; 7 is forever.
    pub rnr_retries: u8,
    /// Reads and atomics in flight at once; at most the peer's `reads_answered`.
    pub reads_started: u8,
}

impl Default for SendOptions {
    /// A timeout of 67 ms and 7 retries: the queue pair fails after about half a second without an
    /// answer.
    fn default() -> Self {
        Self {
            psn: 0,
            timeout: 14,
            retries: 7,
            rnr_retries: 7,
            reads_started: 1,
        }
    }
}
