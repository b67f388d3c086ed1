//! Ports of RDMA devices, as a rank describes them to its peers.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use spark_ccl_config::Rdma;
use spark_ccl_verbs::{GidEntry, GidKind};

use crate::netif::Interface;

/// An active port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The device's name, such as `rocep1s0f0`.
    pub device: String,
    /// The number of the port, from 1.
    pub number: u8,
    /// The device's PCI address, such as `0000:01:00.0`; `None` for a software device.
    pub pci: Option<String>,
    /// The network interface.
    pub netdev: Option<String>,
    /// The MTU: the payload bytes of a packet.
    pub mtu: u32,
    /// Speed in Mbit/s, if the device reports it.
    pub speed: Option<u32>,
    /// Its addresses.
    pub gids: Vec<Gid>,
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its index in the table.
    pub index: u8,
    /// The address. An IPv4 address is mapped: `::ffff:10.0.0.1`.
    pub address: Ipv6Addr,
    /// The packet format.
    pub roce: Roce,
    /// The length of the subnet's prefix in bits (of the IPv4 address, if it is mapped), if the
    /// network interface tells.
    pub prefix: Option<u8>,
}

/// The packet format; the better one comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Roce {
    /// UDP.
    V2,
    /// Ethernet frames, which no router forwards.
    V1,
}

/// The property that two GIDs must share to reach each other; the better one comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind(Roce, Family);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
    LinkLocalV6,
}

/// Why a port is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A setting excludes it.
    #[error("ruled out by {0}")]
    Excluded(String),
    /// It does not have the only address that may be used.
    #[error(
        "its GID table has nothing at index {index}, the only one that {setting} allows, but at \
         {present}"
    )]
    Index {
        /// The index that is allowed.
        index: u8,
        /// The setting that allows it.
        setting: String,
        /// The entries that exist.
        present: String,
    },
    /// It has no address.
    #[error("it has no RoCE address: its network interface has none, or is down")]
    NoAddress,
}

impl Port {
    /// The port with only the addresses that the settings allow.
    ///
    /// # Errors
    /// When that leaves no address.
    pub fn usable(&self, settings: &Rdma) -> Result<Port, Unusable> {
        if !settings.hcas.allows(&self.device, self.number) {
            return Err(Unusable::Excluded(settings.hcas.to_string()));
        }
        if self.gids.is_empty() {
            return Err(Unusable::NoAddress);
        }
        let mut port = self.clone();
        if let Some(only) = &settings.gid_index {
            port.gids.retain(|gid| gid.index == only.index);
            if port.gids.is_empty() {
                let present: Vec<_> = self.gids.iter().map(|gid| gid.index.to_string()).collect();
                return Err(Unusable::Index {
                    index: only.index,
                    setting: only.to_string(),
                    present: present.join(", "),
                });
            }
        }
        Ok(port)
    }

    /// The address to use while the peer is unknown, and why.
    ///
    /// # Errors
    /// When none would.
    pub fn choice(&self, settings: &Rdma) -> Result<(Gid, String), Unusable> {
        let usable = self.usable(settings)?;
        let gid = *usable.preferred().ok_or(Unusable::NoAddress)?;
        let why = match &settings.gid_index {
            Some(only) => format!("{only} allows {} only", only.index),
            None if gid.ip().is_ipv4() => format!("IPv4 and {} come first", gid.roce),
            None => format!("no IPv4 address with {}", gid.roce),
        };
        Ok((gid, why))
    }

    /// The preferred address while the peer is unknown.
    pub fn preferred(&self) -> Option<&Gid> {
        self.gids.iter().min_by_key(|gid| gid.preference())
    }

    /// Fills in the prefix lengths from the network interfaces.
    pub fn set_prefixes(&mut self, interfaces: &[Interface]) {
        for gid in &mut self.gids {
            let interface = interfaces.iter().find(|one| one.addr == gid.ip());
            gid.prefix = interface.map(|one| one.prefix).or(gid.prefix);
        }
    }
}

impl Gid {
    /// Describes an entry of a port's table to peers; `None` if `RoCE` cannot use it.
    pub fn of_entry(entry: &GidEntry) -> Option<Self> {
        Some(Self {
            // A queue pair stores the index in a byte.
            index: entry.index.try_into().ok()?,
            address: Ipv6Addr::from(entry.gid.0),
            roce: match entry.kind {
                GidKind::RoceV2 => Roce::V2,
                GidKind::RoceV1 => Roce::V1,
                GidKind::Ib => return None,
            },
            prefix: None,
        })
    }

    /// The address; the IPv4 address if it is mapped.
    pub fn ip(&self) -> IpAddr {
        IpAddr::V6(self.address).to_canonical()
    }

