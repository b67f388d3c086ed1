//! Kernel, memory, processors, limits.

use serde::{Deserialize, Serialize};

/// The kernel and the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct System {
    /// The kernel's release, such as `6.17.0-1014-nvidia`.
    pub kernel: String,
    /// The architecture, such as `aarch64`.
    pub arch: String,
    /// The machine's name by its firmware, such as `NVIDIA_DGX_Spark`.
    pub product: Option<String>,
    /// The relevant parameters of the kernel's command line: of the IOMMU, CMA, PCI, huge pages,
    /// and of the hand-over to the next kernel (`kho`).
    pub boot: Vec<String>,
    /// The bytes of a page.
    pub page_bytes: Option<u64>,
    /// How eagerly the kernel moves pages to keep free memory contiguous, 0 to 100
    /// (`vm.compaction_proactiveness`).
    #[serde(default)]
    pub compaction: Option<u8>,
    /// Whether devices behind an SMMU may use processes' page tables (`CONFIG_ARM_SMMU_V3_SVA`);
    /// `None` if the kernel's configuration cannot be read.
    #[serde(default)]
    pub smmu_sva: Option<bool>,
    /// The container runtime around this process, such as `docker`; `None` on the host itself.
    pub container: Option<String>,
    /// Whether the files exist by which programs open RDMA devices (`/dev/infiniband/uverbs*`);
    /// `None` for a host recorded without its devices.
    #[serde(default)]
    pub rdma_files: Option<bool>,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostMemory {
    /// All.
    pub total: u64,
    /// The bytes that can be allocated without swapping.
    pub available: u64,
    /// The kernel's contiguous memory area, and how much of it is free.
    pub cma: Option<(u64, u64)>,
}

/// A file system that programs write to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Where it is mounted, such as `/tmp`. A file system that serves several of these paths is
    /// listed once.
    pub path: String,
    /// Its size in bytes.
    pub total: u64,
    /// The bytes that programs without privileges may still write.
    pub available: u64,
}

/// Processors of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuClass {
    /// The name, such as `Cortex-X925`.
    pub name: String,
    /// Their numbers, such as `5-9,15-19`.
    pub cpus: String,
    /// Their count.
    pub count: usize,
    /// The highest frequency in kHz, if it is known.
    pub max_khz: Option<u64>,
    /// The frequency governor, such as `performance`.
    pub governor: Option<String>,
    /// The driver that sets the frequency, such as `cppc_cpufreq`.
    pub scaling: Option<String>,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors, such as `0-19`.
    pub cpus: String,
    /// The bytes of its memory.
    pub memory: u64,
    /// The distance to each node.
    pub distances: Vec<u32>,
}

/// The limits of a process, and those of the kernel for all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Lockable memory, in bytes.
    pub memlock: Limit,
    /// Open files.
    pub files: Limit,
    /// Whether the process is exempt from the limit on locked memory (`CAP_IPC_LOCK`).
    pub ipc_lock: bool,
    /// The largest receive buffer of a socket, in bytes (`net.core.rmem_max`).
    pub receive_buffer: Option<u64>,
    /// The largest send buffer of a socket, in bytes (`net.core.wmem_max`).
    pub send_buffer: Option<u64>,
}

/// A limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Unknown: it cannot be read.
    #[default]
    Unknown,
    /// This value.
    Most(u64),
    /// Unlimited.
    Unlimited,
}
