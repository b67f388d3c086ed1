//! GIDs, the addresses of ports.

use std::fmt;
use std::net::{AddrParseError, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The address of a port: an IPv6 address, which may be a mapped IPv4 address.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gid(pub [u8; 16]);

/// The class of a GID's address. Two ports can reach each other only by GIDs of the same class.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum GidClass {
    /// `::ffff:a.b.c.d`, which follows the interface's IPv4 address.
    Ipv4Mapped,
    /// `fe80::/10`, valid on one network only.
    LinkLocal,
    /// Any other IPv6 address.
    Global,
}

/// The packet format for a GID.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE version 1, Ethernet frames that no router forwards.
    RoceV1,
    /// RoCE version 2, UDP.
    RoceV2,
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The number of the port.
    pub port: u8,
    /// The entry's index in the port's table. Look it up again each time: indices change when
    /// addresses are added or removed.
    pub index: u32,
    /// The packet format.
    pub kind: GidKind,
    /// The network interface that has the address; `None` on InfiniBand.
    pub netdev: Option<String>,
}

impl Gid {
    /// The class of the address.
    pub fn class(self) -> GidClass {
        let address = Ipv6Addr::from(self.0);
        if address.to_ipv4_mapped().is_some() {
            GidClass::Ipv4Mapped
        } else if address.is_unicast_link_local() {
            GidClass::LinkLocal
        } else {
            GidClass::Global
        }
    }

    /// The IPv4 address, if it is mapped.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it is all zeros, which marks an unused entry.
    pub(crate) fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Gid(address.to_ipv6_mapped().octets())
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Gid(text.parse::<Ipv6Addr>()?.octets()))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Display for GidClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidClass::Ipv4Mapped => "IPv4-mapped",
            GidClass::LinkLocal => "link-local",
            GidClass::Global => "global IPv6",
        })
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::Ib => "IB",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_the_address() {
        let class = |text: &str| text.parse::<Gid>().unwrap().class();
        assert_eq!(class("::ffff:10.0.0.1"), GidClass::Ipv4Mapped);
        assert_eq!(class("::ffff:169.254.3.4"), GidClass::Ipv4Mapped);
        assert_eq!(class("fe80::1"), GidClass::LinkLocal);
        assert_eq!(class("febf::1"), GidClass::LinkLocal);
        assert_eq!(class("fec0::1"), GidClass::Global);
        assert_eq!(class("2001:db8::1"), GidClass::Global);
    }

    #[test]
    fn ipv4_addresses_come_and_go() {
        let address = Ipv4Addr::new(10, 1, 2, 3);
        assert_eq!(Gid::from(address).ipv4(), Some(address));
        assert_eq!(Gid::from(address).to_string(), "::ffff:10.1.2.3");
        assert_eq!("fe80::1".parse::<Gid>().unwrap().ipv4(), None);
    }
}
