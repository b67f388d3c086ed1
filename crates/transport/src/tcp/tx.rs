//! The sending half of a link over TCP: the trait's calls, on what is kept in `outbox.rs`.
#![allow(unsafe_code)]

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::event::PollFlags;

use super::SLOTLESS_BYTES;
use super::buffers::PAYLOAD;
use super::entry::Entry;
use super::rails::Link;
use crate::{Geometry, Lending, Lends, LinkError, LinkTx, Sending, SilentRail, Wait};

/// The sending half of a link over TCP.
///
/// Dropping it sends what the kernel still accepts, and then shuts the sockets down for sending.
/// Between hosts, it waits for acknowledgements before, for 5 s at most.
pub struct Tx {
    slot_bytes: usize,
    link: Arc<Link>,
    /// The buffer of the next message, and the length that was reserved.
    reserved: Option<(Vec<u8>, usize)>,
}

impl Tx {
    pub(super) fn new(link: Arc<Link>, geometry: Geometry) -> Self {
        Self {
            slot_bytes: geometry.slot_bytes,
            link,
            reserved: None,
        }
    }

    /// Lets a link between hosts ask for one more connection when nothing comes back over any that
    /// it has. It calls `ask` on some thread, maybe the one that adds a connection or drops this
    /// half. The arguments are the number of the wanted connection, which is above those of which
    /// the link was made, and the peer's addresses to avoid, the worst last. If none was
    /// [added](Entry::add) within [`SPARE_WITHIN`](super::SPARE_WITHIN), the link asks for the next
    /// number. Each end of a connection is to be added to its end of the link.
    pub fn ask_by(&self, ask: impl Fn(usize, &[IpAddr]) + Send + Sync + 'static) -> Entry {
        self.link.spares.ask_by(Box::new(ask));
        Entry::of(&self.link)
    }

    /// Whether the first message of these bytes may be lent.
    fn may_lend(&self, bytes: usize) -> bool {
        bytes.min(self.slot_bytes) >= SLOTLESS_BYTES
    }
}

impl LinkTx for Tx {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.slot_bytes;
        let mut outbox = self.link.outbox.lock();
        outbox.check_open()?;
        if len > slot_bytes {
            return Err(LinkError::Misuse(format!(
                "a message of {len} bytes on a link with slots of {slot_bytes}"
            )));
        }
        if !outbox.has_room() {
            return Ok(None);
        }
        let bytes = match self.reserved.take() {
            Some((bytes, _)) if bytes.len() >= PAYLOAD + len => bytes,
            other => {
                if let Some((bytes, _)) = other {
                    outbox.buffers.put(bytes);
                }
                outbox.buffer(len)?
            }
        };
        let (bytes, _) = self.reserved.insert((bytes, len));
        Ok(Some(&mut bytes[PAYLOAD..PAYLOAD + len]))
    }

    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        let mut outbox = self.link.outbox.lock();
        outbox.check_open()?;
        let reserved = self.reserved.as_ref().map(|(_, reserved)| *reserved);
        match self.reserved.take_if(|(_, reserved)| *reserved == len) {
            Some((bytes, _)) => {
                let sent = outbox.send(bytes, len, tag);
                outbox.end(sent)
            }
            None => Err(LinkError::Misuse(format!(
                "a commit of {len} bytes where {} were reserved",
                reserved.map_or_else(|| "none".to_owned(), |len| len.to_string())
            ))),
        }
    }

    fn lends(&self, _start: *const u8, bytes: usize) -> Lends {
        if self.may_lend(bytes) && self.link.outbox.lock().retains {
            Lends::Slots
        } else {
            Lends::Nothing
        }
    }

    unsafe fn lend(&mut self, payload: NonNull<[u8]>, tag: u64) -> Result<Lending, LinkError> {
        let mut outbox = self.link.outbox.lock();
        if !self.may_lend(payload.len()) || !outbox.retains {
            return Ok(Lending::Unable);
        }
        if !outbox.may_begin(self.reserved.is_some())? {
            return Ok(Lending::NotYet);
        }
        // SAFETY: the pointer is valid for reads, also while and after the owner writes, until
        // `has_returned` says so, `withdraw` or drop, and nothing is written before the peer has
        // the message (this function's contract). The first asks the outbox whether the message is
        // back, and the others withdraw it. After an error, `end` has ended the outbox, which reads
        // nothing of it any more.
        let sent = unsafe { outbox.lend(payload, tag) };
        let (loan, bytes) = outbox.end(sent)?;
        Ok(Lending::Lent { loan, bytes })
    }

    fn has_returned(&mut self, loan: u64) -> Result<bool, LinkError> {
        let mut outbox = self.link.outbox.lock();
        outbox.check_open()?;
        let is_back = outbox.is_back(loan);
        outbox.end(is_back)
    }

    fn send_from(&mut self, payload: &[u8], tag: u64) -> Result<Sending, LinkError> {
        let mut outbox = self.link.outbox.lock();
        // A message that is kept is lent, or copied to a slot.
        if payload.len() < SLOTLESS_BYTES || outbox.retains {
            return Ok(Sending::Unable);
        }
        if !outbox.may_begin(self.reserved.is_some())? {
            return Ok(Sending::NotYet);
        }
        let sent = outbox.send_from(payload, tag);
        outbox.end(sent).map(Sending::Done)
    }

    fn withdraw(&mut self) {
        self.link.outbox.lock().withdraw();
    }

    fn silent_rails(&self) -> Vec<SilentRail> {
        self.link.silent()
    }

    fn holds_back(&self) -> bool {
        self.link.outbox.lock().holds_back()
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        let mut outbox = self.link.outbox.lock();
        outbox.check_open()?;
        if outbox.holds_back() {
            let written = outbox.write();
            outbox.end(written)?;
        }
        Ok(!outbox.holds_back())
    }

    fn watch(&self, wait: &mut Wait) {
        let outbox = self.link.outbox.lock();
        if outbox.ended.is_none() {
            for stream in outbox.blocked() {
                wait.add(Arc::clone(stream) as _, PollFlags::OUT);
            }
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Errors do not matter here: the peer sees the end in any case.
        let _ = self.flush();
        self.link.settle();
        let mut outbox = self.link.outbox.lock();
        outbox.withdraw();
        outbox
            .sockets
            .iter()
            .for_each(|socket| socket.stream.close());
    }
}
