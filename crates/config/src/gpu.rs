//! The settings of device memory, apart from NCCL's own.

use crate::Error;
use crate::choice::GpuProtocol;
use crate::reader::Reader;

/// More than any host has.
const MAX_DEVICE: usize = 1023;

/// How device memory is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's number of this rank's own device, whatever its place among the host's ranks.
    pub own_device: Option<usize>,
    /// Whether several ranks may be on one GPU, with [`Backend::Engine`](crate::Backend::Engine).
    pub may_be_shared: bool,
    /// How kernels pass data between GPUs, with [`Backend::Engine`](crate::Backend::Engine). Ranks agree on it by themselves.
    pub protocol: GpuProtocol,
    /// Whether memory for calls that go by way of the host is pinned memory of the host. Ranks agree on it by themselves.
    pub pinned: bool,
}

impl Gpu {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let names = &["SPARK_CCL_GPU_PROTOCOL"];
        let protocol = reader.parsed(names, GpuProtocol::EXPECTED, GpuProtocol::parse)?;
        Ok(Self {
            own_device: reader.number(&["SPARK_CCL_DEVICE"], 0..=MAX_DEVICE)?,
            may_be_shared: reader.boolean("SPARK_CCL_SHARE_GPU")?.unwrap_or_default(),
            protocol: protocol.unwrap_or_default(),
            pinned: reader.boolean("SPARK_CCL_GPU_PINNED")?.unwrap_or_default(),
        })
    }
}
