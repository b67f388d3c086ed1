//! Network cards: cables, rates, twins, PCIe links, counters of errors.

use spark_ccl_topology::cages::{Cage, CageEnd};
use spark_ccl_topology::cluster::dark;
use spark_ccl_topology::{Host, Netdev, cages};

use super::rate::{slow, uneven};
use crate::finding::{Finding, Fix, Problem};

const MELLANOX: u16 = 0x15b3;
/// Counters that stay at zero on a good cable.
const ERRORS: [&str; 6] = [
    "local_link_integrity_errors",
    "local_ack_timeout_err",
    "out_of_sequence",
    "packet_seq_err",
    "port_rcv_errors",
    "symbol_error",
];
/// The counter of what has arrived, and its unit in bytes.
const RECEIVED: (&str, u64) = ("port_rcv_data", 4);
/// Errors since the driver was loaded matter if there is more than one in this many bytes.
const BYTES_PER_ERROR: u64 = 1 << 30;

pub(super) fn checks(host: &Host, is_alone: bool) -> Vec<Finding> {
    let cages = cages(host);
    if cages.is_empty() {
        let dark = dark(host)
            .into_iter()
            .map(|netdev| no_carrier(host, netdev));
        return without_driver(host).into_iter().chain(dark).collect();
    }
    let mut found: Vec<_> = without_files(host).into_iter().collect();
    let cabled: Vec<_> = cages.iter().filter(|cage| cage.is_cabled()).collect();
    if cabled.is_empty() {
        found.push(without_cable(host, &cages, is_alone));
    }
    for cage in cabled {
        found.push(link(host, cage));
        // A software device on top of a network interface has no link of its own, and no counter of
        // its errors.
        if cage.ends.iter().any(|end| end.device.pci.is_some()) {
            found.push(pcie(host, cage));
            found.push(errors(host, cage));
        }
    }
    found
}

/// The lanes that a function uses, and the lanes that it and the bridge above it have, if these are
/// more.
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
    let mut functions = host.pci.iter();
    let card = functions.find(|one| one.vendor == MELLANOX && one.class >> 16 == 2)?;
    let look = if host.system.container.is_some() {
        "whether the container was started with --device=/dev/infiniband and --network=host"
    } else {
        "lsmod | grep mlx5: mlx5_ib makes the RDMA devices of mlx5_core"
    };
    let problem = Problem::new(
        format!("network card at {}, no RDMA device", card.address),
        "an RDMA device for each function",
        "without RDMA, hosts are joined by TCP, at a fraction of the speed",
        Fix::look(look),
    );
    Some(Finding::warn("nic.driver", &[&host.name], problem))
}

/// An interface that was given an address and has no link.
fn no_carrier(host: &Host, netdev: &Netdev) -> Finding {
    let Netdev { name, up, .. } = netdev;
    let fix = if *up {
        Fix::look(format!(
            "whether the cable of {name} is plugged in at both ends, and the other end is up"
        ))
    } else {
        Fix::run(&host.name, format!("sudo ip link set {name} up"))
    };
    let state = if *up { "no link" } else { "switched off" };
    let problem = Problem::new(
        format!("{name} has an address: {state}"),
        "a link",
        "other hosts are reached by other interfaces only, which may be slower",
        fix,
    );
    Finding::warn("nic.link", &[&host.name], problem)
}

/// RDMA devices that programs cannot open.
fn without_files(host: &Host) -> Option<Finding> {
    if host.system.rdma_files != Some(false) {
        return None;
    }
    let look = if host.system.container.is_some() {
        "the command that started the container: it needs --device=/dev/infiniband"
    } else {
        "lsmod | grep ib_uverbs: it makes the files"
    };
    let problem = Problem::new(
        format!(
            "{} RDMA devices, and no file in /dev/infiniband to open them",
            host.rdma.len()
        ),
        "/dev/infiniband/uverbs0 and so on",
        "programs see the devices, but cannot use them",
        Fix::look(look),
    );
    Some(Finding::fail("nic.files", &[&host.name], problem))
}

