//! The memory of a rank's boxes: the host's, and also the GPU's if slots are there.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{DeviceBlock, PinnedWords};
use spark_ccl_slots::{Boxes, Memory, PostBox, Shape};

use crate::{Error, Stage};

/// A rank's memory for each rank; none for itself.
pub(super) struct Pairs {
    pub(super) boxes: Vec<Option<[PostBox; 2]>>,
    pub(super) on_device: Vec<Option<DeviceBlock>>,
    pub(super) addresses: Vec<Boxes>,
}

impl Pairs {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        shape: Shape,
        stage: &Stage,
    ) -> Result<Self, Error> {
        let mut made = Self {
            boxes: Vec::new(),
            on_device: Vec::new(),
            addresses: Vec::new(),
        };
        for peer in 0..stage.ranks() {
            let of_peer = (peer != stage.rank()).then(|| pair(context, shape));
            let (boxes, slots, addresses) = match of_peer.transpose()? {
                Some(pair) => (Some(pair.boxes), pair.slots, pair.addresses),
                None => (None, None, Boxes::default()),
            };
            made.boxes.push(boxes);
            made.on_device.push(slots);
            made.addresses.push(addresses);
        }
        Ok(made)
    }
}

/// An outbox and an inbox.
struct Pair {
    boxes: [PostBox; 2],
    /// Their slots, if these are on the GPU.
    slots: Option<DeviceBlock>,
    /// Where the kernels of a GPU find them.
    addresses: Boxes,
}

fn pair(context: &Arc<CudaContext>, shape: Shape) -> Result<Pair, Error> {
    let words = shape.bytes().div_ceil(size_of::<u64>());
    let both = [
        PinnedWords::new(context, words)?,
        PinnedWords::new(context, words)?,
    ];
    let addresses = [both[0].address_for(context)?, both[1].address_for(context)?];
    let bytes = shape.bytes_on_device();
    let slots = (bytes > 0).then(|| DeviceBlock::zeroed(context, 2 * bytes));
    let slots = slots.transpose()?;
    let at = slots.as_ref().map(DeviceBlock::address);
    let at = at.map(|start| [start, start + bytes as u64]);
    let [outbox, inbox] = both;
    let of = |words, which: usize| {
        let at = at.map(|both| both[which]);
        PostBox::new(Arc::new(Pinned(words)), shape, at)
    };
    Ok(Pair {
        boxes: [of(outbox, 0)?, of(inbox, 1)?],
        slots,
        addresses: Boxes::new(shape, addresses, at),
    })
}

/// A box's memory.
struct Pinned(PinnedWords);

// SAFETY: pinned memory begins at a page, so at a multiple of 128 bytes, never moves, and is all 0
// at first. Only the kernels, proxies and carriers of `spark-ccl-slots` are given it, and each
// writes only slots that the counters leave to it.
unsafe impl Memory for Pinned {
    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}
