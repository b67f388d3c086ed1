//! Ports: their state, MTU and rate.

use std::fmt;

use crate::raw;

/// The attributes of a port, and its state when it was queried.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its number; the first is 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// The largest MTU that it supports.
    pub max_mtu: Mtu,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// Its rate in Gbit/s; `None` if the device reports a speed or width that is unknown here.
    pub gbits: Option<f64>,
    /// The length of its GID table; most entries are not in use.
    pub gid_table_len: u32,
    /// The largest message, in bytes.
    pub max_message: u32,
}

/// The state of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortState {
    /// No link.
    Down,
    /// The link exists, but is being set up.
    Initializing,
    /// It carries packets.
    Active,
    /// Another state, with libibverbs' number.
    Other(u32),
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkLayer {
    /// InfiniBand, or not specified by the device.
    InfiniBand,
    /// Ethernet, so RoCE.
    Ethernet,
}

/// The bytes of payload per packet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum Mtu {
    /// 256 bytes.
    B256 = raw::IBV_MTU_256,
    /// 512 bytes.
    B512 = raw::IBV_MTU_512,
    /// 1024 bytes.
    B1024 = raw::IBV_MTU_1024,
    /// 2048 bytes.
    B2048 = raw::IBV_MTU_2048,
    /// 4096 bytes.
    B4096 = raw::IBV_MTU_4096,
}

impl Mtu {
    /// The number of bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of `bytes` bytes, if there is one.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        all.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// From libibverbs' encoding; an unknown value counts as the smallest MTU.
    fn from_raw(mtu: raw::ibv_mtu) -> Mtu {
        128_u32
            .checked_shl(mtu)
            .and_then(Mtu::from_bytes)
            .unwrap_or(Mtu::B256)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl Port {
    pub(crate) fn from_raw(number: u8, port: &raw::ibv_port_attr) -> Port {
        // IBV_LINK_LAYER_ETHERNET, of an unnamed enum of verbs.h, which the bindings leave out.
        let link_layer = if port.link_layer == 2 {
            LinkLayer::Ethernet
        } else {
            LinkLayer::InfiniBand
        };
        Port {
            number,
            state: match port.state {
                raw::IBV_PORT_DOWN => PortState::Down,
                raw::IBV_PORT_INIT | raw::IBV_PORT_ARMED => PortState::Initializing,
                raw::IBV_PORT_ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
            link_layer,
            max_mtu: Mtu::from_raw(port.max_mtu),
            active_mtu: Mtu::from_raw(port.active_mtu),
            gbits: gbits(port.active_speed, port.active_width),
            gid_table_len: port.gid_tbl_len.max(0) as u32,
            max_message: port.max_msg_sz,
        }
    }
}

/// The rate of a port from libibverbs' encodings: the number of lanes times the signalling rate of
/// a lane.
fn gbits(speed: u8, width: u8) -> Option<f64> {
    let lane = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return None,
    };
    let lanes = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    Some(lane * lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_bytes() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(Mtu::from_bytes(bytes).unwrap().bytes(), bytes);
        }
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::from_raw(5), Mtu::B4096);
        assert_eq!(Mtu::from_raw(0), Mtu::B256);
        assert_eq!(Mtu::from_raw(99), Mtu::B256);
    }

    #[test]
    fn rates_are_lanes_times_speed() {
        assert_eq!(gbits(64, 2), Some(200.0));
        assert_eq!(gbits(32, 2), Some(100.0));
        assert_eq!(gbits(128, 2), Some(400.0));
        assert_eq!(gbits(1, 1), Some(2.5));
        assert_eq!(gbits(3, 2), None);
        assert_eq!(gbits(64, 3), None);
    }
}
