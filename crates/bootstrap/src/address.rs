//! An address of this host, with its subnet and interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;

/// An address of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of its subnet's prefix, in bits.
    pub prefix: u8,
    /// The index of its interface, which is the scope of a link-local IPv6 address; 0 if it is not
    /// known.
    pub interface: u32,
    /// The speed of its interface in Mbit/s; 0 if it is not known.
    pub speed: u32,
    /// The interface to bind sockets to, where the address alone does not select it: several
    /// interfaces of this host are in its subnet.
    pub device: Option<NonZeroU32>,
}

impl Address {
    /// 127.0.0.1, which only ranks of this host can reach.
    pub const LOOPBACK: Address = Address {
        ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
        prefix: 8,
        interface: 0,
        speed: 0,
        device: None,
    };

    pub(crate) fn with_port(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, port),
            IpAddr::V6(ip) => {
                let scope = if is_link_local(ip) { self.interface } else { 0 };
                SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))
            }
        }
    }

    /// Whether another address is in its subnet.
    pub(crate) fn reaches(&self, ip: IpAddr) -> bool {
        let (differing, bits) = match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()) << 96, 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
            _ => return false,
        };
        differing.leading_zeros() >= u32::from(self.prefix).min(bits)
    }
}

impl From<IpAddr> for Address {
    /// An address whose subnet and interface are not known.
    fn from(ip: IpAddr) -> Self {
        Address {
            ip,
            prefix: if ip.is_ipv4() { 32 } else { 128 },
            interface: 0,
            speed: 0,
            device: None,
        }
    }
}

/// Whether an address is link-local IPv6, and so needs a scope of the host that uses it.
pub(crate) fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if is_link_local(v6))
}

fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}
