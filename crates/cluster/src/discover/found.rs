//! Merges the signs of hosts: those with a common address, name or key are one host. Opens no
//! socket.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use serde::Serialize;

/// A host, with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    pub(super) name: Option<String>,
    /// Its description of its system.
    pub(super) description: Option<String>,
    /// Addresses as texts: those of one link have its interface after `%`.
    pub(super) addresses: BTreeSet<String>,
    pub(super) sources: BTreeSet<&'static str>,
    /// The address at which its ssh server has answered.
    pub(super) ssh_address: Option<String>,
    /// The server's public key.
    pub(super) ssh_key: Option<String>,
    /// Whether ssh finds the host by its name.
    pub(super) name_resolves: bool,
}

/// The most signs of hosts that each of the three ways of looking keeps. Anybody on the link may
/// send more, but cannot displace a host that another way has found.
pub(super) const MOST: usize = 512;
const WAYS: usize = 3;

/// Merges entries with a common address, name or key: they are one host.
pub(super) fn merge(seen: Vec<Found>) -> Vec<Found> {
    let mut hosts: Vec<Found> = Vec::new();
    for mut host in seen.into_iter().take(WAYS * MOST) {
        // An entry may match several earlier ones, which are then one host.
        while let Some(index) = hosts.iter().position(|one| one.is_same(&host)) {
            host.take(hosts.remove(index));
        }
        hosts.push(host);
    }
    hosts.sort_by(|one, other| (&one.name, &one.addresses).cmp(&(&other.name, &other.addresses)));
    hosts
}

/// Warns of several names with one key, which count as one host: a copied system has the key of the
/// original.
pub(super) fn same_keys(hosts: &[Found]) -> Vec<String> {
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for host in hosts {
        if let (Some(key), Some(name)) = (&host.ssh_key, &host.name) {
            names.entry(key).or_default().insert(name);
        }
    }
    let several = names.into_values().filter(|names| names.len() > 1);
    let note = |names: BTreeSet<&str>| {
        let names: Vec<_> = names.into_iter().collect();
        format!(
            "{} have one host key, and are taken for one host. If they are several, one was copied \
             from another: give each keys of its own (sudo rm /etc/ssh/ssh_host_*_key*; sudo \
             ssh-keygen -A; sudo systemctl restart ssh)",
            names.join(" and ")
        )
    };
    several.map(note).collect()
}

