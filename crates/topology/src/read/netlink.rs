//! Interfaces, addresses, routes and neighbours: what the kernel lists over netlink.

use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState as KernelState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::Error;
use crate::model::{Address, Neighbour, NeighbourState, Netdev, Network, Route};

/// How long the kernel may take, which answers at once.
const DEADLINE: Duration = Duration::from_secs(5);
/// The kernel sends at most 32 KiB at once.
const BLOCK: usize = 64 << 10;

/// The network of this process's namespace, without what only sysfs tells.
pub(crate) fn network() -> Result<Network, Error> {
    let netdevs = netdevs()?;
    let name_of = |index: u32| {
        let found = netdevs.iter().find(|netdev| netdev.index == index);
        found.map(|netdev| netdev.name.clone())
    };
    let asked = RouteNetlinkMessage::GetRoute(RouteMessage::default());
    let routes = dump("routes", asked)?.into_iter();
    let routes = routes.filter_map(|message| match message {
        RouteNetlinkMessage::NewRoute(message) => route(&message, name_of),
        _ => None,
    });
    let asked = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let neighbours = dump("neighbours", asked)?.into_iter();
    let neighbours = neighbours.filter_map(|message| match message {
        RouteNetlinkMessage::NewNeighbour(message) => neighbour(&message, name_of),
        _ => None,
    });
    Ok(Network {
        routes: routes.collect(),
        neighbours: neighbours.collect(),
        netdevs,
    })
}

/// The interfaces with their addresses.
pub(crate) fn netdevs() -> Result<Vec<Netdev>, Error> {
    let asked = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let links = dump("interfaces", asked)?.into_iter();
    let mut netdevs: Vec<_> = links
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(message) => netdev(&message),
            _ => None,
        })
        .collect();
    let asked = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    for message in dump("addresses", asked)? {
        if let RouteNetlinkMessage::NewAddress(message) = message {
            let mut owners = netdevs.iter_mut();
            let owner = owners.find(|netdev| netdev.index == message.header.index);
            if let Some(owner) = owner
                && let Some(address) = address(&message, &owner.name)
            {
                owner.addresses.push(address);
            }
        }
    }
    Ok(netdevs)
}

/// All that the kernel lists when it is asked.
fn dump(what: &'static str, asked: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, Error> {
    let failed = |reason: String| Error::Netlink { what, reason };
    let system = |errno: rustix::io::Errno| failed(errno.to_string());
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // The protocol 0 is NETLINK_ROUTE.
        None,
    );
    let socket = socket.map_err(system)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE)).map_err(system)?;
    rustix::net::send(&socket, &request(asked), SendFlags::empty()).map_err(system)?;
    let mut found = Vec::new();
    let mut block = vec![0; BLOCK];
    loop {
        let (_, bytes) =
            rustix::net::recv(&socket, &mut block[..], RecvFlags::empty()).map_err(system)?;
        match messages(&block[..bytes], &mut found) {
            Dump::More => {}
            Dump::Done => return Ok(found),
            Dump::Failed(reason) => return Err(failed(reason)),
        }
    }
}

fn request(asked: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(asked));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// How far a list has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    More,
    Done,
    Failed(String),
}

/// Adds the messages of a block to those that were found. One that makes no sense is left out.
pub(crate) fn messages(mut block: &[u8], found: &mut Vec<RouteNetlinkMessage>) -> Dump {
    const HEADER: usize = 16;
    while let Some(length) = block.first_chunk() {
        let length = u32::from_ne_bytes(*length) as usize;
        let Some(bytes) = block.get(..length).filter(|bytes| bytes.len() >= HEADER) else {
            return Dump::Failed(format!("a message of {length} bytes in {}", block.len()));
        };
        match NetlinkMessage::deserialize(bytes).map(|message| message.payload) {
            Ok(NetlinkPayload::Done(_)) => return Dump::Done,
            Ok(NetlinkPayload::Error(error)) => return Dump::Failed(reason(error.raw_code())),
            Ok(NetlinkPayload::InnerMessage(message)) => found.push(message),
            Ok(_) => {}
            // An interface or address is missing then.
            Err(error) => tracing::warn!("a message of the kernel is not understood: {error}"),
        }
        // Messages begin at multiples of 4.
        block = block.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Dump::More
}

/// What a negative error code says.
fn reason(code: i32) -> String {
    let code = i32::try_from(code.unsigned_abs()).unwrap_or(0);
    std::io::Error::from_raw_os_error(code).to_string()
}

fn netdev(message: &LinkMessage) -> Option<Netdev> {
    let flags = message.header.flags;
    let mut netdev = Netdev {
        name: String::new(),
        index: message.header.index,
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Up | LinkFlags::Running),
        loopback: flags.contains(LinkFlags::Loopback),
        mtu: 0,
        mac: None,
        port_name: None,
        switch_id: None,
        speed: None,
        pci: None,
        arp_ignore: None,
        addresses: Vec::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => netdev.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => netdev.mtu = *mtu,
            LinkAttribute::Address(mac) => netdev.mac = hardware_address(mac),
            LinkAttribute::PhysPortName(name) => netdev.port_name = Some(name.clone()),
            LinkAttribute::PhysSwitchId(id) => {
                netdev.switch_id = Some(hex(id.id.get(..id.len).unwrap_or_default(), ""));
            }
            _ => {}
        }
    }
    (!netdev.name.is_empty()).then_some(netdev)
}

