//! Reads and restores the state of network interfaces with the program `ip`.
//!
//! `netplan apply` leaves an interface as it is once no file mentions it. So what the interface was
//! like before a trial is recorded, and restored explicitly.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::plan::Interface;

/// How often a restored interface is looked at, and how often in a row it must be right: the
/// network's daemon may still change it.
const LOOKS: usize = 8;
const CALM: usize = 2;
const PAUSE: Duration = Duration::from_millis(300);
/// Words that `ip` prints for routes but does not accept.
const STATUS: [&str; 4] = ["linkdown", "dead", "offload", "trap"];

/// The state of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    link: Link,
    /// The routes through it, each as `ip` takes it after `route add`, without the interface.
    routes: Vec<String>,
}

/// An interface in the JSON of `ip address`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    #[serde(rename = "ifname")]
    pub(super) name: String,
    mtu: u32,
    flags: Vec<String>,
    #[serde(rename = "addr_info")]
    pub(super) addresses: Vec<Address>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    let text = ip(&["-j".to_owned(), "address".to_owned()])?;
    Ok(serde_json::from_str(&text)?)
}

/// The states of the interfaces with these names, and of all others that have an address or a
/// route: `netplan apply` applies all files, also those that somebody edited and did not apply.
pub(super) fn record(planned: &[&str]) -> io::Result<Vec<State>> {
    let links = links()?;
    if let Some(name) = planned
        .iter()
        .find(|name| links.iter().all(|link| link.name != **name))
    {
        let missing = format!("no interface {name}");
        return Err(io::Error::new(io::ErrorKind::NotFound, missing));
    }
    let states = links.into_iter().map(State::of);
    let states = states.collect::<io::Result<Vec<_>>>()?;
    let is_used = |one: &State| !one.link.addresses.is_empty() || !one.routes.is_empty();
    let wanted = |one: &State| planned.contains(&&*one.link.name) || is_used(one);
    Ok(states.into_iter().filter(wanted).collect())
}

