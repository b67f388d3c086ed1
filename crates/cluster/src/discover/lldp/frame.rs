//! The format of LLDP frames (IEEE 802.1AB). Opens no socket.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::super::names;

/// The type of LLDP frames.
pub(super) const ETHER_TYPE: u16 = 0x88cc;
/// The longest description that is kept, in characters.
const LONGEST_DESCRIPTION: usize = 120;

// Types of values.
const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const SYSTEM_NAME: u8 = 5;
const SYSTEM_DESCRIPTION: u8 = 6;
const MANAGEMENT_ADDRESS: u8 = 8;

/// Says that a chassis is named by a MAC address.
const BY_MAC: u8 = 4;

pub(super) type Mac = [u8; 6];

/// A frame's description of its sender.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) source: Mac,
    /// Chassis ID and port ID, each with its subtype first. Both together name the port that has
    /// sent the frame.
    pub(super) chassis: Vec<u8>,
    pub(super) port: Vec<u8>,
    /// For how many seconds this holds; 0 if the port is shut down.
    pub(super) ttl: u16,
    pub(super) name: Option<String>,
    pub(super) description: Option<String>,
    /// Addresses that mean the same on each host of the network.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl Frame {
    /// `None` for anything but a whole frame of LLDP. Optional values that make no sense are left
    /// out.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, values) = bytes.split_at_checked(14)?;
        if header[12..] != ETHER_TYPE.to_be_bytes() {
            return None;
        }
        let (chassis, values) = value(CHASSIS, values)?;
        let (port, values) = value(PORT, values)?;
        let (ttl, mut values) = value(TTL, values)?;
        let mut frame = Self {
            source: header[6..12].try_into().ok()?,
            chassis: identity(chassis)?,
            port: identity(port)?,
            ttl: u16::from_be_bytes(ttl.try_into().ok()?),
            ..Self::default()
        };
        loop {
            let (kind, text, rest) = next(values)?;
            match kind {
                END => return Some(frame),
                // They come once.
                CHASSIS | PORT | TTL => return None,
                SYSTEM_NAME => frame.name = names::of_system(&String::from_utf8_lossy(text)),
                SYSTEM_DESCRIPTION => frame.description = description(text),
                MANAGEMENT_ADDRESS => frame.addresses.extend(address(text)),
                _ => {}
            }
            values = rest;
        }
    }

    /// Whether a host with these MAC addresses has sent it.
    pub(super) fn is_of(&self, macs: &BTreeSet<Mac>) -> bool {
        let is_chassis = |mac: &Mac| self.chassis[0] == BY_MAC && self.chassis[1..] == *mac;
        macs.contains(&self.source) || macs.iter().any(is_chassis)
    }
}

/// The first TLV's value, which must be of this type, and what follows it.
fn value(kind: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, value, rest) = next(bytes)?;
    (found == kind).then_some((value, rest))
}

/// The type of the first TLV, its value, and what follows it: 7 bits of type and 9 of length come
/// before each value.
fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (header, rest) = bytes.split_first_chunk()?;
    let header = u16::from_be_bytes(*header);
    let (value, rest) = rest.split_at_checked(usize::from(header & 0x1ff))?;
    Some(((header >> 9) as u8, value, rest))
}

/// A subtype, and at least a byte of the ID.
fn identity(value: &[u8]) -> Option<Vec<u8>> {
    (2..=256).contains(&value.len()).then(|| value.to_vec())
}

/// Printable ASCII only: no escape sequences or look-alikes.
fn description(text: &[u8]) -> Option<String> {
    let is_shown = |c: &char| c.is_ascii_graphic() || *c == ' ';
    let text = text.iter().map(|&byte| char::from(byte)).filter(is_shown);
    let text: String = text.take(LONGEST_DESCRIPTION).collect();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A length, the kind of the address, and the address; the number of an interface follows. An
/// address of one link is left out, since the frame does not say which interface leads there.
fn address(value: &[u8]) -> Option<IpAddr> {
    const IPV4: u8 = 1;
    const IPV6: u8 = 2;
    let (&len, rest) = value.split_first()?;
    let (&kind, address) = rest.get(..usize::from(len))?.split_first()?;
    let ip = match kind {
        IPV4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        IPV6 => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        _ => return None,
    };
    let is_usable = match ip {
        IpAddr::V4(ip) => !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
    };
    let is_of_nobody = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    (is_usable && !is_of_nobody).then_some(ip)
}
