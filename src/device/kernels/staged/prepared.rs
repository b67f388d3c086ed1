//! A rank's stage and slots before anything is passed: slots in the GPUs' memory are proven first.

use std::sync::Arc;

use spark_ccl_control::Watch;
use spark_ccl_gpu::{Slots, Stage};

use super::exchange::Exchange;
use super::pool::Pool;
use super::probe::Probe;
use super::proxy_queue::ProxyQueue;
use super::proxy_work::ProxyWork;
use super::{BoxesOf, BySlots, ProxyHandle, Staged, proxy};
use crate::api::communicator::Communicator;
use crate::error::Error;

/// A rank's part in passing pieces and slots, which begins with [`start`](Self::start).
pub(in crate::device::kernels) struct Prepared {
    stage: Arc<Stage>,
    slots: Option<(Arc<Slots>, BySlots)>,
    puts: bool,
    exchange: Option<Exchange>,
    carrier: Communicator,
    parent: Arc<Watch>,
    pins: bool,
}

impl Prepared {
    /// The calls on device memory of a communicator. `pins` says whether `alloc_device` gives
    /// memory of the host. Collective.
    pub(in crate::device::kernels) fn new(
        comm: &Communicator,
        stage: Arc<Stage>,
        boxes: Option<BoxesOf>,
        pins: bool,
    ) -> Result<Self, Error> {
        let parent = Arc::clone(&comm.inner.watch);
        let slots = boxes.as_ref();
        Ok(Self {
            slots: slots.map(|boxes| (Arc::clone(&boxes.slots), boxes.by_slots)),
            puts: slots.is_some_and(|boxes| boxes.opened.is_some()),
            exchange: boxes.map(
                |BoxesOf {
                     slots,
                     by_slots,
                     opened,
                 }| {
                    let has_messages = by_slots.have_messages();
                    Exchange::new((slots, opened), has_messages, &stage, &parent)
                },
            ),
            carrier: comm.twin()?,
            stage,
            parent,
            pins,
        })
    }

    /// Prepares the proof that slots pass, or says why it cannot.
    pub(in crate::device::kernels) fn probe(&self) -> Result<Probe, String> {
        let (slots, _) = self.slots.as_ref().ok_or("there are no slots")?;
        Probe::new(slots).map_err(|error| error.to_string())
    }

    /// Proves that slots pass, or says why they do not. Collective.
    pub(in crate::device::kernels) fn prove(mut self, probe: Probe) -> Result<Self, String> {
        if let (Some((slots, _)), Some(exchange)) = (&self.slots, &mut self.exchange) {
            probe.run(slots, exchange, &self.carrier, &self.parent)?;
        }
        Ok(self)
    }

    /// Has pieces and slots passed from now on.
    pub(in crate::device::kernels) fn start(self) -> Result<Staged, Error> {
        let host = Arc::clone(self.carrier.inner.membership.engine());
        let queue = Arc::new(ProxyQueue::default());
        let pool = self.pins.then(|| Pool::new(&self.carrier.inner));
        let slots = self.slots.as_ref().map(|(slots, _)| Arc::clone(slots));
        let work = ProxyWork::new(
            Arc::clone(&self.stage),
            slots.zip(self.exchange),
            Arc::clone(&queue),
            self.carrier,
            self.parent,
        );
        let lends = work.lends();
        proxy::add(work)?;
        Ok(Staged {
            proxy_handle: ProxyHandle(queue),
            stage: self.stage,
            slots: self.slots,
            host,
            lends,
            puts: self.puts,
            pool,
        })
    }
}