impl Found {
    /// One sign of a host.
    pub(super) fn seen(
        name: Option<String>,
        addresses: BTreeSet<String>,
        source: &'static str,
    ) -> Self {
        Self {
            name,
            description: None,
            addresses,
            sources: BTreeSet::from([source]),
            ssh_address: None,
            ssh_key: None,
            name_resolves: false,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let same = |one: &Option<String>, other: &Option<String>| one.is_some() && one == other;
        // Names of multicast DNS are unique on the link; several hosts may have any other name.
        let is_unique = |name: &String| {
            name.rsplit_once('.')
                .is_some_and(|(_, last)| last == "local")
        };
        same(&self.name, &other.name) && self.name.as_ref().is_some_and(is_unique)
            || same(&self.ssh_key, &other.ssh_key)
            || !self.addresses.is_disjoint(&other.addresses)
    }

    /// Adds another sign of the same host.
    fn take(&mut self, other: Self) {
        if self.name.is_none() || (other.name_resolves && !self.name_resolves) {
            self.name = other.name;
        }
        self.description = self.description.take().or(other.description);
        self.addresses.extend(other.addresses);
        self.sources.extend(other.sources);
        self.ssh_key = self.ssh_key.take().or(other.ssh_key);
        self.name_resolves |= other.name_resolves;
        let both = [self.ssh_address.take(), other.ssh_address];
        // IPv4 addresses come first: they mean the same on all hosts.
        self.ssh_address = both
            .into_iter()
            .flatten()
            .min_by_key(|one| one.contains(':'));
    }

    pub(super) fn has_ssh(&self) -> bool {
        self.ssh_key.is_some()
    }

    /// Whether this is its name, with or without its domain, or one of its addresses.
    pub(super) fn is_called(&self, name: &str) -> bool {
        let is_name = |own: &String| {
            let first = own.strip_suffix(".local").unwrap_or(own);
            own.eq_ignore_ascii_case(name) || first.eq_ignore_ascii_case(name)
        };
        self.addresses.contains(name) || self.name.as_ref().is_some_and(is_name)
    }

    /// How ssh reaches it: by its name, or the address that has answered, or any.
    pub(super) fn target(&self) -> String {
        let named = self.name.clone().filter(|_| self.name_resolves);
        let target = named.or_else(|| self.ssh_address.clone());
        let target = target.or_else(|| self.addresses.first().cloned());
        target.unwrap_or_default()
    }

    /// A line about it.
    pub(super) fn about(&self) -> String {
        let mut parts: Vec<String> = self.name.iter().cloned().collect();
        parts.extend(self.addresses.iter().cloned());
        parts.extend(self.description.iter().map(|text| format!("\"{text}\"")));
        let sources: Vec<&str> = self.sources.iter().copied().collect();
        format!("{}; by {}", parts.join(", "), sources.join(", "))
    }
}

/// An address of one link, with the link's interface.
pub(super) fn scoped(address: Ipv6Addr, interface: &str) -> String {
    format!("{address}%{interface}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: Option<&str>, addresses: &[&str], source: &'static str) -> Found {
        let addresses = addresses.iter().map(|one| (*one).to_owned()).collect();
        Found::seen(name.map(str::to_owned), addresses, source)
    }

    #[test]
    fn signs_of_one_host_are_put_together() {
        let found = merge(vec![
            seen(None, &["fe80::2%a"], "neighbours"),
            seen(None, &["fe80::3%b"], "neighbours"),
            seen(Some("y.local"), &["10.0.0.9"], "mDNS"),
            seen(
                Some("x.local"),
                &["10.0.0.2", "fe80::2%a", "fe80::3%b"],
                "mDNS",
            ),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].name.as_deref(), Some("x.local"));
        assert_eq!(found[0].addresses.len(), 3);
        assert_eq!(
            found[0].about(),
            "x.local, 10.0.0.2, fe80::2%a, fe80::3%b; by mDNS, neighbours"
        );
        assert_eq!(found[1].sources, BTreeSet::from(["mDNS"]));
    }

    #[test]
    fn a_key_is_of_one_host() {
        let with = |mut found: Found, address: &str| {
            found.ssh_key = Some("ssh-ed25519 A".to_owned());
            found.ssh_address = Some(address.to_owned());
            found
        };
        let by_echo = with(seen(None, &["fe80::2%a"], "neighbours"), "fe80::2%a");
        let by_name = with(seen(Some("x.local"), &["10.0.0.2"], "mDNS"), "10.0.0.2");
        for order in [[by_echo.clone(), by_name.clone()], [by_name, by_echo]] {
            let found = merge(order.to_vec());
            assert_eq!((found.len(), found[0].target().as_str()), (1, "10.0.0.2"));
        }
    }

    #[test]
    fn names_with_one_key_are_told() {
        let with = |name, key: &str| {
            let mut found = seen(Some(name), &[], "mDNS");
            found.ssh_key = Some(key.to_owned());
            found
        };
        let hosts = [
            with("x", "A"),
            with("y", "B"),
            with("z", "A"),
            with("y", "B"),
        ];
        let notes = same_keys(&hosts);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].starts_with("x and z have one host key"),
            "{notes:?}"
        );
        // A server that runs goes on with the keys that it has read.
        assert!(notes[0].contains("restart ssh"), "{notes:?}");
    }

    #[test]
    fn a_crowd_is_cut_off() {
        let address = |number: u32| std::net::Ipv4Addr::from_bits(number).to_string();
        let crowd = (0..3000).map(|number| seen(None, &[&address(number)], "neighbours"));
        assert_eq!(merge(crowd.collect()).len(), WAYS * MOST);
    }

    #[test]
    fn a_name_that_ssh_does_not_resolve_is_not_used() {
        let mut host = merge(vec![seen(
            Some("x.local"),
            &["10.0.0.2", "fe80::2%a"],
            "mDNS",
        )])
        .remove(0);
        host.ssh_address = Some("fe80::2%a".to_owned());
        assert_eq!(host.target(), "fe80::2%a");
        host.name_resolves = true;
        assert_eq!(host.target(), "x.local");
    }

    #[test]
    fn two_hosts_may_have_one_name_outside_of_multicast_dns() {
        let both = |name| {
            let at = |address| seen(Some(name), &[address], "LLDP");
            merge(vec![at("10.0.0.2"), at("10.0.0.3")]).len()
        };
        assert_eq!((both("ubuntu"), both("ubuntu.local")), (2, 1));
    }

    #[test]
    fn of_two_names_that_which_resolves_is_used() {
        let with = |name, resolves| {
            let mut found = seen(Some(name), &["10.0.0.2"], "mDNS");
            found.name_resolves = resolves;
            found
        };
        let (local, other) = (with("x.local", true), with("x.lab", false));
        for order in [[local.clone(), other.clone()], [other, local]] {
            assert_eq!(merge(order.to_vec())[0].target(), "x.local");
        }
    }
}
