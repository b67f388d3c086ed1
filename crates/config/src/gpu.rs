//! The settings of device memory, apart from NCCL's own.

use crate::Error;
use crate::choice::GpuProtocol;
use crate::parse;
use crate::reader::Reader;

/// More than any host has.
const MAX_DEVICE: usize = 1023;
const MOST_SET_ASIDE: usize = 256 << 20;
/// The most CTAs that a kernel takes, with [`Backend::Engine`](crate::Backend::Engine).
pub const MOST_CTAS: usize = 32;
const MOST_IN_SLOTS: usize = 9 << 20;

/// Settings of device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's number of this rank's own device, whatever its place among the host's ranks.
    pub own_device: Option<usize>,
    /// Whether several ranks may be on one GPU, with [`Backend::Engine`](crate::Backend::Engine).
    pub may_be_shared: bool,
    /// How kernels pass data between GPUs, with [`Backend::Engine`](crate::Backend::Engine). Ranks
    /// agree on it by themselves.
    pub protocol: GpuProtocol,
    /// Whether memory for calls that go by way of the host is pinned memory of the host. Ranks
    /// agree on it by themselves.
    pub pinned: bool,
    /// Whether slots may be in the GPUs' memory, which RDMA devices reach by dma-bufs. Ranks agree
    /// on it by themselves.
    pub dma_buf: bool,
    /// The most CTAs of a kernel, with [`Backend::Engine`](crate::Backend::Engine). Ranks agree on
    /// the least value by themselves.
    pub most_ctas: usize,
    /// The most bytes of dropped pinned memory that are kept, per GPU, communicators' own among
    /// them. Beyond half of that, it is freed when no call is in flight; beyond all, no more is
    /// allocated until then.
    pub most_set_aside: usize,
    /// Bytes of pinned memory for slots, to and from each other rank. Ranks agree on the least
    /// value by themselves.
    pub most_in_slots: usize,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            own_device: None,
            may_be_shared: false,
            protocol: GpuProtocol::default(),
            pinned: false,
            dma_buf: true,
            most_ctas: MOST_CTAS,
            most_set_aside: MOST_SET_ASIDE,
            most_in_slots: MOST_IN_SLOTS,
        }
    }
}

impl Gpu {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let names = &["SPARK_CCL_GPU_PROTOCOL"];
        let protocol = reader.parsed(names, GpuProtocol::EXPECTED, GpuProtocol::parse)?;
        let mut bytes = |name| reader.parsed(&[name], "a number of bytes", parse::bytes);
        let most_set_aside = bytes("SPARK_CCL_GPU_SET_ASIDE")?;
        let most_in_slots = bytes("SPARK_CCL_GPU_SLOTS")?;
        let most_ctas = reader.number(&["SPARK_CCL_GPU_CTAS"], 1..=MOST_CTAS)?;
        Ok(Self {
            own_device: reader.number(&["SPARK_CCL_DEVICE"], 0..=MAX_DEVICE)?,
            may_be_shared: reader.boolean("SPARK_CCL_SHARE_GPU")?.unwrap_or_default(),
            protocol: protocol.unwrap_or_default(),
            pinned: reader.boolean("SPARK_CCL_GPU_PINNED")?.unwrap_or_default(),
            dma_buf: reader.boolean("SPARK_CCL_GPU_DMABUF")?.unwrap_or(true),
            most_ctas: most_ctas.unwrap_or(MOST_CTAS),
            most_set_aside: most_set_aside.unwrap_or(MOST_SET_ASIDE),
            most_in_slots: most_in_slots.unwrap_or(MOST_IN_SLOTS),
        })
    }
}
