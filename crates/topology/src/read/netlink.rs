//! Interfaces, addresses, routes and neighbours, as listed by the kernel over netlink.
//!
//! Only the attributes needed here are parsed, so a newer kernel that adds or changes others costs
//! no interface.

mod dump;

use std::net::IpAddr;

use dump::{
    LIST_ADDRESSES, LIST_LINKS, LIST_NEIGHBOURS, LIST_ROUTES, NetlinkMessage, attributes, dump,
};
#[cfg(any(test, fuzzing))]
pub(crate) use dump::{Listed, messages};

use crate::Error;
use crate::model::{Address, Neighbour, NeighbourState, Netdev, Network, Route};

/// The network of this process's namespace, without the facts that only sysfs has.
pub(crate) fn network() -> Result<Network, Error> {
    let netdevs = netdevs()?;
    let routes = routes(&netdevs)?;
    let neighbours = dump(&LIST_NEIGHBOURS)?;
    let neighbours = neighbours.iter();
    let neighbours = neighbours.filter_map(|one| neighbour(one, |index| name_of(&netdevs, index)));
    Ok(Network {
        routes,
        neighbours: neighbours.collect(),
        netdevs,
    })
}

/// The routes over these interfaces.
pub(crate) fn routes(netdevs: &[Netdev]) -> Result<Vec<Route>, Error> {
    let routes = dump(&LIST_ROUTES)?;
    let routes = routes.iter();
    let routes = routes.flat_map(|one| routes_of(one, |index| name_of(netdevs, index)));
    Ok(routes.collect())
}

fn name_of(netdevs: &[Netdev], index: u32) -> Option<String> {
    let found = netdevs.iter().find(|netdev| netdev.index == index);
    found.map(|netdev| netdev.name.clone())
}

/// The interfaces with their addresses.
pub(crate) fn netdevs() -> Result<Vec<Netdev>, Error> {
    let mut netdevs: Vec<_> = dump(&LIST_LINKS)?.iter().filter_map(netdev).collect();
    for message in &dump(&LIST_ADDRESSES)? {
        let mut owners = netdevs.iter_mut();
        // The message begins with a `struct ifaddrmsg`: family, prefix, flags, scope, index.
        let index = message.number(4);
        if let Some(owner) = owners.find(|netdev| Some(netdev.index) == index)
            && let Some(address) = address(message, &owner.name)
        {
            owner.addresses.push(address);
        }
    }
    Ok(netdevs)
}

/// An interface. The message begins with a `struct ifinfomsg`: family, type, index, flags, change.
fn netdev(message: &NetlinkMessage) -> Option<Netdev> {
    const UP: u32 = 1;
    const LOOPBACK: u32 = 1 << 3;
    const RUNNING: u32 = 1 << 6;
    const ADDRESS: u16 = 1;
    const NAME: u16 = 3;
    const MTU: u16 = 4;
    const SWITCH_ID: u16 = 36;
    const PORT_NAME: u16 = 38;
    let flags = message.number(8)?;
    let mut netdev = Netdev {
        index: message.number(4)?,
        up: flags & UP != 0,
        running: flags & (UP | RUNNING) == UP | RUNNING,
        loopback: flags & LOOPBACK != 0,
        ..Netdev::default()
    };
    for (kind, value) in message.attributes() {
        match kind {
            NAME => netdev.name = text(value),
            MTU => netdev.mtu = number(value).unwrap_or(0),
            ADDRESS => netdev.mac = hardware_address(value),
            PORT_NAME => netdev.port_name = Some(text(value)).filter(|name| !name.is_empty()),
            SWITCH_ID => netdev.switch_id = Some(hex(value, "")).filter(|id| !id.is_empty()),
            _ => {}
        }
    }
    (!netdev.name.is_empty()).then_some(netdev)
}

/// An address of the interface with this name.
fn address(message: &NetlinkMessage, netdev: &str) -> Option<Address> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    const LABEL: u16 = 3;
    let (mut local, mut peer, mut label) = (None, None, None);
    for (kind, value) in message.attributes() {
        match kind {
            // On a point-to-point interface, `ADDRESS` is the other end's.
            LOCAL => local = ip(value),
            ADDRESS => peer = ip(value),
            LABEL => label = Some(text(value)),
            _ => {}
        }
    }
    Some(Address {
        ip: local.or(peer)?,
        prefix: message.byte(1)?,
        label: label.filter(|label| label != netdev),
    })
}

