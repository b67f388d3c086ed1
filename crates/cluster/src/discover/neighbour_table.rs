//! The kernel's table of neighbours: finds the other addresses of a network card by one of them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Deserialize;

use crate::program::output_of;

/// A neighbour that has answered, or one that has not.
#[derive(Debug, Deserialize)]
struct Entry {
    dst: String,
    dev: String,
    lladdr: Option<String>,
    #[serde(default)]
    state: Vec<String>,
}

/// The hosts that the kernel knows on its links.
#[derive(Debug, Default)]
pub(super) struct NeighbourTable(Vec<Entry>);

impl NeighbourTable {
    /// Asks `ip`, of iproute2. Empty if that is missing.
    pub(super) fn read() -> Self {
        output_of("ip -json neighbour").map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_default())
    }

    /// The IPv4 addresses of the card that has this address on this link.
    pub(super) fn ipv4_of(&self, address: IpAddr, link: &str) -> BTreeSet<String> {
        let on_link = || self.0.iter().filter(|entry| entry.dev == link);
        let is_it = |entry: &&Entry| entry.dst.parse() == Ok(address);
        let card = on_link()
            .find(is_it)
            .and_then(|entry| entry.lladdr.as_ref());
        let same_card = on_link().filter(|entry| {
            let answers = !entry.state.iter().any(|state| state == "FAILED");
            answers && card.is_some() && entry.lladdr.as_ref() == card
        });
        let addresses = same_card.filter_map(|entry| entry.dst.parse::<IpAddr>().ok());
        let ipv4 = addresses.filter(IpAddr::is_ipv4);
        ipv4.map(|address| address.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_addresses_of_both_kinds() {
        let table = NeighbourTable::parse(
            r#"[
            {"dst":"10.0.0.2","dev":"a","lladdr":"02:00:00:00:00:02","state":["STALE"]},
            {"dst":"10.0.0.3","dev":"a","lladdr":"02:00:00:00:00:03","state":["REACHABLE"]},
            {"dst":"10.0.9.2","dev":"b","lladdr":"02:00:00:00:00:02","state":["REACHABLE"]},
            {"dst":"10.0.0.7","dev":"a","lladdr":"02:00:00:00:00:02","state":["FAILED"]},
            {"dst":"10.0.0.9","dev":"a","state":["INCOMPLETE"]},
            {"dst":"fe80::2","dev":"a","lladdr":"02:00:00:00:00:02","state":["DELAY"]},
            {"dst":"fe80::9","dev":"a","state":["INCOMPLETE"]}
            ]"#,
        );
        let of = |address: &str| table.ipv4_of(address.parse().unwrap(), "a");
        assert_eq!(of("fe80::2"), BTreeSet::from(["10.0.0.2".to_owned()]));
        // Neither has said which card it is.
        assert!(of("fe80::9").is_empty() && of("fe80::4").is_empty());
        assert!(NeighbourTable::parse("no list").0.is_empty());
    }
}
