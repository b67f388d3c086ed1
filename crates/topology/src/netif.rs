//! Network interfaces: listing them, and selecting those to use.

mod list;
mod rails;
mod select;
mod shared;

use std::net::IpAddr;

pub use list::{all, list};
pub use rails::{PeerAddress, Rail, rails};
pub(crate) use select::is_internal;
pub use select::{is_link_local, select};
pub use shared::SharedSubnets;
use spark_ccl_config::Settings;

use crate::model::{Address, Netdev};

/// The rank of an interface that reports no speed, in Mbit/s: without and with an RDMA device.
const UNKNOWN: u32 = 1_000;
const UNKNOWN_RDMA: u32 = 100_000;

/// An address of an interface that is up and has a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`; an alias with its label, such as `eth0:1`.
    pub name: String,
    /// Its index, which is also the scope of its link-local addresses.
    pub index: u32,
    /// The address.
    pub addr: IpAddr,
    /// The length of the subnet's prefix, in bits.
    pub prefix: u8,
    /// Speed in Mbit/s, if the driver reports it.
    pub speed: Option<u32>,
    /// Whether it belongs to an RDMA device.
    pub rdma: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
}

impl Interface {
    /// Each address of an interface, which may belong to an RDMA device.
    pub fn of(netdev: &Netdev, rdma: bool) -> Vec<Self> {
        let addresses = netdev.addresses.iter();
        let interface = |address: &Address| Self {
            name: address.label.clone().unwrap_or_else(|| netdev.name.clone()),
            index: netdev.index,
            addr: address.ip,
            prefix: address.prefix,
            speed: netdev.speed,
            rdma,
            loopback: netdev.loopback,
        };
        addresses.map(interface).collect()
    }

    /// The speed by which it is ranked, in Mbit/s.
    pub fn rank(&self) -> u32 {
        ranked(self.speed, self.rdma)
    }

    /// Whether `addr` is on this interface's subnet. Every link has the same link-local IPv6
    /// subnet, so for link-local addresses `true` only means "perhaps".
    pub fn reaches(&self, addr: IpAddr) -> bool {
        same_subnet(self.addr, addr, self.prefix)
    }
}

/// The speed by which an interface is ranked. Radios, bridges and virtual machines' interfaces
/// report none, but no RDMA device is as slow as those.
pub(crate) fn ranked(speed: Option<u32>, rdma: bool) -> u32 {
    speed.unwrap_or(if rdma { UNKNOWN_RDMA } else { UNKNOWN })
}

/// Whether the first `prefix` bits of two addresses are equal. `false` if they are of different
/// families.
pub fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    a.is_ipv4() == b.is_ipv4() && network(a, prefix) == network(b, prefix)
}

/// The first address of an address's subnet. A prefix longer than the address counts as the whole
/// address.
pub fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let rest = 32_u32.saturating_sub(prefix.into());
            let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) => {
            let rest = 128_u32.saturating_sub(prefix.into());
            let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & mask).into())
        }
    }
}

/// Why there is no interface to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetifError {
    /// The operating system failed to list them.
    #[error("the network interfaces cannot be listed: {0}")]
    List(String),
    /// None matches the settings.
    #[error("no network interface {wanted}; there are: {present}")]
    NoMatch {
        /// The request, and the variable that made it.
        wanted: String,
        /// Names and addresses of the interfaces that exist.
        present: String,
    },
}

/// The interfaces to use according to the settings, best first. Logs them in one line at INFO.
///
/// `root` is the address where the ranks meet, if it is known.
///
/// # Errors
/// When there is none; the error lists the interfaces that exist.
pub fn find(settings: &Settings, root: Option<IpAddr>) -> Result<Vec<Interface>, NetifError> {
    let choice = settings.socket_ifname.as_ref();
    let found = select(&list()?, choice, settings.socket_family, root)?;
    let names: Vec<_> = found
        .iter()
        .map(|one| format!("{} ({})", one.name, one.addr))
        .collect();
    let why = match choice {
        Some(choice) => format!("{}={}", choice.variable, choice.pattern),
        None => "the default order".to_owned(),
    };
    spark_ccl_log::info!("network interfaces by {why}: {}", names.join(", "));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subnets() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(same_subnet(ip("10.0.0.1"), ip("10.0.0.254"), 24));
        assert!(!same_subnet(ip("10.0.0.1"), ip("10.0.1.1"), 24));
        assert!(same_subnet(ip("10.0.0.1"), ip("192.168.0.1"), 0));
        assert!(!same_subnet(ip("10.0.0.1"), ip("10.0.0.2"), 32));
        assert!(same_subnet(ip("fd00::1"), ip("fd00::ffff"), 64));
        assert!(!same_subnet(ip("fd00::1"), ip("fd00:0:0:1::1"), 64));
        assert!(same_subnet(ip("fd00::1"), ip("fe80::1"), 0));
        assert!(!same_subnet(ip("10.0.0.1"), ip("::ffff:10.0.0.1"), 0));
    }

    proptest! {
        #[test]
        fn subnets_agree_bit_by_bit(a: u32, b: u32, prefix in 0_u8..=32) {
            let expected = (0..prefix).all(|bit| (a ^ b) & (1 << (31 - bit)) == 0);
            let ip = |bits: u32| IpAddr::V4(bits.into());
            prop_assert_eq!(same_subnet(ip(a), ip(b), prefix), expected);
        }

        #[test]
        fn no_prefix_panics(a: [u8; 16], b: [u8; 16], prefix: u8) {
            let _ = same_subnet(IpAddr::V6(a.into()), IpAddr::V6(b.into()), prefix);
        }
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let all = list().unwrap();
        let lo = all
            .iter()
            .find(|one| one.loopback && one.addr.is_ipv4())
            .unwrap();
        assert!(
            lo.addr.is_loopback() && lo.index > 0 && lo.prefix == 8,
            "{lo:?}"
        );
    }

    #[test]
    fn a_link_local_address_may_be_on_any_link() {
        let one = Interface {
            name: "eth0".to_owned(),
            index: 7,
            addr: "fe80::1".parse().unwrap(),
            prefix: 64,
            speed: None,
            rdma: false,
            loopback: false,
        };
        assert!(one.reaches("fe80::2".parse().unwrap()));
    }
}
