//! Network cards: cables, rates, twins, PCIe links, counters of errors.

use spark_ccl_topology::cages::{Cage, CageEnd};
use spark_ccl_topology::{Host, cages};

use crate::doctor::finding::{Finding, Problem};

const MELLANOX: u16 = 0x15b3;
/// Counters that stay at zero on a cable in order.
const ERRORS: [&str; 6] = [
    "local_link_integrity_errors",
    "local_ack_timeout_err",
    "out_of_sequence",
    "packet_seq_err",
    "port_rcv_errors",
    "symbol_error",
];

pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let cages = cages(host);
    let cabled: Vec<_> = cages.iter().filter(|cage| cage.is_cabled()).collect();
    if cages.is_empty() {
        return without_driver(host).into_iter().collect();
    }
    if cabled.is_empty() {
        return vec![without_cable(host, &cages)];
    }
    let each = cabled.into_iter();
    each.flat_map(|cage| [link(host, cage), pcie(host, cage), errors(host, cage)])
        .collect()
}

/// The lanes of a function, and those that it and the bridge above it have, if these are more.
pub(super) fn narrow(host: &Host, address: &str) -> Option<(u32, u32)> {
    let function = host.function(address)?;
    let link = function.link?;
    let bridge = function.bridges.last();
    let bridge = bridge.and_then(|bridge| host.function(bridge)?.link);
    let most = bridge.map_or(link.max_width, |bridge| {
        bridge.max_width.min(link.max_width)
    });
    (link.width < most).then_some((link.width, most))
}

/// Cards without an RDMA device.
fn without_driver(host: &Host) -> Option<Finding> {
    let mut cards = host
        .pci
        .iter()
        .filter(|one| one.vendor == MELLANOX && one.class >> 16 == 2);
    let card = cards.next()?;
    let container = host.system.container.is_some();
    let fix = if container {
        "start the container with --device /dev/infiniband --network host"
    } else {
        "sudo modprobe mlx5_ib"
    };
    Some(Finding::fail(
        "nic.driver",
        &[&host.name],
        Problem {
            seen: format!("network card at {}, no RDMA device", card.address),
            wanted: "an RDMA device for each function".to_owned(),
            why: "without RDMA, hosts are joined by TCP, at a fraction of the speed".to_owned(),
            fix: fix.to_owned(),
        },
    ))
}

fn without_cable(host: &Host, cages: &[Cage<'_>]) -> Finding {
    let names: Vec<_> = cages.iter().map(|cage| cage.name.as_str()).collect();
    let netdevs = cages
        .iter()
        .flat_map(|cage| &cage.ends)
        .filter_map(|end| end.netdev);
    let up: Vec<_> = netdevs
        .map(|netdev| format!("sudo ip link set {} up", netdev.name))
        .collect();
    Finding::fail(
        "nic.link",
        &[&host.name],
        Problem {
            seen: format!("no link at {}", names.join(", ")),
            wanted: "a cable with a link".to_owned(),
            why: "there is no way to other hosts".to_owned(),
            fix: format!("plug the cable in at both ends; {}", up.join("; ")),
        },
    )
}

/// Whether all functions of a cage have a link, of one rate.
fn link(host: &Host, cage: &Cage<'_>) -> Finding {
    const ID: &str = "nic.link";
    let name = [host.name.as_str()];
    let down = cage.ends.iter().find(|end| !end.is_active());
    if let Some(end) = down {
        let netdev = end.port.netdev.as_deref().unwrap_or("its interface");
        return Finding::fail(
            ID,
            &name,
            Problem {
                seen: format!(
                    "{}: {} is {}, its twin is active",
                    cage.name,
                    end.name(),
                    end.port.state
                ),
                wanted: "all functions of a cage active".to_owned(),
                why: "each carries a part of the cable's rate: half of it is lost".to_owned(),
                fix: format!("sudo ip link set {netdev} up"),
            },
        );
    }
    let rates: Vec<_> = cage.ends.iter().filter_map(|end| end.port.rate).collect();
    if rates.iter().any(|rate| Some(rate) != rates.first()) {
        let seen: Vec<_> = rates.iter().map(|rate| (rate / 1000).to_string()).collect();
        return Finding::warn(
            ID,
            &name,
            Problem {
                seen: format!("{}: {} Gbit/s", cage.name, seen.join(" and ")),
                wanted: "one rate".to_owned(),
                why: "data are spread evenly, so the slower function delays the other".to_owned(),
                fix: "plug the cable in anew, or replace it".to_owned(),
            },
        );
    }
    let rate = cage.gbits().map_or_else(
        || "unknown rate".to_owned(),
        |rate| format!("{rate} Gbit/s"),
    );
    let names: Vec<_> = cage.ends.iter().map(CageEnd::name).collect();
    Finding::ok(
        ID,
        &name,
        format!("{}: {rate}, {}", cage.name, names.join(" and ")),
    )
}

/// Whether the PCIe links have all their lanes, and carry what the cable does.
fn pcie(host: &Host, cage: &Cage<'_>) -> Finding {
    const ID: &str = "nic.pcie";
    let name = [host.name.as_str()];
    let narrowed = cage.ends.iter().find_map(|end| {
        let address = end.device.pci.as_deref()?;
        Some((end, narrow(host, address)?))
    });
    if let Some((end, (lanes, most))) = narrowed {
        return Finding::warn(
            ID,
            &name,
            Problem {
                seen: format!("{}: {} has {lanes} PCIe lanes", cage.name, end.name()),
                wanted: format!("{most} lanes"),
                why: "it carries a part of what the cable does; old firmware wires some functions so".to_owned(),
                fix: "sudo fwupdmgr refresh && sudo fwupdmgr update, then switch the machine off and on".to_owned(),
            },
        );
    }
    match (cage.pcie_gbits(host), cage.gbits()) {
        (Some(pcie), Some(cable)) if pcie < cable => Finding::warn(
            ID,
            &name,
            Problem {
                seen: format!(
                    "{}: {pcie:.0} Gbit/s over PCIe, {cable} over the cable",
                    cage.name
                ),
                wanted: "as much over PCIe as over the cable".to_owned(),
                why: "the cable is never full".to_owned(),
                fix: format!(
                    "lspci -vv -d 15b3: shows LnkCap and LnkSta of {}",
                    cage.card
                ),
            },
        ),
        (Some(pcie), _) => Finding::ok(
            ID,
            &name,
            format!("{}: {pcie:.0} Gbit/s over PCIe", cage.name),
        ),
        (None, _) => Finding::ok(ID, &name, format!("{}: no PCIe link", cage.name)),
    }
}

fn errors(host: &Host, cage: &Cage<'_>) -> Finding {
    const ID: &str = "nic.errors";
    let name = [host.name.as_str()];
    let counted = cage.ends.iter().flat_map(|end| {
        let counts = ERRORS.iter().map(|error| (error, end.port.counter(error)));
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(error, count)| format!("{} {error} {count}", end.name()))
    });
    let counted: Vec<_> = counted.collect();
    if counted.is_empty() {
        return Finding::ok(ID, &name, format!("{}: none counted", cage.name));
    }
    Finding::warn(
        ID,
        &name,
        Problem {
            seen: format!("{}: {}", cage.name, counted.join(", ")),
            wanted: "none since the driver was loaded".to_owned(),
            why: "a bad cable or port loses packets, which RDMA sends again after a pause; jobs that were killed count, too"
                .to_owned(),
            fix: "plug the cable in anew at both ends, run spark-perf rdma_bw, and look whether they grow".to_owned(),
        },
    )
}
