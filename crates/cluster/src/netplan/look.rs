//! Finds reasons not to apply a plan on a node: networks in use that it would take away.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use super::link_state::{self, Link};
use super::plan::{Interface, Node};
use super::{FILE, netplan};
use crate::program::output_of;

/// The folders in which netplan looks for its files.
const FOLDERS: [&str; 3] = ["/lib/netplan", "/etc/netplan", "/run/netplan"];

/// The reasons not to apply the plan here, each in words; `ssh` are the client's address and this
/// node's, if it is reached by ssh.
pub(super) fn problems(node: &Node, ssh: Option<[IpAddr; 2]>) -> io::Result<Vec<String>> {
    let links = link_state::links()?;
    let mut routes = output_of("ip -4 route show")?;
    // No plan overlaps others of IPv6.
    routes += &output_of("ip -6 route show default")?;
    let files = files()?;
    let is_planned = |name: &str| node.interfaces.iter().any(|one| one.name == name);
    let mut problems = Vec::new();
    for interface in &node.interfaces {
        let name = &interface.name;
        if !links.iter().any(|link| link.name == *name) {
            problems.push(format!(
                "no interface {name}: name others by --interfaces (see: ip link)"
            ));
            continue;
        }
        problems.extend(member(name)?);
        problems.extend(ssh.and_then(|ssh| cuts(interface, &links, ssh)));
        let foreign = links.iter().filter(|link| !is_planned(&link.name));
        problems.extend(foreign.filter_map(|link| overlap(interface, link)));
        // The kernel's own routes go with addresses.
        let routes = routes.lines().filter(|line| !line.contains("proto kernel"));
        let mut routes = routes.filter_map(Route::parse);
        problems
            .extend(routes.find_map(|route| route.conflict(interface, is_planned(route.device))));
        let known = Known::new(name);
        let others = files.iter().filter(|(_, text)| known.is_in(text));
        problems.extend(others.map(|(path, _)| {
            let path = path.display();
            format!("{path} configures {name}, too: take {name} out there, or name others by --interfaces")
        }));
    }
    problems.dedup();
    if let Err(error) = netplan("get") {
        problems.push(format!(
            "netplan does not work here, mend that first: {error}"
        ));
    }
    Ok(problems)
}

/// The reason why an interface is not free: a bridge or bond has it, or a VLAN or the like is made
/// of it. Only its owner could give it back.
fn member(name: &str) -> io::Result<Option<String>> {
    for entry in fs::read_dir(Path::new("/sys/class/net").join(name))? {
        let entry = entry?;
        let text = entry.file_name().to_string_lossy().into_owned();
        let other = match text.strip_prefix("upper_") {
            Some(upper) => upper.to_owned(),
            None if text == "master" => {
                let master = fs::read_link(entry.path())?;
                let master = master.file_name().unwrap_or_default();
                master.to_string_lossy().into_owned()
            }
            None => continue,
        };
        return Ok(Some(format!(
            "{name} is a part of {other}: take it out of that, or name others by --interfaces"
        )));
    }
    Ok(None)
}

/// The reason why the plan for an interface would cut the ssh connection that applies it.
fn cuts(interface: &Interface, links: &[Link], [client, server]: [IpAddr; 2]) -> Option<String> {
    let Interface { name, .. } = interface;
    let link = links.iter().find(|link| link.name == *name)?;
    let is_own = |address: IpAddr| link.addresses.iter().any(|one| one.local == address);
    if is_own(server) {
        return Some(format!(
            "ssh comes in by {name} ({server}), which the plan changes: reach this node by \
             another network"
        ));
    }
    let IpAddr::V4(client) = client else {
        return None;
    };
    let subnet = Subnet::of(interface);
    subnet.overlaps(Subnet::new(client, 32)).then(|| {
        format!("ssh comes from {client}, which is in {subnet}, planned for {name}: choose another --base")
    })
}

fn overlap(interface: &Interface, link: &Link) -> Option<String> {
    let planned = Subnet::of(interface);
    let mut addresses = link.addresses.iter();
    let subnet = addresses.find_map(|one| {
        let IpAddr::V4(local) = one.local else {
            return None;
        };
        let subnet = Subnet::new(local, one.prefix);
        subnet.overlaps(planned).then_some(subnet)
    })?;
    let (name, other) = (&interface.name, &link.name);
    Some(format!(
        "{other} is in {subnet} already, and {planned} is planned for {name}: choose another --base"
    ))
}

/// A route: where to, and by which device.
struct Route<'a> {
    /// `None`: everywhere.
    to: Option<Subnet>,
    device: &'a str,
}

