//! The receiving half of a link over RDMA: the trait's calls, on the state that both halves share
//! (`core.rs`).

use std::sync::Arc;

use rustix::event::PollFlags;
use spark_ccl_compute::Helpers;
use spark_ccl_log::Mutex;

use super::core::{Core, Destination};
use super::immediate::Immediate;
use crate::{Arrival, Borrowing, LinkError, LinkRx, Wait};

/// The receiving half of a link over RDMA.
///
/// Dropping it closes this half: the peer gets [`LinkError::Closed`] when it sends.
#[derive(Debug)]
pub struct Rx {
    pub(super) core: Arc<Mutex<Core>>,
    /// Whether the next message was peeked at.
    is_peeked: bool,
}

impl Rx {
    pub(super) fn new(core: &Arc<Mutex<Core>>) -> Self {
        Self {
            core: Arc::clone(core),
            is_peeked: false,
        }
    }
}

#[cold]
fn borrowed() -> LinkError {
    LinkError::Misuse("the next message is being read to another place".to_owned())
}

impl LinkRx for Rx {
    fn peek(&mut self) -> Result<Option<Arrival<'_>>, LinkError> {
        let mut core = self.core.lock();
        let Some((number, len)) = core.next_to_read()? else {
            return Ok(None);
        };
        let header = core.incoming().read_header(number)?;
        let len = if header.is_lent {
            match core.read_lent(Destination::Slots)? {
                None => return Ok(None),
                Some(here) if here.in_slot => here.bytes,
                Some(_) => return Err(borrowed()),
            }
        } else {
            len
        };
        self.is_peeked = true;
        let payload = core.incoming().payload(number);
        // SAFETY: the payload lies within the slot, `len` being at most `slot_bytes`, and lives as
        // long as the core. The slot belongs to this side until it is released, which takes
        // `&mut self`. A peer that writes there violates the protocol, and can only corrupt the
        // bytes.
        let payload = unsafe { std::slice::from_raw_parts(payload, len) };
        Ok(Some(Arrival {
            tag: header.tag,
            payload,
        }))
    }

    fn has_news(&mut self) -> bool {
        self.core.lock().has_news()
    }

    unsafe fn borrow(
        &mut self,
        room: &mut [u8],
        tag: u64,
        _: Option<&Helpers>,
    ) -> Result<Borrowing, LinkError> {
        let mut core = self.core.lock();
        let Some((number, _)) = core.next_to_read()? else {
            return Ok(Borrowing::NotYet);
        };
        let (start, bytes) = (room.as_mut_ptr() as u64, room.len());
        let header = core.incoming().read_header(number)?;
        if !header.is_lent || header.tag != tag || !core.reaches(start, bytes) {
            return Ok(Borrowing::Unable);
        }
        match core.read_lent(Destination::Room { start, bytes, tag })? {
            None if core.is_awaited() => Ok(Borrowing::NotYet),
            None => Ok(Borrowing::Unable),
            Some(here) if here.in_slot => Ok(Borrowing::Unable),
            Some(here) if here.at != start => Err(borrowed()),
            Some(here) => {
                core.release();
                Ok(Borrowing::Done(here.bytes))
            }
        }
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.is_peeked) {
            self.core.lock().release();
        }
    }

    fn arm(&mut self, wait: &mut Wait) {
        let mut core = self.core.lock();
        let mut is_blind = false;
        for rail in core.rails() {
            while let Ok(Some(_)) = rail.events.next() {}
            is_blind |= rail.queue.arm(false).is_err();
        }
        // There is no notification for what came before arming, so process it before the caller
        // checks.
        core.look_around();
        is_blind |= core.control().holds_back();
        if is_blind && core.failed().is_none() {
            wait.be_blind();
        }
    }

    /// Adds all completions and control messages; a poll then tells which they are. A failed link
    /// processes nothing any more, and what it left unprocessed would end every wait at once.
    fn watch(&self, wait: &mut Wait) {
        let core = self.core.lock();
        if core.failed().is_some() {
            return;
        }
        for rail in core.rails() {
            wait.add(Arc::clone(&rail.events) as _, PollFlags::IN);
        }
        if !core.control().is_closed {
            wait.add(Arc::clone(&core.control().stream) as _, PollFlags::IN);
        }
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.core.lock().announce_closed(Immediate::ReceiverGone);
    }
}
