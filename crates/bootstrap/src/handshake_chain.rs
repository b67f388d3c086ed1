//! A connection that completes handshakes one after the other: with each rank that passes it on,
//! and at last with its destination. To each rank, the handshakes after its own are only bytes.

use std::collections::VecDeque;

use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::Secret;
use crate::handshake::{EnterError, Entered, Entry, Intent, Open};

pub(crate) struct HandshakeChain {
    pub(crate) socket: Unshared<Socket>,
    entry: Entry,
    /// The handshakes that follow the current one.
    next: VecDeque<Intent>,
}

impl HandshakeChain {
    /// Sends the first message over a new connection. The last intent is that of the stream.
    pub(crate) fn begin(
        socket: Unshared<Socket>,
        relays: &[Intent],
        intent: Intent,
    ) -> Result<Self, EnterError> {
        let mut next: VecDeque<Intent> = relays.iter().copied().chain([intent]).collect();
        let first = next.pop_front().unwrap_or(intent);
        Ok(Self {
            entry: begin(&socket, first)?,
            socket,
            next,
        })
    }

    /// Advances as far as the bytes that have arrived allow. Returns whether the stream is ready.
    pub(crate) fn step(&mut self, key: &Secret, peer: &str) -> Result<bool, EnterError> {
        while self.entry.step(&self.socket, key, peer)? {
            let Some(intent) = self.next.pop_front() else {
                return Ok(true);
            };
            self.entry = begin(&self.socket, intent)?;
        }
        Ok(false)
    }

    /// Whether the peer itself has this end's proof.
    pub(crate) fn has_proved(&self) -> bool {
        self.next.is_empty() && self.entry.has_proved()
    }

    /// The connection, once it is ready.
    pub(crate) fn into_entered(self, key: &Secret) -> Entered {
        let (socket, seals) = (self.socket, self.entry.seals(key));
        Entered { socket, seals }
    }
}

fn begin(socket: &Socket, intent: Intent) -> Result<Entry, EnterError> {
    let open = Open::new(intent).map_err(EnterError::Final)?;
    Entry::begin(socket, &open)
}
