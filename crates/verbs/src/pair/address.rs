//! The address of a peer's queue pair, for the transition to ready-to-receive. Knows ports and
//! GIDs; opens nothing.

use crate::{Gid, GidEntry, GidKind, LinkLayer, Mtu, Port, PortState};

/// The remote end of a queue pair, as the peer announced it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// Its port's address.
    pub gid: Gid,
    /// The packet format that it expects.
    pub kind: GidKind,
    /// The number of its queue pair, 24 bits.
    pub qp_num: u32,
}

/// A checked path to a peer: from a local address to a remote one that it can reach.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressVector {
    pub(crate) port: u8,
    pub(crate) own: Gid,
    pub(crate) own_index: u8,
    pub(crate) peer: Peer,
    pub(crate) mtu: Mtu,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) service_level: u8,
}

/// Why there is no path between two addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The port is not active.
    #[error("port {port} is not active but {state:?}: check its cable and its network interface")]
    PortDown {
        /// The port.
        port: u8,
        /// Its state.
        state: PortState,
    },
    /// The port is not an Ethernet port.
    #[error("port {port} is an InfiniBand port; only RoCE is supported")]
    NotEthernet {
        /// The port.
        port: u8,
    },
    /// The GID belongs to another port.
    #[error("GID index {index} ({gid}) is of port {seen}, but was named for port {port}")]
    OtherPort {
        /// The requested port.
        port: u8,
        /// The GID's index.
        index: u32,
        /// The GID.
        gid: Gid,
        /// The GID's port.
        seen: u8,
    },
    /// The GIDs are of different classes.
    #[error(
        "the GID here ({own}, index {index}) is {}, but the peer's ({peer}) is {}: choose GIDs of \
         one class at both ends (see NCCL_IB_GID_INDEX)",
        own.class(),
        peer.class()
    )]
    Class {
        /// The GID here.
        own: Gid,
        /// Its index.
        index: u32,
        /// The peer's.
        peer: Gid,
    },
    /// The GIDs are of different types.
    #[error(
        "the GID here ({gid}, index {index}) is for {own}, but the peer's is for {peer}: choose \
         GIDs of one type at both ends (see NCCL_IB_GID_INDEX)"
    )]
    Kind {
        /// The GID here.
        gid: Gid,
        /// Its index.
        index: u32,
        /// Its type.
        own: GidKind,
        /// The type of the peer's.
        peer: GidKind,
    },
    /// The MTU is larger than the port's.
    #[error(
        "an MTU of {asked} was asked for, but port {port} carries {active}: check the MTU of its \
         network interface"
    )]
    Mtu {
        /// The requested MTU.
        asked: Mtu,
        /// The port.
        port: u8,
        /// The port's MTU.
        active: Mtu,
    },
    /// A number is too large for its field.
    #[error("{what} is {asked:#x}, but must be at most {most:#x}")]
    TooLarge {
        /// The parameter.
        what: &'static str,
        /// The number.
        asked: u32,
        /// The most that fits.
        most: u32,
    },
}

impl AddressVector {
    /// The path from `own`, an entry of the GID table of `port`, to `peer`. `mtu` must not be
    /// larger than the active MTU of either end's port. The hop limit is 64 and the traffic
    /// class 0.
    ///
    /// # Errors
    ///
    /// The two cannot reach each other; the error names the difference. Whether the peer answers is
    /// not checked.
    pub fn new(
        port: &Port,
        own: &GidEntry,
        peer: &Peer,
        mtu: Mtu,
    ) -> Result<AddressVector, AddressError> {
        check_port(port, own)?;
        check_gids(own, peer)?;
        if mtu > port.active_mtu {
            let (port, active) = (port.number, port.active_mtu);
            return Err(AddressError::Mtu {
                asked: mtu,
                port,
                active,
            });
        }
        within("the peer's queue pair number", peer.qp_num, 0xff_ffff)?;
        within("the GID index", own.index, u8::MAX.into())?;
        Ok(AddressVector {
            port: port.number,
            own: own.gid,
            own_index: own.index as u8,
            peer: *peer,
            mtu,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        })
    }

    /// Sets the traffic class: the DSCP in the upper six bits.
    #[must_use]
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        Self {
            traffic_class,
            ..self
        }
    }

    /// Sets the hop limit.
    #[must_use]
    pub fn hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    /// Sets the service level, which becomes the VLAN priority.
    #[must_use]
    pub fn service_level(self, service_level: u8) -> Self {
        Self {
            service_level,
            ..self
        }
    }

    /// The peer.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

fn check_port(port: &Port, own: &GidEntry) -> Result<(), AddressError> {
    let number = port.number;
    if port.link_layer != LinkLayer::Ethernet {
        return Err(AddressError::NotEthernet { port: number });
    }
    if port.state != PortState::Active {
        return Err(AddressError::PortDown {
            port: number,
            state: port.state,
        });
    }
    if own.port != number {
        let &GidEntry {
            gid,
            index,
            port: seen,
            ..
        } = own;
        return Err(AddressError::OtherPort {
            port: number,
            index,
            gid,
            seen,
        });
    }
    Ok(())
}

fn check_gids(own: &GidEntry, peer: &Peer) -> Result<(), AddressError> {
    let &GidEntry {
        gid, index, kind, ..
    } = own;
    if gid.class() != peer.gid.class() {
        return Err(AddressError::Class {
            own: gid,
            index,
            peer: peer.gid,
        });
    }
    if kind != peer.kind {
        return Err(AddressError::Kind {
            gid,
            index,
            own: kind,
            peer: peer.kind,
        });
    }
    Ok(())
}

pub(super) fn within(what: &'static str, asked: u32, most: u32) -> Result<(), AddressError> {
    if asked > most {
        return Err(AddressError::TooLarge { what, asked, most });
    }
    Ok(())
}
