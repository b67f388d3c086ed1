//! The sending half of a link over RDMA: the trait's calls, on the state that both halves share
//! (`core.rs`).

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use spark_ccl_log::Mutex;

use super::core::{Core, LEND_LEAST};
use super::immediate::Immediate;
use super::slots::Header;
use crate::upkeep::{self, Upkeep};
use crate::{Geometry, Lending, Lends, LinkError, LinkTx, PutPart, Rails};

/// The sending half of a link over RDMA.
///
/// Dropping it closes this half: the peer gets [`LinkError::Closed`] once it has read everything
/// that was sent.
#[derive(Debug)]
pub struct Tx {
    pub(super) core: Arc<Mutex<Core>>,
    geometry: Geometry,
    /// The message that is reserved, and its length.
    reserved: Option<(u64, usize)>,
}

impl Tx {
    pub(super) fn new(core: &Arc<Mutex<Core>>) -> Self {
        let geometry = core.lock().outgoing().geometry();
        Self {
            core: Arc::clone(core),
            geometry,
            reserved: None,
        }
    }
}

/// Has a thread of this process poll a link that nobody else polls, until both halves are dropped.
/// With only one rail, there is nothing to do.
///
/// # Errors
/// The thread cannot be started.
pub fn keep_polled(tx: &Tx) -> io::Result<()> {
    if tx.core.lock().rails().count() < 2 {
        return Ok(());
    }
    upkeep::keep(&tx.core)
}

impl Upkeep for Mutex<Core> {
    fn look(&self) {
        // Where another thread has the link, it polls.
        if let Some(mut core) = self.try_lock() {
            core.poll_if_neglected();
        }
    }
}

impl LinkTx for Tx {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.geometry.slot_bytes;
        if len > slot_bytes {
            return Err(LinkError::Misuse(format!(
                "a message of {len} bytes in slots of {slot_bytes}"
            )));
        }
        let mut core = self.core.lock();
        let Some(number) = core.next_to_send()? else {
            return Ok(None);
        };
        self.reserved = Some((number, len));
        let payload = core.outgoing().payload(number);
        // SAFETY: the payload lies within the slot, which lives as long as the core and belongs to
        // this side until it is committed, which takes `&mut self`. The device reads only what was
        // committed.
        Ok(Some(unsafe {
            std::slice::from_raw_parts_mut(payload, len)
        }))
    }

    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        match self.reserved {
            Some((number, reserved)) if reserved == len => {
                self.reserved = None;
                let header = Header {
                    tag,
                    number,
                    is_lent: false,
                };
                // SAFETY: the slot was reserved and has not been sent, so it belongs to this side.
                unsafe { self.core.lock().send(len, header) }
            }
            other => Err(LinkError::Misuse(format!(
                "commit of {len} bytes, where {:?} are reserved",
                other.map(|(_, reserved)| reserved)
            ))),
        }
    }

    fn lends(&self, start: *const u8, bytes: usize) -> Lends {
        if bytes >= LEND_LEAST && self.core.lock().reaches(start as u64, bytes) {
            Lends::Registered
        } else {
            Lends::Nothing
        }
    }

    unsafe fn lend(&mut self, payload: NonNull<[u8]>, tag: u64) -> Result<Lending, LinkError> {
        if let Some((_, reserved)) = self.reserved {
            return Err(LinkError::Misuse(format!(
                "lending, where {reserved} bytes are reserved"
            )));
        }
        let mut core = self.core.lock();
        let Some(number) = core.next_to_send()? else {
            return Ok(Lending::NotYet);
        };
        let Some(lent) = core.lendable(payload) else {
            return Ok(Lending::Unable);
        };
        // SAFETY: the slot is free and has not been sent, so it belongs to this side.
        unsafe { core.send_lent(number, &lent, tag)? };
        Ok(Lending::Lent {
            loan: number,
            bytes: payload.len(),
        })
    }

    fn has_returned(&mut self, loan: u64) -> Result<bool, LinkError> {
        self.core.lock().has_returned(loan)
    }

    fn opening(&self, ranges: &[(u64, usize)]) -> Option<Vec<u8>> {
        Some(self.core.lock().opening(ranges))
    }

    fn take_opening(&mut self, told: &[u8]) -> Result<(), LinkError> {
        self.core.lock().take_opening(told)
    }

    unsafe fn put(&mut self, parts: &[PutPart]) -> Result<Option<u64>, LinkError> {
        // SAFETY: nothing writes the parts until the put has ended, or the link is withdrawn or
        // dropped, as this function requires. The core is dropped with the link, or by `upkeep`,
        // which sends nothing new; then the memory's owner has deregistered it.
        unsafe { self.core.lock().put(parts) }
    }

    fn ended_put(&mut self) -> Option<u64> {
        self.core.lock().ended_put()
    }

    fn rails(&self) -> Rails {
        self.core.lock().health()
    }

    fn holds_back(&self) -> bool {
        false
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn withdraw(&mut self) {
        self.core.lock().abandon();
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.core.lock().announce_closed(Immediate::SenderGone);
    }
}
