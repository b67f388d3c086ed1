//! The model of a host, and its JSON form.

mod valid;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::model::{
    CpuClass, Disk, Gpu, HostMemory, Limits, Netdev, Network, NumaNode, PciFunction, RdmaDevice,
    RdmaPort, Software, System,
};
use crate::rdma::Port;

/// The version of the JSON form. Changing the meaning or the name of a field increases it.
pub const FORMAT: u32 = 1;
/// The longest accepted document, in bytes. Real hosts have about 20 KiB.
const LONGEST: usize = 16 << 20;

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// [`FORMAT`] when it was written.
    pub format: u32,
    /// The host's name.
    pub name: String,
    /// When it was read: seconds since 1970 by its own clock.
    pub clock: f64,
    /// Kernel and machine.
    pub system: System,
    /// Memory.
    pub memory: HostMemory,
    /// The file systems that programs write to; empty for a recorded tree, which lacks them.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The processors, by kind.
    pub cpus: Vec<CpuClass>,
    /// The NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// The PCI functions of network cards and GPUs, and the bridges above them.
    pub pci: Vec<PciFunction>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// Network interfaces, routes, neighbours.
    pub network: Network,
    /// Network interfaces left out: a command that names one would do something else.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// The limits of the process that read this.
    pub limits: Limits,
    /// Driver, libraries, configuration files.
    pub software: Software,
}

impl Host {
    /// The host as one JSON document.
    pub fn to_json(&self) -> String {
        // Cannot fail: JSON can represent every field.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a document of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// The text is no document of a host, or of another version, or impossible for a real host. An
    /// impossible host has names that are unsafe in a shell, prefixes longer than addresses, or
    /// overlong lists.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.len() > LONGEST {
            return Err(Error::Long {
                what: "text",
                length: text.len(),
            });
        }
        let value: serde_json::Value = serde_json::from_str(text)?;
        let found = value.get("format").and_then(serde_json::Value::as_u64);
        let found = found.ok_or_else(|| Error::Format("it has no \"format\"".to_owned()))?;
        if found != u64::from(FORMAT) {
            return Err(Error::Version {
                found,
                expected: FORMAT,
            });
        }
        Self::from_value(value)
    }

    /// Leaves out the network interfaces whose names are unsafe in a command.
    pub(crate) fn leave_out(&mut self) {
        self.left_out = valid::leave_out(self);
    }

    /// The host without control characters, so that a terminal can print it safely.
    ///
    /// # Errors
    /// A list or text is too long, or a name is unsafe, as for [`from_json`](Self::from_json).
    pub(crate) fn checked(&self) -> Result<Self, Error> {
        Self::from_value(serde_json::to_value(self)?)
    }

    fn from_value(mut value: serde_json::Value) -> Result<Self, Error> {
        valid::clean(&mut value)?;
        let host = serde_json::from_value(value)?;
        valid::check(&host)?;
        Ok(host)
    }

    /// The network interface of this name.
    pub fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.network.netdevs.iter().find(|one| one.name == name)
    }

    /// The PCI function with this address.
    pub fn function(&self, address: &str) -> Option<&PciFunction> {
        self.pci.iter().find(|one| one.address == address)
    }

    /// All RDMA ports, with their devices.
    pub fn ports(&self) -> impl Iterator<Item = (&RdmaDevice, &RdmaPort)> {
        let devices = self.rdma.iter();
        devices.flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }

    /// The network interface of a port.
    pub fn netdev_of(&self, port: &RdmaPort) -> Option<&Netdev> {
        self.netdev(port.netdev.as_deref()?)
    }

    /// A port as ranks describe it to each other.
    pub fn described(&self, device: &RdmaDevice, port: &RdmaPort) -> Port {
        Port {
            device: device.name.clone(),
            number: port.number,
            pci: device.pci.clone(),
            netdev: port.netdev.clone(),
            mtu: self
                .netdev_of(port)
                .map_or(0, |netdev| packet_bytes(netdev.mtu)),
            speed: port.rate,
            gids: port.gids.clone(),
        }
    }
}

/// The payload of an RDMA packet over an Ethernet interface of this MTU, as chosen by drivers: the
/// largest power of two that leaves room for the headers.
fn packet_bytes(mtu: u32) -> u32 {
    /// IPv6, UDP, and the longest headers and checksum of RoCE.
    const HEADERS: u32 = 100;
    let sizes = [4096, 2048, 1024, 512, 256];
    let fits = |size: &u32| size + HEADERS <= mtu;
    sizes.into_iter().find(fits).unwrap_or(256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_host_is_a_document() {
        let host = testing::spark("spark-1", 1).host();
        assert_eq!(Host::from_json(&host.to_json()).unwrap(), host);
        let said = |text: &str| Host::from_json(text).unwrap_err().to_string();
        assert!(said("{}").contains("no \"format\""));
        assert!(said("{\"format\": 7}").contains("format 7, and this program reads 1"));
        assert!(said("{\"format\": 1}").contains("missing field"));
        assert!(said("fine").contains("not the description of a host"));
    }

    #[test]
    fn packets_are_what_fits_the_interface() {
        let sizes = [9000, 4200, 4195, 1500, 1280, 600, 68].map(packet_bytes);
        assert_eq!(sizes, [4096, 4096, 2048, 1024, 1024, 256, 256]);
    }
}