    /// Whether it is link-local: other cables may then have the same subnet, as in NVIDIA's default
    /// set-up.
    pub fn is_link_local(&self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        let family = match self.ip() {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Family::LinkLocalV6,
            IpAddr::V6(_) => Family::V6,
        };
        Kind(self.roce, family)
    }

    /// The sort key of addresses, best first.
    pub(super) fn preference(&self) -> (Kind, bool, u8) {
        (self.kind(), self.is_link_local(), self.index)
    }
}

impl Roce {
    /// The kind of a table's entry.
    pub fn kind(self) -> GidKind {
        match self {
            Self::V1 => GidKind::RoceV1,
            Self::V2 => GidKind::RoceV2,
        }
    }
}

impl fmt::Display for Port {
    /// Formats the device and port as in settings, and the addresses, for error messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.gids.iter().map(Gid::to_string).collect();
        let Self { device, number, .. } = self;
        write!(f, "{device}:{number} ({})", addresses.join(", "))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip())?;
        if let Some(prefix) = self.prefix {
            write!(f, "/{prefix}")?;
        }
        match self.roce {
            Roce::V2 => Ok(()),
            Roce::V1 => write!(f, " {}", self.roce),
        }
    }
}

impl fmt::Display for Roce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Roce::V2 => "RoCE v2",
            Roce::V1 => "RoCE v1",
        })
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_config::{Env, Settings};

    use super::*;

    fn gid(index: u8, address: &str, roce: Roce) -> Gid {
        let address: IpAddr = address.parse().unwrap();
        let address = match address {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Gid {
            index,
            address,
            roce,
            prefix: None,
        }
    }

    /// A port of a DGX Spark, with the addresses of the default set-up.
    fn port() -> Port {
        Port {
            device: "rocep1s0f0".to_owned(),
            number: 1,
            pci: Some("0000:01:00.0".to_owned()),
            netdev: Some("enp1s0f0np0".to_owned()),
            mtu: 4096,
            speed: Some(200_000),
            gids: vec![
                gid(0, "fe80::1", Roce::V1),
                gid(1, "fe80::1", Roce::V2),
                gid(2, "10.0.0.1", Roce::V1),
                gid(3, "10.0.0.1", Roce::V2),
            ],
        }
    }

    fn usable(variables: &[(&str, &str)]) -> Result<Port, Unusable> {
        let env = Env::from_pairs(variables.iter().copied());
        port().usable(&Settings::from_env(&env).unwrap().rdma)
    }

    #[test]
    fn ipv4_comes_before_link_local_and_v2_before_v1() {
        let mut port = port();
        port.gids.push(gid(4, "169.254.0.1", Roce::V2));
        port.gids.push(gid(5, "fd00::1", Roce::V2));
        let mut order = Vec::new();
        while let Some(&best) = port.preferred() {
            order.push(best.index);
            port.gids.retain(|gid| *gid != best);
        }
        assert_eq!(order, [3, 4, 5, 1, 2, 0]);
    }

    #[test]
    fn settings_rule_out_ports_and_addresses() {
        assert_eq!(usable(&[]), Ok(port()));
        let only = usable(&[("NCCL_IB_GID_INDEX", "2"), ("NCCL_IB_HCA", "rocep1s0f0:1")]).unwrap();
        assert_eq!(only.gids, [gid(2, "10.0.0.1", Roce::V1)]);
        let text = |variables| usable(variables).unwrap_err().to_string();
        assert_eq!(
            text(&[("NCCL_IB_HCA", "^rocep1s0f0")]),
            "ruled out by NCCL_IB_HCA=^rocep1s0f0"
        );
        assert_eq!(
            text(&[("SPARK_CCL_IB_GID_INDEX", "7")]),
            "its GID table has nothing at index 7, the only one that SPARK_CCL_IB_GID_INDEX (from \
             environment) allows, but at 0, 1, 2, 3"
        );
        let mut bare = port();
        bare.gids.clear();
        let settings = Settings::default().rdma;
        assert_eq!(bare.usable(&settings), Err(Unusable::NoAddress));
    }

    #[test]
    fn interfaces_know_the_subnets() {
        let mut port = port();
        port.set_prefixes(&[Interface {
            name: "enp1s0f0np0".to_owned(),
            index: 2,
            addr: "10.0.0.1".parse().unwrap(),
            prefix: 24,
            speed: None,
            rdma: true,
            loopback: false,
        }]);
        let prefixes: Vec<_> = port.gids.iter().map(|gid| gid.prefix).collect();
        assert_eq!(prefixes, [None, None, Some(24), Some(24)]);
        assert_eq!(
            port.to_string(),
            "rocep1s0f0:1 (fe80::1 RoCE v1, fe80::1, 10.0.0.1/24 RoCE v1, 10.0.0.1/24)"
        );
    }
}