/// A route of the main table, once for each next hop. The message begins with a `struct rtmsg`:
/// family, the lengths of the destination and the source, type of service, table, protocol, scope,
/// type, flags.
fn routes_of(message: &NetlinkMessage, name_of: impl Fn(u32) -> Option<String>) -> Vec<Route> {
    const MAIN: u8 = 254;
    const UNICAST: u8 = 1;
    const DESTINATION: u16 = 1;
    const INTERFACE: u16 = 4;
    const SEVERAL: u16 = 9;
    if message.byte(4) != Some(MAIN) || message.byte(7) != Some(UNICAST) {
        return Vec::new();
    }
    let mut destination = None;
    let mut only = NextHop::default();
    let mut hops = Vec::new();
    for (kind, value) in message.attributes() {
        match kind {
            DESTINATION => destination = ip(value),
            GATEWAY => only.gateway = ip(value),
            INTERFACE => only.interface = number(value),
            SEVERAL => hops = next_hops(value),
            _ => {}
        }
    }
    hops.push(only);
    let route = |hop: NextHop| {
        Some(Route {
            destination,
            prefix: message.byte(1)?,
            gateway: hop.gateway,
            netdev: hop.interface.and_then(&name_of)?,
        })
    };
    hops.into_iter().filter_map(route).collect()
}

/// The attribute that names a gateway, of a route and of each of its next hops.
const GATEWAY: u16 = 5;

/// The next hop of a route.
#[derive(Debug, Default)]
struct NextHop {
    interface: Option<u32>,
    gateway: Option<IpAddr>,
}

/// The next hops of a route that has several: each is a `struct rtnexthop` (length, flags, hops,
/// interface), and attributes.
fn next_hops(mut list: &[u8]) -> Vec<NextHop> {
    const HEADER: usize = 8;
    const DEAD: u8 = 1;
    const LINK_DOWN: u8 = 16;
    let mut hops = Vec::new();
    while let Some(length) = list
        .first_chunk()
        .map(|it| usize::from(u16::from_ne_bytes(*it)))
    {
        let Some((header, rest)) = list
            .get(..length)
            .and_then(|it| it.split_at_checked(HEADER))
        else {
            break;
        };
        list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
        if header[2] & (DEAD | LINK_DOWN) != 0 {
            continue;
        }
        let gateway = attributes(rest).find(|(kind, _)| *kind == GATEWAY);
        hops.push(NextHop {
            interface: number(&header[4..]),
            gateway: gateway.and_then(|(_, value)| ip(value)),
        });
    }
    hops
}

/// A neighbour. The message begins with a `struct ndmsg`: family, index, state, flags, type.
fn neighbour(
    message: &NetlinkMessage,
    name_of: impl Fn(u32) -> Option<String>,
) -> Option<Neighbour> {
    const INCOMPLETE: u16 = 1;
    const FAILED: u16 = 1 << 5;
    const NO_ARP: u16 = 1 << 6;
    const DESTINATION: u16 = 1;
    const HARDWARE: u16 = 2;
    let state = match message.half(8)? {
        FAILED => NeighbourState::Failed,
        INCOMPLETE => NeighbourState::Asked,
        // Multicast groups and the like, which are never resolved.
        0 | NO_ARP => return None,
        _ => NeighbourState::Known,
    };
    let (mut address, mut mac) = (None, None);
    for (kind, value) in message.attributes() {
        match kind {
            DESTINATION => address = ip(value),
            HARDWARE => mac = hardware_address(value),
            _ => {}
        }
    }
    Some(Neighbour {
        ip: address?,
        netdev: name_of(message.number(4)?)?,
        mac,
        state,
    })
}

/// Reads a message as every kind, for the fuzz target.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_any(message: &NetlinkMessage) {
    let name_of = |index: u32| Some(index.to_string());
    let _ = (netdev(message), address(message, "eth0"));
    let _ = (routes_of(message, name_of), neighbour(message, name_of));
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