/// Makes interfaces what they were, and sees that they stay so.
pub(super) fn restore(states: &[State], planned: &[Interface]) -> io::Result<()> {
    let mut left = Vec::new();
    let mut calm = 0;
    for _ in 0..LOOKS {
        left = round(states, planned)?;
        if left.is_empty() {
            calm += 1;
            if calm == CALM {
                return Ok(());
            }
        } else {
            calm = 0;
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::Error::other(left.join("; ")))
}

/// Changes back what is not as it was; returns which interfaces these are, and what was refused.
fn round(states: &[State], planned: &[Interface]) -> io::Result<Vec<String>> {
    let links = links()?;
    let mut left = Vec::new();
    for state in states {
        let name = &state.link.name;
        let planned = planned.iter().find(|one| one.name == *name);
        let Some(link) = links.iter().find(|link| link.name == *name) else {
            // Others come and go with containers and tunnels.
            left.extend(planned.map(|_| format!("no interface {name}")));
            continue;
        };
        let changes = match State::of(link.clone()) {
            Ok(now) => state.changes(&now, planned),
            Err(error) => {
                left.push(error.to_string());
                continue;
            }
        };
        if changes.is_empty() {
            continue;
        }
        // A later change may make room for one that is refused.
        let errors = changes.iter().filter_map(|change| ip(change).err());
        let refused: Vec<_> = errors.map(|error| error.to_string()).collect();
        let refused = refused.join("; ");
        left.push(format!("{name} does not become what it was: {refused}"));
    }
    Ok(left)
}

impl State {
    /// An interface and its routes now.
    fn of(link: Link) -> io::Result<Self> {
        let mut routes = Vec::new();
        for family in ["-4", "-6"] {
            let text = ip(&words(&format!("{family} route show dev {}", link.name)))?;
            // Advertised by routers, so it returns by itself.
            let lasting = |line: &&str| !line.contains(" proto ra ") && !line.contains(" expires ");
            routes.extend(text.lines().filter(lasting).map(|line| route(family, line)));
        }
        Ok(Self { link, routes })
    }

    /// The arguments of `ip` that make an interface what it was. What has come to one that is not
    /// planned is not the trial's: it stays.
    fn changes(&self, now: &Self, planned: Option<&Interface>) -> Vec<Vec<String>> {
        let name = &self.link.name;
        let mut changes = Vec::new();
        if self.link.is_up() && !now.link.is_up() {
            changes.push(format!("link set dev {name} up"));
        }
        if self.link.mtu != now.link.mtu {
            changes.push(format!("link set dev {name} mtu {}", self.link.mtu));
        }
        let is_planned = |one: &&Address| {
            let is_of = |it: &Interface| one.local == it.address && one.prefix == it.prefix;
            planned.is_some_and(is_of) && !self.link.has(one)
        };
        let gone = now.link.addresses.iter().filter(is_planned);
        changes
            .extend(gone.map(|one| format!("address del {}/{} dev {name}", one.local, one.prefix)));
        let missing = self.link.addresses.iter().filter(|one| !now.link.has(one));
        changes.extend(missing.map(|one| format!("address add {} dev {name}", one.words())));
        let missing = self.routes.iter().filter(|one| !now.routes.contains(one));
        changes.extend(missing.map(|one| format!("{one} dev {name}")));
        if planned.is_some() && !self.link.is_up() && now.link.is_up() {
            changes.push(format!("link set dev {name} down"));
        }
        changes.iter().map(|change| words(change)).collect()
    }
}

impl Link {
    fn is_up(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }

    fn has(&self, address: &Address) -> bool {
        self.addresses
            .iter()
            .any(|one| (one.local, one.prefix) == (address.local, address.prefix))
    }
}

impl Address {
    fn words(&self) -> String {
        let mut words = vec![match self.peer {
            None => format!("{}/{}", self.local, self.prefix),
            Some(peer) => format!("{} peer {peer}/{}", self.local, self.prefix),
        }];
        words.extend(self.broadcast.map(|address| format!("broadcast {address}")));
        words.extend(self.has_no_route.then(|| "noprefixroute".to_owned()));
        // The largest number means forever, to `ip` as well.
        words.push(format!("valid_lft {}", self.valid_life_time));
        words.push(format!("preferred_lft {}", self.preferred_life_time));
        words.join(" ")
    }
}

/// A line of `ip route show`, as arguments.
fn route(family: &str, line: &str) -> String {
    let lasting = line
        .split_whitespace()
        .filter(|word| !STATUS.contains(word));
    let words: Vec<&str> = lasting.collect();
    format!("{family} route add {}", words.join(" "))
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// What `ip` prints.
pub(super) fn ip(arguments: &[String]) -> io::Result<String> {
    let mut command = Command::new("ip");
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| io::Error::new(error.kind(), format!("starting ip: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = arguments.join(" ");
    Err(io::Error::other(format!("ip {line}: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(mtu: u32, flags: &[&str], addresses: &[&str], routes: &[&str]) -> State {
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
        };
        State {
            link: Link {
                name: "en0".to_owned(),
                mtu,
                flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                addresses: addresses.iter().map(address).collect(),
            },
            routes: routes.iter().map(|line| route("-4", line)).collect(),
        }
    }

    #[test]
    fn an_address_keeps_its_peer() {
        let text = r#"{"local": "10.0.0.1", "address": "10.0.0.2", "prefixlen": 32,
            "valid_life_time": 60, "preferred_life_time": 30}"#;
        let address: Address = serde_json::from_str(text).unwrap();
        let expected = "10.0.0.1 peer 10.0.0.2/32 valid_lft 60 preferred_lft 30";
        assert_eq!(address.words(), expected);
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
        let before = state(
            1500,
            &[],
            &["10.0.0.7/24"],
            &[kernel, "default via 10.0.0.1"],
        );
        let now = state(9000, &["UP"], &["192.168.100.1/24", "10.9.9.9/8"], &[]);
        let changes = before.changes(&now, Some(&planned));
        let lines: Vec<String> = changes.iter().map(|change| change.join(" ")).collect();
        let expected = [
            "link set dev en0 mtu 1500",
            "address del 192.168.100.1/24 dev en0",
            "address add 10.0.0.7/24 valid_lft 4294967295 preferred_lft 4294967295 dev en0",
            "-4 route add 10.0.0.0/24 proto kernel scope link src 10.0.0.7 dev en0",
            "-4 route add default via 10.0.0.1 dev en0",
            "link set dev en0 down",
        ];
        assert_eq!(lines, expected);
        assert!(before.changes(&before, Some(&planned)).is_empty());
        let others = before.changes(&now, None);
        let others: Vec<String> = others.iter().map(|change| change.join(" ")).collect();
        let restored: Vec<&str> = [0, 2, 3, 4].map(|index| expected[index]).into();
        assert_eq!(others, restored);
    }
}
