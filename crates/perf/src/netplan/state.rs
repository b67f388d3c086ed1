//! Reads and restores the state of network interfaces with the program `ip`.
//!
//! `netplan apply` leaves an interface as it is once no file mentions it. So what the interface was like before a trial
//! is recorded, and restored explicitly.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::plan::Interface;

/// How often a restored interface is looked at, and how often in a row it must be right: the network's daemon may still
/// change it.
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

impl State {
    /// The state of an interface now.
    pub(super) fn read(name: &str) -> io::Result<Self> {
        let link = links()?.into_iter().find(|link| link.name == name);
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no interface {name}"));
        let mut routes = Vec::new();
        for family in ["-4", "-6"] {
            let text = ip(&words(&format!("{family} route show dev {name}")))?;
            // Advertised by routers, so it returns by itself.
            let lasting = |line: &&str| !line.contains(" proto ra ") && !line.contains(" expires ");
            routes.extend(text.lines().filter(lasting).map(|line| route(family, line)));
        }
        let link = link.ok_or_else(missing)?;
        Ok(Self { link, routes })
    }

    /// Makes the interface what it was, and sees that it stays so.
    pub(super) fn restore(&self, planned: &Interface) -> io::Result<()> {
        let mut refused = Vec::new();
        let mut calm = 0;
        for _ in 0..LOOKS {
            let changes = self.changes(&Self::read(&self.link.name)?, planned);
            if changes.is_empty() {
                calm += 1;
                if calm == CALM {
                    return Ok(());
                }
            } else {
                calm = 0;
                // A later change may make room for one that is refused.
                let errors = changes.iter().filter_map(|change| ip(change).err());
                refused = errors.map(|error| error.to_string()).collect();
            }
            std::thread::sleep(PAUSE);
        }
        let name = &self.link.name;
        Err(io::Error::other(format!(
            "{name} does not become what it was: {}",
            refused.join("; ")
        )))
    }

    /// The arguments of `ip` that make an interface what it was.
    fn changes(&self, now: &Self, planned: &Interface) -> Vec<Vec<String>> {
        let name = &self.link.name;
        let mut changes = Vec::new();
        if self.link.is_up() && !now.link.is_up() {
            changes.push(format!("link set dev {name} up"));
        }
        if self.link.mtu != now.link.mtu {
            changes.push(format!("link set dev {name} mtu {}", self.link.mtu));
        }
        let is_planned = |one: &&Address| {
            one.local == planned.address && one.prefix == planned.prefix && !self.link.has(one)
        };
        let gone = now.link.addresses.iter().filter(is_planned);
        changes
            .extend(gone.map(|one| format!("address del {}/{} dev {name}", one.local, one.prefix)));
        let missing = self.link.addresses.iter().filter(|one| !now.link.has(one));
        changes.extend(missing.map(|one| format!("address add {} dev {name}", one.words())));
        let missing = self.routes.iter().filter(|one| !now.routes.contains(one));
        changes.extend(missing.map(|one| format!("{one} dev {name}")));
        if !self.link.is_up() && now.link.is_up() {
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
        let mut words = vec![format!("{}/{}", self.local, self.prefix)];
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
        let changes = before.changes(&now, &planned);
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
        assert!(before.changes(&before, &planned).is_empty());
    }
}