fn address(message: &AddressMessage, netdev: &str) -> Option<Address> {
    let (mut local, mut peer, mut label) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            // Of a point-to-point interface, `Address` is the other end's.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => peer = Some(*ip),
            AddressAttribute::Label(text) => label = Some(text.clone()),
            _ => {}
        }
    }
    Some(Address {
        ip: local.or(peer)?,
        prefix: message.header.prefix_len,
        label: label.filter(|label| label != netdev),
    })
}

fn route(message: &RouteMessage, name_of: impl Fn(u32) -> Option<String>) -> Option<Route> {
    let is_main = message.header.table == RouteHeader::RT_TABLE_MAIN;
    if !is_main || message.header.kind != RouteType::Unicast {
        return None;
    }
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    };
    let (mut destination, mut gateway, mut netdev) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Oif(index) => netdev = name_of(*index),
            _ => {}
        }
    }
    Some(Route {
        destination,
        prefix: message.header.destination_prefix_length,
        gateway,
        netdev: netdev?,
    })
}

fn neighbour(
    message: &NeighbourMessage,
    name_of: impl Fn(u32) -> Option<String>,
) -> Option<Neighbour> {
    let is_ip = [AddressFamily::Inet, AddressFamily::Inet6].contains(&message.header.family);
    let state = match message.header.state {
        KernelState::Failed => NeighbourState::Failed,
        KernelState::Incomplete => NeighbourState::Asked,
        // Multicast groups and the like, which nobody was asked for.
        KernelState::Noarp | KernelState::None => return None,
        _ => NeighbourState::Known,
    };
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => ip = Some((*v4).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => ip = Some((*v6).into()),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = hardware_address(bytes),
            _ => {}
        }
    }
    Some(Neighbour {
        ip: ip.filter(|_| is_ip)?,
        netdev: name_of(message.header.ifindex)?,
        mac,
        state,
    })
}

/// An address of 6 bytes as text; `None` for others, and for none.
fn hardware_address(bytes: &[u8]) -> Option<String> {
    (bytes.len() == 6 && bytes.iter().any(|byte| *byte != 0)).then(|| hex(bytes, ":"))
}