impl<'a> Route<'a> {
    /// From a line of `ip route show`.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let to = match words.next()? {
            "default" => None,
            word => {
                let (address, prefix) = word.split_once('/').unwrap_or((word, "32"));
                Some(Subnet::new(address.parse().ok()?, prefix.parse().ok()?))
            }
        };
        words.find(|word| *word == "dev")?;
        let device = words.next()?;
        Some(Self { to, device })
    }

    fn conflict(&self, interface: &Interface, is_planned: bool) -> Option<String> {
        let (name, device) = (&interface.name, self.device);
        let planned = Subnet::of(interface);
        match self.to {
            None => (device == name).then(|| {
                format!("{name} has the default route of this node: name others by --interfaces")
            }),
            Some(to) => (!is_planned && to.overlaps(planned)).then(|| {
                format!(
                    "{to} is reached by {device}, and {planned} is planned for {name}: choose \
                     another --base"
                )
            }),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subnet {
    address: Ipv4Addr,
    prefix: u8,
}

impl Subnet {
    fn new(address: Ipv4Addr, prefix: u8) -> Self {
        let address = Ipv4Addr::from_bits(address.to_bits() & mask(prefix));
        Self { address, prefix }
    }

    fn of(interface: &Interface) -> Self {
        Self::new(interface.address, interface.prefix)
    }

    fn overlaps(self, other: Self) -> bool {
        let mask = mask(self.prefix.min(other.prefix));
        self.address.to_bits() & mask == other.address.to_bits() & mask
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.address, self.prefix)
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

/// netplan's files and their contents, except this program's own.
fn files() -> io::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for folder in FOLDERS
        .map(Path::new)
        .iter()
        .filter(|folder| folder.exists())
    {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_yaml = path
                .extension()
                .is_some_and(|extension| extension == "yaml");
            if is_yaml && path.file_name().is_some_and(|name| name != FILE) {
                let text = fs::read_to_string(&path).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                })?;
                files.push((path, text));
            }
        }
    }
    Ok(files)
}

/// The ways in which a file of netplan may refer to an interface.
struct Known {
    name: String,
    hardware: Option<String>,
    driver: Option<String>,
}

impl Known {
    fn new(name: &str) -> Self {
        let folder = Path::new("/sys/class/net").join(name);
        let hardware = fs::read_to_string(folder.join("address")).ok();
        let driver = fs::read_link(folder.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        Self {
            name: name.to_owned(),
            hardware: hardware.map(|text| text.trim().to_owned()),
            driver,
        }
    }

    /// Whether any word of the file may refer to this interface. This matches more than YAML would,
    /// to be safe.
    fn is_in(&self, text: &str) -> bool {
        let lines = text.lines().filter_map(|line| line.split('#').next());
        let mut lines = lines.map(without_sets);
        lines.any(|line| line.split(is_separator).any(|word| self.is(word)))
    }

    fn is(&self, word: &str) -> bool {
        let word = word.strip_suffix(':').unwrap_or(word);
        let is = |own: &str| matches(word.as_bytes(), own.as_bytes());
        let hardware = self.hardware.as_deref();
        hardware.is_some_and(|own| own.eq_ignore_ascii_case(word))
            || self.driver.as_deref().is_some_and(is)
            || is(&self.name)
    }
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || ",'\"[]{}".contains(c)
}

/// A line with `*` for each set of characters in a pattern (`en[sp]0`). Lists stay: no part of a
/// word touches their brackets.
fn without_sets(line: &str) -> String {
    let touches = |c: char| !is_separator(c) && c != ':';
    let mut text = String::new();
    let mut rest = line;
    while let Some(end) = rest.find(']') {
        let begin = rest[..end].rfind('[').unwrap_or(end);
        let after = &rest[end + 1..];
        text += &rest[..begin];
        if begin < end && (text.ends_with(touches) || after.starts_with(touches)) {
            text.push('*');
        } else {
            text += &rest[begin..=end];
        }
        rest = after;
    }
    text + rest
}

/// Whether a name matches a pattern of the shell, with `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        ([b'*', rest @ ..], _) => {
            matches(rest, name) || (!name.is_empty() && matches(pattern, &name[1..]))
        }
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([first, rest @ ..], [own, name @ ..]) => first == own && matches(rest, name),
        (_, []) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_mean_an_interface_are_known() {
        let known = Known {
            name: "enp1s0f0np0".to_owned(),
            hardware: Some("02:00:00:00:00:0a".to_owned()),
            driver: Some("mlx5_core".to_owned()),
        };
        for text in [
            "network:\n  ethernets:\n    enp1s0f0np0:\n      dhcp4: true\n",
            "network: {ethernets: {\"enp1s0f0np0\": {dhcp4: true}}}",
            "match:\n  name: enp1*\n",
            "match: {name: [\"eth?\", 'en?1s0*']}",
            "match: { macaddress: 02:00:00:00:00:0A }",
            "driver: mlx5_core",
            "driver: [\"mlx*\"]",
            "name: enp[0-4]s0f0np0",
            "name: [eth0, \"[ep]n*\"]",
            "name: \"en[op][1,2]s0*\"",
            "name: \"enp1s0f0n[op][01]\"",
        ] {
            assert!(known.is_in(text), "{text}");
        }
        for text in [
            "network:\n  version: 2\n  renderer: NetworkManager\n",
            "# enp1s0f0np0: not yet\n",
            "enp1s0f0np00:\n",
            "name: enP2*\n",
            "name: eth[0-9]*\n",
            "addresses: [10.0.0.1/24]\nmatch: {\"name\":[eth0]}",
            "",
        ] {
            assert!(!known.is_in(text), "{text}");
        }
    }

    #[test]
    fn subnets_that_share_addresses_overlap() {
        let subnet = |prefix| Subnet::new(Ipv4Addr::new(192, 168, 100, 7), prefix);
        let other = Subnet::new(Ipv4Addr::new(192, 168, 101, 1), 24);
        assert!(!subnet(24).overlaps(other));
        for prefix in [0, 8, 16, 23] {
            assert!(subnet(prefix).overlaps(other) && other.overlaps(subnet(prefix)));
        }
        assert!(subnet(24).overlaps(subnet(32)));
    }
}
