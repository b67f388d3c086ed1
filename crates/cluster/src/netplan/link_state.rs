//! Reads and restores the state of network interfaces with the program `ip`.
//!
//! `netplan apply` leaves an interface as it is once no file mentions it. So the state before a
//! trial is recorded, and restored explicitly.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::plan::Interface;
use crate::program::output_of;

/// The number of looks at a restored interface, and how many in a row must find it right: the
/// network's daemon may still change it.
const LOOKS: usize = 8;
const CALM: usize = 2;
const PAUSE: Duration = Duration::from_millis(300);
/// Words that `ip` prints for routes but does not accept.
const STATUS: [&str; 4] = ["linkdown", "dead", "offload", "trap"];

/// The state of an interface.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkState {
    name: String,
    /// The commands of `ip` that lead to it: one for up or down, one for the MTU, and one for each
    /// address and route.
    commands: Vec<String>,
}

/// An interface in the JSON of `ip address`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Link {
    #[serde(rename = "ifname")]
    pub(super) name: String,
    mtu: u32,
    flags: Vec<String>,
    #[serde(rename = "addr_info")]
    pub(super) addresses: Vec<Address>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Address {
    pub(super) local: IpAddr,
    /// The other end of a tunnel.
    #[serde(rename = "address")]
    peer: Option<IpAddr>,
    #[serde(rename = "prefixlen")]
    pub(super) prefix: u8,
    broadcast: Option<Ipv4Addr>,
    #[serde(default, rename = "noprefixroute")]
    has_no_route: bool,
    valid_life_time: u32,
    preferred_life_time: u32,
}

/// All interfaces.
pub(super) fn links() -> io::Result<Vec<Link>> {
    Ok(serde_json::from_str(&output_of("ip -j address")?)?)
}

/// The states of planned interfaces, and of all others that have an address or a route: `netplan
/// apply` applies all files, also those that somebody edited and did not apply.
pub(super) fn record(planned: &[Interface]) -> io::Result<Vec<LinkState>> {
    let states: io::Result<Vec<_>> = links()?.iter().map(LinkState::of).collect();
    let mut states = states?;
    let is_planned = |state: &LinkState| planned.iter().any(|one| one.name == state.name);
    states.retain(|state| state.commands.len() > 2 || is_planned(state));
    Ok(states)
}

