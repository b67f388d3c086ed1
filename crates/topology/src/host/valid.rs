//! Validates a host's description, which may come from another machine: lengths are bounded, names
//! are safe in a shell, prefixes fit their addresses, and there are no control characters.

use serde_json::Value;

use crate::rdma::Gid;
use crate::{Error, Host};

/// The most entries of a list, and bytes of a text. The kernel's longest list is that of routes.
const LIST: usize = 65_536;
const TEXT: usize = 4096;
/// The most RDMA devices of a host, ports of all of them together, and addresses of a port. The
/// work grows with their square.
const RDMA: usize = 256;

/// Removes the control characters that a terminal would obey from all texts.
///
/// # Errors
/// A list or text is too long.
pub(super) fn clean(value: &mut Value) -> Result<(), Error> {
    let long = |what, length| Error::Long { what, length };
    match value {
        Value::String(text) if text.len() > TEXT => Err(long("text", text.len())),
        Value::String(text) => {
            text.retain(|one| !one.is_control());
            Ok(())
        }
        Value::Array(list) if list.len() > LIST => Err(long("list", list.len())),
        Value::Array(list) => list.iter_mut().try_for_each(clean),
        Value::Object(fields) if fields.len() > LIST => Err(long("object", fields.len())),
        Value::Object(fields) => fields.values_mut().try_for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Checks names, prefixes and the number of RDMA devices.
///
/// # Errors
/// Describes the problem.
pub(super) fn check(host: &Host) -> Result<(), Error> {
    let name = |(what, name): (&'static str, &str)| {
        let name = name.to_owned();
        Err(Error::Name { what, name })
    };
    if let Some(wrong) = names(host).find(|(_, name)| !is_name(name)) {
        return name(wrong);
    }
    for (ip, prefix) in prefixes(host) {
        if prefix > if ip.is_ipv4() { 32 } else { 128 } {
            return Err(Error::Prefix { ip, prefix });
        }
    }
    let gids = host.ports().map(|(_, port)| port.gids.len());
    match gids.chain([host.rdma.len(), host.ports().count()]).max() {
        Some(length) if length > RDMA => Err(Error::Long {
            what: "list about RDMA",
            length,
        }),
        _ => Ok(()),
    }
}

/// Removes the network interfaces whose names are unsafe, and everything that names them. Returns
/// those names.
pub(super) fn leave_out(host: &mut Host) -> Vec<String> {
    let network = &mut host.network;
    let netdevs = std::mem::take(&mut network.netdevs).into_iter();
    let (safe, odd): (Vec<_>, Vec<_>) = netdevs.partition(|one| is_name(&one.name));
    network.netdevs = safe;
    network.routes.retain(|one| is_name(&one.netdev));
    network.neighbours.retain(|one| is_name(&one.netdev));
    for address in network
        .netdevs
        .iter_mut()
        .flat_map(|one| &mut one.addresses)
    {
        address.label.take_if(|label| !is_name(label));
    }
    for port in host.rdma.iter_mut().flat_map(|device| &mut device.ports) {
        port.netdev.take_if(|name| !is_name(name));
    }
    odd.into_iter().map(|one| one.name).collect()
}

/// Whether a name is safe in a shell without quotes, and cannot be taken for an option.
fn is_name(name: &str) -> bool {
    let is_plain = |one: u8| one.is_ascii_alphanumeric() || b"_.:@%-".contains(&one);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain)
}

/// The names in a description, each with the kind of thing that it names.
fn names(host: &Host) -> impl Iterator<Item = (&'static str, &str)> {
    let netdevs = host.network.netdevs.iter().flat_map(|one| {
        let optional = [&one.pci, &one.mac, &one.port_name, &one.switch_id];
        let labels = one.addresses.iter().filter_map(|it| it.label.as_deref());
        let optional = optional.into_iter().filter_map(Option::as_deref);
        optional.chain(labels).chain([one.name.as_str()])
    });
    let routes = host.network.routes.iter().map(|one| one.netdev.as_str());
    let neighbours = host.network.neighbours.iter();
    let neighbours =
        neighbours.flat_map(|one| [Some(one.netdev.as_str()), one.mac.as_deref()].into_iter());
    let devices = host.rdma.iter().flat_map(|one| {
        let netdevs = one.ports.iter().map(|port| port.netdev.as_deref());
        netdevs.chain([
            Some(one.name.as_str()),
            one.pci.as_deref(),
            one.card.as_deref(),
        ])
    });
    let functions = host.pci.iter().flat_map(|one| {
        let bridges = one.bridges.iter().map(String::as_str);
        bridges.chain([one.address.as_str()])
    });
    let gpus = host.gpus.iter().map(|one| one.bus_id.as_str());
    let named = |what| move |name| (what, name);
    [("host", host.name.as_str())]
        .into_iter()
        .chain(netdevs.chain(routes).map(named("network interface")))
        .chain(neighbours.flatten().map(named("neighbour")))
        .chain(devices.flatten().map(named("RDMA device")))
        .chain(functions.chain(gpus).map(named("PCI function")))
}

fn prefixes(host: &Host) -> impl Iterator<Item = (std::net::IpAddr, u8)> {
    let netdevs = host.network.netdevs.iter();
    let own = netdevs.flat_map(|one| one.addresses.iter().map(|it| (it.ip, it.prefix)));
    let routes = host.network.routes.iter();
    let routes = routes.filter_map(|one| Some((one.destination?, one.prefix)));
    let gids = host.ports().flat_map(|(_, port)| &port.gids);
    let gids = gids.filter_map(|gid: &Gid| Some((gid.ip(), gid.prefix?)));
    own.chain(routes).chain(gids)
}

#[cfg(test)]
mod tests {
    use crate::testing;
    use crate::{Error, Host};

    /// The error about a host that was changed.
    fn said(change: impl FnOnce(&mut Host)) -> String {
        let mut host = testing::spark("spark-1", 1).host();
        change(&mut host);
        match Host::from_json(&host.to_json()) {
            Ok(_) => "fine".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn names_that_a_shell_would_run_are_refused() {
        let evil = "x;reboot";
        let refused = [
            said(|host| host.name = "$(reboot)".to_owned()),
            said(|host| host.netdev_mut("enP7s7").name = evil.to_owned()),
            said(|host| host.netdev_mut("enP7s7").name = "-batch".to_owned()),
            said(|host| host.rdma[0].name = evil.to_owned()),
            said(|host| host.rdma[0].ports[0].netdev = Some(evil.to_owned())),
            said(|host| host.pci[0].address = evil.to_owned()),
            said(|host| host.gpus[0].bus_id = evil.to_owned()),
            said(|host| host.network.routes[0].netdev = evil.to_owned()),
            said(|host| host.name = String::new()),
        ];
        for text in refused {
            assert!(text.contains("only letters"), "{text}");
        }
        assert_eq!(
            said(|host| host.name = "me@spark-1.local".to_owned()),
            "fine"
        );
    }

    #[test]
    fn prefixes_are_those_of_addresses() {
        let text = said(|host| host.netdev_mut("enP7s7").addresses[0].prefix = 33);
        assert!(text.contains("192.168.1.101/33"), "{text}");
        let text = said(|host| host.network.routes[0].prefix = 200);
        assert!(text.contains("/200"), "{text}");
        let gid = |host: &mut Host| host.port_mut("rocep1s0f0").gids[3].prefix = Some(64);
        assert!(said(gid).contains("10.0.0.1/64"));
    }

    #[test]
    fn lists_and_texts_are_bounded() {
        let text = said(|host| host.system.kernel = "x".repeat(5000));
        assert!(text.contains("a text of 5000"), "{text}");
        let text = said(|host| host.system.boot = vec![String::new(); 70_000]);
        assert!(text.contains("a list of 70000"), "{text}");
        let text = said(|host| {
            let gids = &mut host.rdma[0].ports[0].gids;
            *gids = vec![gids[0]; 300];
        });
        assert!(text.contains("RDMA of 300"), "{text}");
        // The ports of all devices are counted together.
        let text = said(|host| {
            let device = host.rdma[0].clone();
            host.rdma = vec![device; 40];
            for device in &mut host.rdma {
                device.ports = vec![device.ports[0].clone(); 40];
            }
        });
        assert!(text.contains("RDMA of 1600"), "{text}");
        let text = "[".repeat(17 << 20);
        assert!(matches!(Host::from_json(&text), Err(Error::Long { .. })));
    }

    #[test]
    fn control_characters_are_removed() {
        let mut host = testing::spark("spark-1", 1).host();
        host.system.product = Some("\u{1b}]0;title\u{7}\n\u{9b}2J".to_owned());
        let host = Host::from_json(&host.to_json()).unwrap();
        assert_eq!(host.system.product.as_deref(), Some("]0;title2J"));
    }
}
