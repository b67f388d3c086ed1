//! A carrier that has the driver copy slots from GPU to GPU, in the order in which an RDMA device
//! would write them.

use std::collections::VecDeque;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream, result};
use spark_ccl_cuda::{EventPool, RecordedEvent, checked, counted_stream, make_current};
use spark_ccl_slots::{Carrier, Copying, Error, PostBox, Slot};
use spark_ccl_transport::PutPart;

use crate::Result;

/// The most slots that are on their way.
const MOST: usize = 64;

pub(crate) struct Driven {
    outbox: PostBox,
    /// The addresses of the ranges of the peer's inbox.
    inbox: Vec<u64>,
    /// Does the rest, which does not depend on where slots are.
    copying: Copying,
    going: VecDeque<(Slot, RecordedEvent)>,
    events: Arc<EventPool>,
    /// The maker of the carrier waits for it before it frees the boxes' memory.
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

impl Driven {
    /// The carrier from an outbox to the peer's inbox, at the addresses of that.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        outbox: PostBox,
        inbox: PostBox,
        peer: PostBox,
    ) -> Result<Self> {
        Ok(Self {
            inbox: inbox.ranges().iter().map(|range| range.0).collect(),
            copying: Copying::new(outbox.clone(), inbox, peer, Arc::default()),
            outbox,
            going: VecDeque::new(),
            events: EventPool::new(Arc::clone(context)),
            stream: counted_stream(context)?,
            context: Arc::clone(context),
        })
    }

    /// Whether an address of the outbox is on the GPU.
    fn is_on_device(&self, address: u64) -> bool {
        let start = self.outbox.slots_at();
        (start..start + self.outbox.shape().bytes_on_device() as u64).contains(&address)
    }

    fn copy(&self, part: PutPart) -> std::result::Result<(), spark_ccl_cuda::Error> {
        let device = make_current(&self.context)?;
        let (to, bytes) = (self.inbox[part.range] + part.at, part.bytes as usize);
        let stream = self.stream.cu_stream();
        if self.is_on_device(part.from) {
            // SAFETY: both ranges are of the boxes, which live until the stream was waited for. The
            // slot has not completed, so that no kernel writes it; nothing uses the peer's.
            let status = unsafe { result::memcpy_dtod_async(to, part.from, bytes, stream) };
            return checked("cuMemcpyDtoDAsync", device, status);
        }
        let from = std::ptr::with_exposed_provenance::<u8>(part.from as usize);
        // SAFETY: the head has `bytes` bytes in the outbox, and as many from `to` on are in the
        // peer's inbox; both live until the stream was waited for. Nothing writes the head before
        // the slot has completed, and nothing uses its place in the inbox before its flag.
        let status = unsafe {
            let head = std::slice::from_raw_parts(from, bytes);
            result::memcpy_htod_async(to, head, stream)
        };
        checked("cuMemcpyHtoDAsync", device, status)
    }
}

fn failed(error: &spark_ccl_cuda::Error) -> Error {
    let problem = error.to_string();
    Error::Link { problem }
}

impl Carrier for Driven {
    unsafe fn post(
        &mut self,
        slot: Slot,
        payload: usize,
        consumed: u64,
    ) -> std::result::Result<bool, Error> {
        if self.going.len() == MOST {
            return Ok(false);
        }
        let parts = self.outbox.parts(slot, payload, consumed);
        // The second range is on the GPU. Nothing here reads the heads in the peer's box.
        for part in parts.filter(|part| part.range == 1) {
            self.copy(part).map_err(|error| failed(&error))?;
        }
        let event = self
            .events
            .record(&self.stream)
            .map_err(|error| failed(&error))?;
        self.going.push_back((slot, event));
        self.give_credit(slot.lane, consumed)
    }

    fn completed(&mut self) -> std::result::Result<Option<Slot>, Error> {
        let Some((slot, event)) = self.going.front() else {
            return Ok(None);
        };
        let (slot, is_there) = (*slot, event.is_complete().map_err(|error| failed(&error))?);
        if is_there {
            self.going.pop_front();
        }
        Ok(is_there.then_some(slot))
    }

    fn give_credit(&mut self, lane: usize, total: u64) -> std::result::Result<bool, Error> {
        self.copying.give_credit(lane, total)
    }

    fn credit(&mut self, lane: usize) -> u64 {
        self.copying.credit(lane)
    }

    fn post_packets(&mut self, number: u64, words: &[u64]) -> std::result::Result<bool, Error> {
        self.copying.post_packets(number, words)
    }

    fn health(&mut self) -> std::result::Result<(), Error> {
        self.copying.health()
    }
}
