//! The PCI functions of network cards and GPUs, and the bridges above them.

use std::collections::BTreeSet;
use std::path::Path;

use spark_ccl_verbs::Sysfs;

use super::Tree;
use crate::model::{PciFunction, PcieLink};

const FOLDER: &str = "sys/bus/pci/devices";
/// The classes of network cards and of displays; 3D controllers count as displays.
const NETWORK: u32 = 0x02;
const DISPLAY: u32 = 0x03;
const NVIDIA: u16 = 0x10de;

pub(super) fn functions(tree: &Tree) -> Vec<PciFunction> {
    let all = tree.names(FOLDER).into_iter();
    let ends: Vec<_> = all
        .map(|address| function(tree, address))
        .filter(|one| one.class >> 16 == NETWORK || is_gpu(one))
        .collect();
    let bridges: BTreeSet<_> = ends.iter().flat_map(|end| end.bridges.clone()).collect();
    let bridges = bridges.into_iter().map(|address| function(tree, address));
    let mut all: Vec<_> = bridges.chain(ends.iter().cloned()).collect();
    all.sort_by(|a, b| a.address.cmp(&b.address));
    all
}

/// Whether a function is an NVIDIA GPU.
pub(super) fn is_gpu(function: &PciFunction) -> bool {
    function.class >> 16 == DISPLAY && function.vendor == NVIDIA
}

fn function(tree: &Tree, address: String) -> PciFunction {
    let at = |file: &str| format!("{FOLDER}/{address}/{file}");
    PciFunction {
        class: tree.hex(&at("class")).unwrap_or(0),
        vendor: tree.hex(&at("vendor")).unwrap_or(0) as u16,
        device: tree.hex(&at("device")).unwrap_or(0) as u16,
        driver: tree
            .resolved(&at("driver"))
            .and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        // -1 on a machine without nodes.
        numa: tree.number(&at("numa_node")),
        is_virtual: tree.has(&at("physfn")),
        link: link(tree, &at("")),
        bridges: tree
            .resolved(&format!("{FOLDER}/{address}"))
            .map(|path| bridges(&path))
            .unwrap_or_default(),
        address,
    }
}

fn link(tree: &Tree, folder: &str) -> Option<PcieLink> {
    // Without a link, a function reports a width of 0 or 255 lanes, and an unknown speed.
    let width = |file: &str| {
        let width: u32 = tree.number(&format!("{folder}{file}"))?;
        (width > 0 && width < 255).then_some(width)
    };
    let speed = |file: &str| {
        let text = tree.text(&format!("{folder}{file}"))?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(PcieLink {
        width: width("current_link_width")?,
        max_width: width("max_link_width")?,
        speed: speed("current_link_speed")?,
        max_speed: speed("max_link_speed")?,
    })
}

/// The bridges in the path of a function: `devices/pci0000:00/0000:00:01.0/0000:01:00.0` has one.
fn bridges(path: &Path) -> Vec<String> {
    let parts = path.iter().filter_map(|part| part.to_str());
    let mut addresses: Vec<_> = parts
        .filter(|part| Sysfs::is_pci_address(part))
        .map(str::to_owned)
        .collect();
    addresses.pop();
    addresses
}