/// A text, which ends at a zero.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    let text = value.get(..end.unwrap_or(value.len()));
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
        .ok()
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

    /// Flags, hardware address, and addresses with their prefixes, by interface.
    type Listed = BTreeMap<String, (bool, bool, bool, Option<String>, BTreeSet<(IpAddr, u8)>)>;

    /// The interfaces as listed by glibc, with code of its own.
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
        // A namespace belongs to a thread and the programs that it starts.
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
        // A kernel may lack some kinds.
        assert!(made >= 8 && theirs.len() >= 3, "{made} {theirs:#?}");
        assert_eq!(ours, theirs);
    }

    #[test]
    fn a_route_of_several_next_hops_leads_over_each() {
        if !has(Need::Namespaces) {
            return;
        }
        let listed = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            for words in [
                "link add veth0 type veth peer name veth1",
                "link set veth0 up",
                "link set veth1 up",
                "addr add 10.1.0.1/24 dev veth0",
                "addr add 10.2.0.1/24 dev veth1",
                "route add default nexthop via 10.1.0.9 dev veth0 nexthop via 10.2.0.9 dev veth1 \
                 weight 2",
            ] {
                let mut ip = std::process::Command::new("ip");
                assert!(ip.args(words.split(' ')).status().unwrap().success());
            }
            network().unwrap().routes
        });
        let routes = listed.join().unwrap().into_iter();
        let default = routes.filter(|one| one.destination.is_none());
        let ways: Vec<_> = default.map(|one| (one.gateway, one.netdev)).collect();
        let way = |gateway: [u8; 4], netdev: &str| (Some(gateway.into()), netdev.to_owned());
        assert_eq!(
            ways,
            [way([10, 1, 0, 9], "veth0"), way([10, 2, 0, 9], "veth1")]
        );
    }

    #[test]
    fn next_hops_that_are_cut_are_none() {
        let hop = [8_u8, 0, 0, 0, 7, 0, 0, 0];
        assert_eq!(next_hops(&hop)[0].interface, Some(7));
        let dead = [8_u8, 0, 1, 0, 6, 0, 0, 0];
        let both = next_hops(&[dead, hop].concat());
        assert_eq!((both.len(), both[0].interface), (1, Some(7)));
        for cut in [
            &hop[..7],
            &[0; 8],
            &[4, 0, 0, 0, 7, 0, 0, 0],
            &[9, 0, 0, 0, 7, 0, 0, 0],
        ] {
            assert!(next_hops(cut).is_empty(), "{cut:?}");
        }
    }

    /// The kernel's messages about interfaces, with unknown attributes before and after, and a
    /// truncated one at the end.
    #[test]
    fn attributes_of_newer_kernels_cost_no_interface() {
        let known = dump(&LIST_LINKS).unwrap();
        assert!(!known.is_empty());
        for message in known {
            let NetlinkMessage { kind, mut body } = message.clone();
            let unknown = [6_u8, 0, 0xff, 0x3f, 1, 2, 0, 0];
            body.splice(16..16, unknown);
            body.extend(unknown);
            body.extend([200, 0, 3, 0, b'x']);
            let changed = NetlinkMessage { kind, body };
            assert_eq!(netdev(&changed), netdev(&message));
            assert!(netdev(&message).is_some());
        }
    }

    #[test]
    fn fields_that_are_missing_are_not_made_up() {
        let message = |body: &[u8]| NetlinkMessage {
            kind: 16,
            body: body.to_vec(),
        };
        let none = message(&[]);
        assert_eq!(netdev(&none), None);
        assert_eq!(address(&none, "a"), None);
        assert_eq!(routes_of(&none, |_| Some(String::new())), []);
        assert_eq!(neighbour(&none, |_| Some(String::new())), None);
        // An MTU of two bytes, and a name without its terminator.
        let mut body = vec![0; 16];
        body.extend([6, 0, 4, 0, 1, 2, 0, 0]);
        body.extend([6, 0, 3, 0, b'e', b'0']);
        let one = netdev(&message(&body)).unwrap();
        assert_eq!((one.mtu, one.name.as_str()), (0, "e0"));
    }
}
