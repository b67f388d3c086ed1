//! The fastest kernels between GPUs of a host. Knows only their names; the library checks that they
//! exist.

use std::fmt;

use serde::{Deserialize, Serialize};
use spark_ccl_types::Operation;

use super::{collect_str, collective, problem};

/// The measurements of one collective for one layout of ranks on GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelEntry {
    /// Where the ranks are.
    pub layout: GpuLayout,
    /// The collective.
    #[serde(serialize_with = "collect_str", deserialize_with = "collective")]
    pub collective: Operation,
    /// The fastest kernels, by ascending size. The last one also applies to all larger sizes.
    pub steps: Vec<KernelStep>,
}

/// The kernel for a range of sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelStep {
    /// The largest size, in bytes of the call's count.
    pub up_to: u64,
    /// The kernel's name.
    pub kernel: String,
}

/// On which GPUs ranks are, as far as measured times depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLayout {
    /// The model of all of them, as the driver names it.
    pub gpu: String,
    /// What is between them.
    pub wire: GpuWire,
    /// The most CTAs of a kernel.
    pub ctas: u32,
    /// How many ranks there are.
    pub ranks: u32,
}

/// The connection of GPUs, by the best way to pass data over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuWire {
    /// The peers' memory, in packets.
    Packets,
    /// The peers' memory, in lines.
    Lines,
    /// Pinned memory of the host.
    Host,
}

impl KernelEntry {
    /// The entry's problem, if it has one.
    pub(super) fn problem(&self) -> Option<String> {
        let sizes: Vec<_> = self.steps.iter().map(|step| step.up_to).collect();
        problem(self.collective, &sizes)
    }
}

impl fmt::Display for GpuLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gpu, ctas, ranks, ..
        } = self;
        let wire = match self.wire {
            GpuWire::Packets => "peers' memory, by packets",
            GpuWire::Lines => "peers' memory, by lines",
            GpuWire::Host => "pinned memory of the host",
        };
        write!(f, "{ranks} ranks on {gpu}, {wire}, up to {ctas} CTAs")
    }
}
