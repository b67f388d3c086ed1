//! Network interfaces, routes and neighbours.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The network as the kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Network {
    /// The interfaces.
    pub netdevs: Vec<Netdev>,
    /// The routes of the main table.
    pub routes: Vec<Route>,
    /// The neighbours that the kernel knows.
    pub neighbours: Vec<Neighbour>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// Its name, such as `enp1s0f0np0`.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Whether it was brought up.
    pub up: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The hardware address, such as `02:00:00:00:00:01`.
    pub mac: Option<String>,
    /// The port of the card, such as `p0`, if the driver tells.
    pub port_name: Option<String>,
    /// The id of the card's internal switch that the port belongs to, if there is one.
    pub switch_id: Option<String>,
    /// The speed in Mbit/s, if the driver tells.
    #[serde(default)]
    pub speed: Option<u32>,
    /// The PCI address; `None` for a virtual interface.
    #[serde(default)]
    pub pci: Option<String>,
    /// Whether it answers for other interfaces' addresses (`arp_ignore`): yes at 0, the kernel's
    /// default.
    #[serde(default)]
    pub arp_ignore: Option<u8>,
    /// The packets that it drops by the route to their source (`rp_filter`): at 1 those without a
    /// route over this interface, at 2 those without any, at 0 none.
    #[serde(default)]
    pub rp_filter: Option<u8>,
    /// The bytes it has carried so far, if the kernel counts them.
    #[serde(default)]
    pub traffic: Option<Traffic>,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

/// Bytes that an interface has carried; without RDMA, which the card moves by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of the subnet's prefix in bits.
    pub prefix: u8,
    /// The label, such as `eth0:1`, if it differs from the interface's name.
    pub label: Option<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination; `None` is everything.
    pub destination: Option<IpAddr>,
    /// The length of the destination's prefix in bits.
    pub prefix: u8,
    /// The next host.
    pub gateway: Option<IpAddr>,
    /// The interface.
    pub netdev: String,
}

/// An entry of the neighbour table: a host that an interface reaches directly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub ip: IpAddr,
    /// The interface that leads to it.
    pub netdev: String,
    /// Its hardware address, if it has answered.
    pub mac: Option<String>,
    /// Whether it answers.
    pub state: NeighbourState,
}

/// The state of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighbourState {
    /// It has answered, perhaps a while ago.
    Known,
    /// It does not answer.
    Failed,
    /// It was asked, and has not answered yet.
    Asked,
}
