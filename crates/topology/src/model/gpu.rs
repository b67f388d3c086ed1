//! GPUs.

use serde::{Deserialize, Serialize};

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The PCI address, such as `000f:01:00.0`.
    pub bus_id: String,
    /// The name, such as `NVIDIA GB10`, if a driver tells it.
    pub name: Option<String>,
    /// CUDA's description of it; `None` if the driver reports nothing or hides the GPU.
    pub cuda: Option<CudaDevice>,
}

/// The answer of a program that cannot ask CUDA's driver.
pub const BUILT_WITHOUT_CUDA: &str = "this program was built without CUDA";

/// The answer of CUDA's driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cuda {
    /// The CUDA version of the driver, such as `13.0`.
    pub version: Option<String>,
    /// The GPUs that it lists.
    pub devices: Vec<CudaDevice>,
    /// Why there is no answer.
    pub problem: Option<String>,
}

/// A GPU as CUDA's driver describes it. Its claims prove nothing: only moving data shows what
/// works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// CUDA's ordinal.
    pub ordinal: usize,
    /// The PCI address.
    pub bus_id: String,
    /// The name.
    pub name: String,
    /// The bytes of its memory.
    pub memory: u64,
    /// The compute capability, such as (12, 1).
    pub capability: (i32, i32),
    /// Whether it shares the memory of the processors (`CU_DEVICE_ATTRIBUTE_INTEGRATED`).
    pub integrated: bool,
    /// Whether the driver claims that network cards reach its memory by dma-buf
    /// (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    pub dma_buf: bool,
    /// How its kernels reach the memory of the other GPUs.
    pub peers: Vec<GpuPeer>,
}

/// Another GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPeer {
    /// Its PCI address.
    pub bus_id: String,
    /// How it is reached.
    pub reach: Reach,
}

/// How a GPU reaches another one's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Over NVLink.
    NvLink,
    /// Over PCIe.
    Pcie,
    /// Neither: only through the host's memory.
    None,
}
