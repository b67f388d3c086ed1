//! The purpose of a stream between two ranks, and its way to the peer. To this crate an id is only
//! a name.

use std::fmt;

use crate::Address;

/// Identifies one stream between two ranks. Both pass the same id. Each may be in use once at a
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// The communicator that the stream belongs to.
    pub context: u64,
    /// Its user.
    pub kind: StreamKind,
    /// Distinguishes several streams of one kind; its meaning is the user's.
    pub number: u32,
}

/// The user of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// The control plane.
    Control = 0,
    /// The set-up of a shared-memory link.
    SharedMemory = 1,
    /// A TCP link.
    Tcp = 2,
    /// The set-up of an RDMA link.
    Rdma = 3,
    /// Passing memory between ranks of one host.
    Memory = 4,
}

/// How a stream reaches its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// An abstract Unix socket, which can pass file descriptors. Only where
    /// [`Session::local_to`](crate::Session::local_to) holds.
    Unix,
    /// TCP.
    Tcp {
        /// The address of this host to connect from, and perhaps its interface; any if `None`.
        source: Option<Address>,
        /// Which of the peer's [`addresses`](crate::PeerInfo::addresses) to connect to. `None`
        /// tries all of them until one answers, those in a subnet of ours first.
        target: Option<usize>,
    },
}

impl Via {
    /// TCP, from and to whatever address leads to the peer.
    pub const ANY: Via = Via::Tcp {
        source: None,
        target: None,
    };
}

impl StreamKind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [
            StreamKind::Control,
            StreamKind::SharedMemory,
            StreamKind::Tcp,
            StreamKind::Rdma,
            StreamKind::Memory,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    /// Whether the stream is part of a link, which [`Session::reach`](crate::Session::reach) asks
    /// for.
    pub fn is_link(self) -> bool {
        matches!(
            self,
            StreamKind::SharedMemory | StreamKind::Tcp | StreamKind::Rdma
        )
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StreamKind::Control => "control messages",
            StreamKind::SharedMemory => "shared memory",
            StreamKind::Tcp => "data over TCP",
            StreamKind::Rdma => "setting up RDMA",
            StreamKind::Memory => "registered memory",
        };
        write!(
            f,
            "{kind} (number {}, context {:016x})",
            self.number, self.context
        )
    }
}
