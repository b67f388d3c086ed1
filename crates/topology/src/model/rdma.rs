//! RDMA devices.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rdma::Gid;

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Its name, such as `rocep1s0f0`.
    pub name: String,
    /// The PCI address; `None` for a software device.
    pub pci: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// The number shared by all functions of one network card (`sys_image_guid`).
    pub card: Option<String>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u8,
    /// The state of its link.
    pub state: PortState,
    /// The rate of its link in Mbit/s.
    pub rate: Option<u32>,
    /// Whether it is a port of an Ethernet card (`RoCE`) rather than an InfiniBand card.
    pub ethernet: bool,
    /// The network interface.
    pub netdev: Option<String>,
    /// The addresses, with the lengths of the subnets' prefixes.
    pub gids: Vec<Gid>,
    /// The kernel's counters of errors and of bytes, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// It carries packets.
    Active,
    /// It has no link.
    Down,
    /// It has a link that is being set up.
    Other,
}

impl RdmaPort {
    /// Whether the kernel has this counter.
    pub fn has_counter(&self, name: &str) -> bool {
        self.counters.contains_key(name)
    }

    /// A counter's value; 0 if the counter does not exist.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Down => "down",
            Self::Other => "not active",
        })
    }
}
