//! The cages (cable sockets) of network cards, and the PCI functions of a card that lead to each.
//! Knows one host; does not know where cables go.
//!
//! A card with several PCIe links to the host shows one cage as several functions, its *twins*.
//! Each twin has its own RDMA device and network interface. A 200 Gbit/s cage of a DGX Spark, for
//! instance, has two twins with four PCIe lanes each.

use std::collections::BTreeMap;

use crate::Host;
use crate::model::{Netdev, PcieLink, PortState, RdmaDevice, RdmaPort};

/// A cage.
#[derive(Debug, Clone, PartialEq)]
pub struct Cage<'a> {
    /// The identity of the card.
    pub card: String,
    /// The cage's name on the card, such as `p0`.
    pub name: String,
    /// The functions that lead to it, by PCI address: one, or twins.
    pub ends: Vec<CageEnd<'a>>,
}

/// A PCI function that leads to a cage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CageEnd<'a> {
    /// The RDMA device.
    pub device: &'a RdmaDevice,
    /// Its port.
    pub port: &'a RdmaPort,
    /// Its network interface.
    pub netdev: Option<&'a Netdev>,
}

/// The cages of a host, in the order of their names.
pub fn cages(host: &Host) -> Vec<Cage<'_>> {
    let mut found: BTreeMap<(String, String), Vec<CageEnd<'_>>> = BTreeMap::new();
    for (device, port) in host.ports() {
        let netdev = host.netdev_of(port);
        let end = CageEnd {
            device,
            port,
            netdev,
        };
        found.entry(place(host, end)).or_default().push(end);
    }
    let mut cages: Vec<_> = found
        .into_iter()
        .map(|((card, name), mut ends)| {
            ends.sort_by(|a, b| {
                let key = |end: &CageEnd<'_>| (end.device.pci.clone(), end.device.name.clone());
                key(a).cmp(&key(b))
            });
            Cage { card, name, ends }
        })
        .collect();
    // Orders cards by their first PCI addresses, not by their serial numbers.
    let first = |card: &str| host.rdma.iter().position(|one| card_of(host, one) == card);
    cages.sort_by_key(|cage| (first(&cage.card), cage.name.clone()));
    cages
}

/// The identity of a cage: the card, and the cage's name. Functions of unknown cards and virtual
/// functions are never twins.
fn place(host: &Host, end: CageEnd<'_>) -> (String, String) {
    let told = end.netdev.and_then(|netdev| netdev.port_name.clone());
    let name = told.unwrap_or_else(|| {
        // If the driver names no port, each function, or each port of a function, counts as a cage.
        let function = end
            .device
            .pci
            .as_deref()
            .and_then(|pci| pci.split_once('.'));
        let function = function.and_then(|(_, function)| function.parse::<u32>().ok());
        let index = function.unwrap_or(0) + u32::from(end.port.number.saturating_sub(1));
        format!("p{index}")
    });
    (card_of(host, end.device), name)
}

fn card_of(host: &Host, device: &RdmaDevice) -> String {
    let function = device.pci.as_deref().and_then(|pci| host.function(pci));
    let is_virtual = function.is_some_and(|function| function.is_virtual);
    let card = device.card.as_ref().filter(|_| !is_virtual);
    card.unwrap_or(&device.name).clone()
}

impl Cage<'_> {
    /// Whether a cable is plugged in: one of its functions has a link.
    pub fn is_cabled(&self) -> bool {
        self.ends
            .iter()
            .any(|end| end.port.state == PortState::Active)
    }

    /// The rate of the cable in Gbit/s.
    pub fn gbits(&self) -> Option<f64> {
        let rates = self.ends.iter().filter(|end| end.is_active());
        let rates = rates.filter_map(|end| end.port.rate);
        rates.max().map(|rate| f64::from(rate) / 1000.0)
    }

    /// The sum of its functions' PCIe links, in Gbit/s; `None` if one of them is unknown.
    pub fn pcie_gbits(&self, host: &Host) -> Option<f64> {
        let links = self.ends.iter().map(|end| end.pcie(host));
        links.map(|link| link.map(|link| link.gbits())).sum()
    }
}

impl CageEnd<'_> {
    /// Whether it carries packets.
    pub fn is_active(&self) -> bool {
        self.port.state == PortState::Active
    }

    /// The PCIe link of the function.
    pub fn pcie(&self, host: &Host) -> Option<PcieLink> {
        host.function(self.device.pci.as_deref()?)?.link
    }

    /// The device and port, as written in settings.
    pub fn name(&self) -> String {
        format!("{}:{}", self.device.name, self.port.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn names(host: &Host) -> Vec<(String, Vec<String>)> {
        let cages = cages(host).into_iter();
        let names = |cage: Cage<'_>| {
            let ends = cage.ends.iter().map(|end| end.device.name.clone());
            (cage.name, ends.collect())
        };
        cages.map(names).collect()
    }

    #[test]
    fn a_spark_has_two_cages_with_twins() {
        let host = testing::spark("spark-1", 1).host();
        let of = |name: &str, ends: [&str; 2]| (name.to_owned(), ends.map(str::to_owned).to_vec());
        let expected = [
            of("p0", ["rocep1s0f0", "roceP2p1s0f0"]),
            of("p1", ["rocep1s0f1", "roceP2p1s0f1"]),
        ];
        assert_eq!(names(&host), expected);
        let cages = cages(&host);
        assert!(cages[0].is_cabled() && !cages[1].is_cabled());
        assert_eq!(cages[0].gbits(), Some(200.0));
        let pcie = cages[0].pcie_gbits(&host).unwrap();
        assert!((pcie - 252.06).abs() < 0.01, "{pcie}");
    }

    #[test]
    fn cards_of_a_server_have_a_cage_each() {
        let host = testing::nvlink_server("h200").host();
        let names = names(&host);
        assert_eq!(names.len(), 8, "{names:?}");
        assert!(
            names
                .iter()
                .all(|(name, ends)| name == "p0" && ends.len() == 1)
        );
    }

    #[test]
    fn devices_without_a_card_are_no_twins() {
        let mut host = testing::spark("spark-1", 1).host();
        for device in &mut host.rdma {
            device.card = None;
        }
        assert_eq!(names(&host).len(), 4);
    }

    #[test]
    fn virtual_functions_are_no_twins() {
        let mut recorded = testing::spark("spark-1", 1);
        let folder = "sys/devices/pci0002:00/0002:00:00.0/0002:01:00.0";
        assert_eq!(cages(&recorded.host())[0].ends.len(), 2);
        recorded.set(&format!("{folder}/physfn/vendor"), "0x15b3");
        let host = recorded.host();
        assert!(
            cages(&host)
                .iter()
                .all(|cage| cage.name != "p0" || cage.ends.len() == 1)
        );
    }
}