fn hex(bytes: &[u8], between: &str) -> String {
    let parts: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(between)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use spark_ccl_testing::{Need, has};

    use super::*;

    #[test]
    fn this_machine_lists_its_network() {
        let network = network().unwrap();
        let lo = network.netdevs.iter().find(|one| one.loopback).unwrap();
        let address = lo.addresses.iter().find(|one| one.ip.is_ipv4()).unwrap();
        assert!(address.ip.is_loopback() && address.prefix == 8, "{lo:?}");
        assert!(lo.mtu > 0 && lo.index > 0 && lo.mac.is_none(), "{lo:?}");
    }

    /// The flags, hardware addresses, and addresses with their prefixes, by interface.
    type Listed = BTreeMap<String, (bool, bool, bool, Option<String>, BTreeSet<(IpAddr, u8)>)>;

    /// What glibc lists, by code of its own.
    fn by_glibc() -> Listed {
        use nix::net::if_::InterfaceFlags as Flags;

        let mut found = Listed::new();
        for one in nix::ifaddrs::getifaddrs().unwrap() {
            let has = |flag| one.flags.contains(flag);
            let running = has(Flags::IFF_UP) && has(Flags::IFF_RUNNING);
            // A label of an address, such as `eth0:1`, is no interface.
            let name = match one.interface_name.split_once(':') {
                Some((name, _)) => name,
                None => one.interface_name.as_str(),
            };
            let entry = found.entry(name.to_owned()).or_default();
            (entry.0, entry.1, entry.2) = (has(Flags::IFF_UP), running, has(Flags::IFF_LOOPBACK));
            let Some(address) = one.address else {
                continue;
            };
            let mask = one.netmask.unwrap_or(address);
            if let (Some(ip), Some(mask)) = (address.as_sockaddr_in(), mask.as_sockaddr_in()) {
                let prefix = mask.ip().to_bits().count_ones() as u8;
                entry.4.insert((ip.ip().into(), prefix));
            } else if let (Some(ip), Some(mask)) =
                (address.as_sockaddr_in6(), mask.as_sockaddr_in6())
            {
                let prefix = mask.ip().to_bits().count_ones() as u8;
                entry.4.insert((ip.ip().into(), prefix));
            } else if let Some(link) = address.as_link_addr() {
                entry.3 = link.addr().and_then(|mac| hardware_address(&mac));
            }
        }
        found
    }

    fn by_netlink() -> Listed {
        let netdevs = netdevs().unwrap().into_iter();
        let listed = |one: Netdev| {
            let addresses = one.addresses.iter().map(|it| (it.ip, it.prefix)).collect();
            let flags = (one.up, one.running, one.loopback, one.mac, addresses);
            (one.name, flags)
        };
        netdevs.map(listed).collect()
    }

    #[test]
    fn glibc_lists_the_same_interfaces() {
        assert_eq!(by_netlink(), by_glibc());
    }

    #[test]
    fn glibc_lists_the_same_interfaces_of_all_kinds() {
        if !has(Need::Namespaces) {
            return;
        }
        // A namespace is that of a thread, and of the programs that it starts.
        let listed = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let kinds = [
                "link set lo up",
                "link add veth0 type veth peer name veth1",
                "link set veth0 mtu 9000 up",
                "link set veth1 up",
                "addr add 10.1.2.3/24 dev veth0 label veth0:7",
                "addr add 10.1.2.4/31 dev veth0",
                "addr add 10.9.0.1 peer 10.9.0.2/32 dev veth1",
                "addr add fd00::7/61 dev veth1 nodad",
                "link add dummy0 type dummy",
                "link add br0 type bridge",
                "link set dummy0 master br0",
                "link set br0 up",
                "link add link veth0 name veth0.5 type vlan id 5",
                "link add mac0 link veth0 type macvlan mode bridge",
                "link add ipv0 link veth1 type ipvlan",
                "link add vx0 type vxlan id 42 dstport 4789 dev veth0",
                "link add bond0 type bond",
                "link add gre0x type gretap local 10.1.2.3 remote 10.1.2.9",
                "link add wg0 type wireguard",
                "tuntap add tap0 mode tap",
                "tuntap add tun0 mode tun",
                "addr add 10.8.0.1 peer 10.8.0.2 dev tun0",
            ];
            let made = kinds.iter().filter(|kind| {
                let mut ip = std::process::Command::new("ip");
                let done = ip.args(kind.split(' ')).output().unwrap();
                done.status.success()
            });
            (made.count(), by_netlink(), by_glibc())
        });
        let (made, ours, theirs) = listed.join().unwrap();
        // A kernel need not have every kind.
        assert!(made >= 8 && theirs.len() >= 3, "{made} {theirs:#?}");
        assert_eq!(ours, theirs);
    }

    #[test]
    fn a_list_that_is_cut_is_no_list() {
        let bytes = request(RouteNetlinkMessage::GetLink(LinkMessage::default()));
        let mut found = Vec::new();
        assert_eq!(messages(&bytes, &mut found), Dump::More);
        assert_eq!(found.len(), 1);
        let cut = messages(&bytes[..20], &mut found);
        assert_eq!(cut, Dump::Failed("a message of 32 bytes in 20".to_owned()));
        assert!(matches!(messages(&[0; 8], &mut found), Dump::Failed(_)));
    }
}