fn without_cable(host: &Host, cages: &[Cage<'_>], is_alone: bool) -> Finding {
    const ID: &str = "nic.link";
    let names: Vec<_> = cages.iter().map(|cage| cage.name.as_str()).collect();
    let seen = format!("no link at {}", names.join(", "));
    if is_alone {
        let seen = format!("{seen}; a host alone needs none");
        return Finding::ok(ID, &[&host.name], seen);
    }
    let netdevs = cages
        .iter()
        .flat_map(|cage| &cage.ends)
        .filter_map(|end| end.netdev);
    let off: Vec<_> = netdevs
        .filter(|netdev| !netdev.up)
        .map(|netdev| netdev.name.as_str())
        .collect();
    let off = match off.as_slice() {
        [] => String::new(),
        off => format!("; these interfaces are switched off: {}", off.join(", ")),
    };
    let look = format!("whether a cable is plugged in at both ends{off}");
    let problem = Problem::new(
        seen,
        "a cable with a link",
        "other hosts are reached by TCP only, over a network of another card",
        Fix::look(look),
    );
    Finding::warn(ID, &[&host.name], problem)
}

/// Whether all functions of a cage have a link, of one rate, which is that of the card.
fn link(host: &Host, cage: &Cage<'_>) -> Finding {
    const ID: &str = "nic.link";
    let name = [host.name.as_str()];
    if let Some(end) = cage.ends.iter().find(|end| !end.is_active()) {
        return Finding::fail(ID, &name, twin_down(host, cage, *end));
    }
    if let Some(problem) = uneven(cage).or_else(|| slow(host, cage)) {
        return Finding::warn(ID, &name, problem);
    }
    let rate = cage.gbits().map_or_else(
        || "unknown rate".to_owned(),
        |rate| format!("{rate} Gbit/s"),
    );
    let names: Vec<_> = cage.ends.iter().map(CageEnd::name).collect();
    let seen = format!("{}: {rate}, {}", cage.name, names.join(" and "));
    Finding::ok(ID, &name, seen)
}

fn twin_down(host: &Host, cage: &Cage<'_>, end: CageEnd<'_>) -> Problem {
    // An interface that was never switched on has no link.
    let fix = match end.netdev {
        Some(netdev) if !netdev.up => {
            Fix::run(&host.name, format!("sudo ip link set {} up", netdev.name))
        }
        _ => Fix::look(format!(
            "dmesg | grep {}",
            end.device.pci.as_deref().unwrap_or("mlx5")
        )),
    };
    Problem::new(
        format!(
            "{}: {} is {}, its twin is active",
            cage.name,
            end.name(),
            end.port.state
        ),
        "all functions of a cage active",
        "each carries a part of the cable's rate: half of it is lost",
        fix,
    )
}

/// Whether the PCIe links have all their lanes, and carry what the cable does.
fn pcie(host: &Host, cage: &Cage<'_>) -> Finding {
    const ID: &str = "nic.pcie";
    let name = [host.name.as_str()];
    let narrowed = cage.ends.iter().find_map(|end| {
        let address = end.device.pci.as_deref()?;
        Some((end, address, narrow(host, address)?))
    });
    if let Some((end, address, (lanes, most))) = narrowed {
        let problem = Problem::new(
            format!("{}: {} has {lanes} PCIe lanes", cage.name, end.name()),
            format!("{most} lanes"),
            "it carries a part of what the cable does; old firmware wires some functions so",
            Fix::look(format!(
                "lspci -vv -s {address}; and whether fwupdmgr get-updates has newer firmware"
            )),
        );
        return Finding::warn(ID, &name, problem);
    }
    match (cage.pcie_gbits(host), cage.gbits()) {
        (Some(pcie), Some(cable)) if pcie < cable => {
            let address = cage.ends.iter().find_map(|end| end.device.pci.as_deref());
            let problem = Problem::new(
                format!(
                    "{}: {pcie:.0} Gbit/s over PCIe, {cable} over the cable",
                    cage.name
                ),
                "as much over PCIe as over the cable",
                "the cable is never full",
                Fix::look(format!(
                    "LnkCap and LnkSta of: lspci -vv -s {}",
                    address.unwrap_or("the card")
                )),
            );
            Finding::warn(ID, &name, problem)
        }
        (Some(pcie), _) => {
            let seen = format!("{}: {pcie:.0} Gbit/s over PCIe", cage.name);
            Finding::ok(ID, &name, seen)
        }
        (None, _) => {
            let seen = format!("{}: the PCIe link is not told", cage.name);
            Finding::unknown(ID, &name, seen, "LnkSta of: lspci -vv, on the host itself")
        }
    }
}

/// Errors, relative to the data that has arrived since the counters began.
fn errors(host: &Host, cage: &Cage<'_>) -> Finding {
    const ID: &str = "nic.errors";
    let name = [host.name.as_str()];
    let (mut counted, mut errors, mut bytes) = (Vec::new(), 0_u64, 0_u64);
    let is_read = |end: &&CageEnd<'_>| ERRORS.iter().any(|name| end.port.has_counter(name));
    if let Some(end) = cage.ends.iter().find(|end| !is_read(end)) {
        let seen = format!("{}: no counter of errors of {}", cage.name, end.name());
        let look = "ls /sys/class/infiniband/*/ports/*/hw_counters, on the host itself";
        return Finding::unknown(ID, &name, seen, look);
    }
    for end in &cage.ends {
        bytes = bytes.saturating_add(end.port.counter(RECEIVED.0).saturating_mul(RECEIVED.1));
        for error in ERRORS {
            let count = end.port.counter(error);
            errors = errors.saturating_add(count);
            if count > 0 {
                counted.push(format!("{} {error} {count}", end.name()));
            }
        }
    }
    if counted.is_empty() {
        return Finding::ok(
            ID,
            &name,
            format!("{}: no error since the driver was loaded", cage.name),
        );
    }
    let seen = format!(
        "{}: {}, for {} GB that arrived",
        cage.name,
        counted.join(", "),
        bytes / 1_000_000_000
    );
    if errors <= bytes / BYTES_PER_ERROR {
        return Finding::ok(ID, &name, seen);
    }
    let problem = Problem::new(
        seen,
        "less than one for each GiB",
        "a bad cable or port loses packets, which RDMA sends again after a pause; jobs that were \
         killed count, too",
        Fix::look(
            "whether they grow while spark-perf rdma_bw runs; if so, whether the cable sits well \
             at both ends",
        ),
    );
    Finding::warn(ID, &name, problem)
}