/// Makes interfaces what they were, and sees that they stay so.
pub(super) fn restore(before: &[LinkState], planned: &[Interface]) -> io::Result<()> {
    let (mut left, mut calm) = (Vec::new(), 0);
    for _ in 0..LOOKS {
        left = round(before, planned).unwrap_or_else(|error| vec![error.to_string()]);
        calm = if left.is_empty() { calm + 1 } else { 0 };
        if calm == CALM {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::Error::other(format!(
        "not as before: {}",
        left.join("; ")
    )))
}

/// Changes back what is not as it was; returns the commands, or why one is refused.
fn round(before: &[LinkState], planned: &[Interface]) -> io::Result<Vec<String>> {
    let links = links()?;
    let mut left = Vec::new();
    for state in before {
        let planned = planned.iter().find(|one| one.name == state.name);
        let Some(link) = links.iter().find(|link| link.name == state.name) else {
            // Others come and go with containers and tunnels.
            left.extend(planned.map(|one| format!("no interface {}", one.name)));
            continue;
        };
        // A later change may make room for one that is refused.
        for change in state.changes(&LinkState::of(link)?, planned) {
            let refused = output_of(&change).map_err(|error| error.to_string()).err();
            left.push(refused.unwrap_or(change));
        }
    }
    Ok(left)
}

impl LinkState {
    /// The state of an interface now.
    fn of(link: &Link) -> io::Result<Self> {
        let (name, mtu) = (link.name.clone(), link.mtu);
        let is_up = link.flags.iter().any(|flag| flag == "UP");
        let mut commands = vec![format!("ip link set mtu {mtu} dev {name}")];
        commands.extend(link.addresses.iter().map(|one| one.command(&name)));
        for family in ["-4", "-6"] {
            let routes = output_of(&format!("ip {family} route show dev {name}"))?;
            commands.extend(routes.lines().filter_map(|line| route(family, line, &name)));
        }
        // An interface that is down takes no routes.
        if is_up {
            commands.insert(0, format!("ip link set up dev {name}"));
        } else {
            commands.push(format!("ip link set down dev {name}"));
        }
        Ok(Self { name, commands })
    }

    /// The commands that make an interface what it was. What has come to one that is not planned is
    /// not the trial's: it stays.
    fn changes(&self, now: &Self, planned: Option<&Interface>) -> Vec<String> {
        let has = |all: &Self, what: &str| all.commands.iter().any(|one| effect(one) == what);
        let address = planned.map(|one| format!("{}/{}", one.address, one.prefix));
        let added = |one: &String| format!("ip address add {one}");
        let is_new = |one: &String| has(now, &added(one)) && !has(self, &added(one));
        let gone = address.filter(is_new);
        let gone = gone.map(|one| format!("ip address del {one} dev {}", self.name));
        let missing = self.commands.iter().filter(|one| !has(now, effect(one)));
        let is_due = |one: &&String| planned.is_some() || !one.starts_with("ip link set down");
        let missing = missing.filter(is_due).cloned();
        gone.into_iter().chain(missing).collect()
    }
}

/// A command without its interface. An address is the same one whatever its lifetime and broadcast
/// address, which come after that.
fn effect(command: &str) -> &str {
    command.split(" dev ").next().unwrap_or_default()
}

impl Address {
    /// The command that adds it to an interface.
    fn command(&self, name: &str) -> String {
        let Self { local, prefix, .. } = self;
        let [valid, preferred] = [self.valid_life_time, self.preferred_life_time];
        let peer = self.peer.map(|one| format!(" peer {one}"));
        let broadcast = self.broadcast.map(|one| format!(" broadcast {one}"));
        let [peer, broadcast] = [peer, broadcast].map(Option::unwrap_or_default);
        let route = ["", " noprefixroute"][usize::from(self.has_no_route)];
        // The largest number means forever, to `ip` as well.
        let times = format!("valid_lft {valid} preferred_lft {preferred}");
        format!("ip address add {local}{peer}/{prefix} dev {name}{broadcast}{route} {times}")
    }
}

/// Adds the route of a line of `ip route show`. Those that routers advertise return by themselves.
fn route(family: &str, line: &str, name: &str) -> Option<String> {
    let is_advertised = line.contains(" proto ra ") || line.contains(" expires ");
    let mut words: Vec<&str> = line.split_whitespace().collect();
    words.retain(|word| !STATUS.contains(word));
    let words = words.join(" ");
    (!is_advertised).then(|| format!("ip {family} route add {words} dev {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(mtu: u32, flags: &[&str], addresses: &[&str], routes: &[&str]) -> LinkState {
        let address = |text: &&str| {
            let (local, prefix) = text.split_once('/').unwrap();
            Address {
                local: local.parse().unwrap(),
                peer: None,
                prefix: prefix.parse().unwrap(),
                broadcast: None,
                has_no_route: false,
                valid_life_time: u32::MAX,
                preferred_life_time: u32::MAX,
            }
            .command("en0")
        };
        let is_up = flags.contains(&"UP");
        let mut commands = vec![format!("ip link set mtu {mtu} dev en0")];
        commands.extend(addresses.iter().map(address));
        commands.extend(routes.iter().filter_map(|line| route("-4", line, "en0")));
        if is_up {
            commands.insert(0, "ip link set up dev en0".to_owned());
        } else {
            commands.push("ip link set down dev en0".to_owned());
        }
        LinkState {
            name: "en0".to_owned(),
            commands,
        }
    }

    #[test]
    fn an_address_keeps_its_peer() {
        let text = r#"{"local": "10.0.0.1", "address": "10.0.0.2", "prefixlen": 32,
            "broadcast": "10.0.0.3", "noprefixroute": true,
            "valid_life_time": 60, "preferred_life_time": 30}"#;
        let address: Address = serde_json::from_str(text).unwrap();
        let expected = "ip address add 10.0.0.1 peer 10.0.0.2/32 dev en0 broadcast 10.0.0.3 \
                        noprefixroute valid_lft 60 preferred_lft 30";
        assert_eq!(address.command("en0"), expected);
    }

    #[test]
    fn only_what_a_trial_changed_is_changed_back() {
        let planned = Interface {
            name: "en0".to_owned(),
            address: Ipv4Addr::new(192, 168, 100, 1),
            prefix: 24,
            mtu: 9000,
            peers: Vec::new(),
        };
        let kernel = "10.0.0.0/24 proto kernel scope link src 10.0.0.7 linkdown";
        let routes = [
            kernel,
            "default via 10.0.0.1",
            "10.5.0.0/16 proto ra metric 9",
        ];
        let before = state(1500, &[], &["10.0.0.7/24"], &routes);
        let now = state(9000, &["UP"], &["192.168.100.1/24", "10.9.9.9/8"], &[]);
        let expected = [
            "ip address del 192.168.100.1/24 dev en0",
            "ip link set mtu 1500 dev en0",
            "ip address add 10.0.0.7/24 dev en0 valid_lft 4294967295 preferred_lft 4294967295",
            "ip -4 route add 10.0.0.0/24 proto kernel scope link src 10.0.0.7 dev en0",
            "ip -4 route add default via 10.0.0.1 dev en0",
            "ip link set down dev en0",
        ];
        assert_eq!(before.changes(&now, Some(&planned)), expected);
        assert!(before.changes(&before, Some(&planned)).is_empty());
        assert_eq!(before.changes(&now, None), expected[1..5]);
    }

    #[test]
    fn an_address_that_only_ages_is_the_same() {
        let before = state(1500, &["UP"], &["10.0.0.7/24"], &[]);
        let mut now = state(1500, &["UP"], &["10.0.0.7/24"], &[]);
        now.commands[2] = now.commands[2].replace("4294967295", "59");
        assert_ne!(before, now);
        assert!(before.changes(&now, None).is_empty());
    }
}
