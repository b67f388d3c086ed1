//! PCI functions.

use serde::{Deserialize, Serialize};

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PciFunction {
    /// The address, such as `0000:01:00.0`.
    pub address: String,
    /// The class, such as `0x020000` for Ethernet.
    pub class: u32,
    /// The vendor's number: `0x15b3` for Mellanox, `0x10de` for NVIDIA.
    pub vendor: u16,
    /// The vendor's number for the device.
    pub device: u16,
    /// The driver bound to it.
    pub driver: Option<String>,
    /// The NUMA node.
    pub numa: Option<u32>,
    /// Whether it is a virtual function of a card (SR-IOV).
    #[serde(default)]
    pub is_virtual: bool,
    /// The link to the bridge above; `None` where the device reports none.
    pub link: Option<PcieLink>,
    /// The bridges above, the outermost first.
    pub bridges: Vec<String>,
}

/// A PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PcieLink {
    /// The lanes in use.
    pub width: u32,
    /// The lanes of the function.
    pub max_width: u32,
    /// The rate of a lane in GT/s.
    pub speed: f64,
    /// The highest rate of the function.
    pub max_speed: f64,
}

impl PcieLink {
    /// The data rate in Gbit/s, without the headers of packets.
    pub fn gbits(&self) -> f64 {
        // Generations 1 and 2 encode 8 bits as 10, later ones 128 as 130.
        let encoding = if self.speed < 8.0 { 0.8 } else { 128.0 / 130.0 };
        f64::from(self.width) * self.speed * encoding
    }
}
