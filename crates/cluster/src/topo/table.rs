//! Hosts, devices and cables as text.

use std::fmt::Write as _;

use spark_ccl_console::notation::size::human;
use spark_ccl_topology::cages::{Cage, CageEnd};
use spark_ccl_topology::cluster::{Cable, Evidence, HostRail};
use spark_ccl_topology::{Cluster, Gpu, Host, PortState, cages};

pub(super) fn text(cluster: &Cluster<'_>) -> String {
    let mut text = String::new();
    for host in cluster.hosts {
        about(&mut text, host);
        devices(&mut text, host);
    }
    if cluster.hosts.len() > 1 {
        let _ = writeln!(text, "# {} hosts: {}", cluster.hosts.len(), cluster.shape);
        for one in &cluster.cables {
            cable(&mut text, cluster, one);
        }
    }
    text
}

fn about(text: &mut String, host: &Host) {
    let system = &host.system;
    let product = system.product.as_deref().unwrap_or("unknown machine");
    let _ = write!(text, "# {}: {product}, {}", host.name, system.arch);
    let _ = write!(text, ", kernel {}", system.kernel);
    if let Some(container) = &system.container {
        let _ = write!(text, ", in a container ({container})");
    }
    let cpus: Vec<_> = host
        .cpus
        .iter()
        .map(|class| format!("{} {} ({})", class.count, class.name, class.cpus))
        .collect();
    let _ = writeln!(
        text,
        "\n#   processors {}; memory {}, {} available",
        cpus.join(", "),
        human(host.memory.total),
        human(host.memory.available)
    );
    for one in &host.gpus {
        let _ = writeln!(text, "#   GPU {}", gpu(host, one));
    }
}

fn gpu(host: &Host, gpu: &Gpu) -> String {
    let mut text = format!("{} {}", gpu.bus_id, gpu.name.as_deref().unwrap_or("GPU"));
    match &gpu.cuda {
        Some(device) if device.integrated => text.push_str(", shares the processors' memory"),
        Some(device) => {
            let _ = write!(text, ", {}", human(device.memory));
        }
        None => text.push_str(", which CUDA does not list"),
    }
    if let Some(driver) = &host.software.driver {
        let _ = write!(text, ", driver {driver}");
    }
    text
}

fn devices(text: &mut String, host: &Host) {
    let cages = cages(host);
    if cages.is_empty() {
        text.push_str("#   no RDMA devices\n");
        return;
    }
    let heads = [
        "cage",
        "device",
        "state",
        "rate",
        "interface",
        "MTU",
        "address",
        "PCI",
        "PCIe",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    for cage in &cages {
        rows.extend(cage.ends.iter().map(|end| row(host, cage, *end)));
    }
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    for (place, row) in rows.iter().enumerate() {
        text.push_str(if place == 0 { "#" } else { " " });
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, " {cell:width$} ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
}

fn row(host: &Host, cage: &Cage<'_>, end: CageEnd<'_>) -> [String; 9] {
    let netdev = end.netdev;
    [
        cage.name.clone(),
        end.name(),
        end.port.state.to_string(),
        end.port.rate.map_or_else(unknown, |rate| {
            format!("{} Gbit/s", f64::from(rate) / 1000.0)
        }),
        end.port.netdev.clone().unwrap_or_else(unknown),
        netdev.map_or_else(unknown, |netdev| netdev.mtu.to_string()),
        address(host, end),
        end.device.pci.clone().unwrap_or_else(unknown),
        end.pcie(host).map_or_else(unknown, |link| {
            format!("x{} {} GT/s", link.width, link.speed)
        }),
    ]
}

/// The address that is used as long as the peer is unknown.
fn address(host: &Host, end: CageEnd<'_>) -> String {
    let port = host.described(end.device, end.port);
    match port.preferred() {
        Some(gid) if end.port.state == PortState::Active => format!("{gid} [{}]", gid.index),
        _ => unknown(),
    }
}

fn cable(text: &mut String, cluster: &Cluster<'_>, cable: &Cable) {
    let name = |side: usize| {
        let end = &cable.ends[side];
        format!("{} {}", cluster.hosts[end.host].name, end.name)
    };
    let _ = writeln!(text, "# {} - {}", name(0), name(1));
    for rail in cable.rails.iter().map(|&index| &cluster.rails[index]) {
        let [a, b] = &rail.ends;
        let _ = writeln!(
            text,
            "  {} {} - {} {}  {}",
            a.device,
            a.gid.ip(),
            b.device,
            b.gid.ip(),
            evidence(rail)
        );
    }
}

fn evidence(rail: &HostRail) -> &'static str {
    match rail.evidence {
        Evidence::Heard => "heard from",
        Evidence::Subnet => "by subnet",
        Evidence::Perhaps => "perhaps: other ports are in the same subnet",
        Evidence::Silent => "no answer",
    }
}

fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use spark_ccl_topology::testing;

    use super::*;

    #[test]
    fn a_pair_and_its_cable() {
        let hosts = testing::hosts(&testing::pair());
        let text = text(&Cluster::of(&hosts));
        let has = |line: &str| {
            assert!(
                text.lines().any(|one| one.trim_end() == line),
                "{line}\n{text}"
            );
        };
        has("# spark-1: NVIDIA_DGX_Spark, aarch64, kernel 6.17.0-1014-nvidia");
        has("#   GPU 000f:01:00.0 NVIDIA GB10, shares the processors' memory, driver 580.95.05");
        has("# 2 hosts: a pair");
        has("# spark-1 p0 - spark-2 p0");
        has("  rocep1s0f0 10.0.0.1 - rocep1s0f0 10.0.0.2  heard from");
        has("  roceP2p1s0f0 10.0.1.1 - roceP2p1s0f0 10.0.1.2  heard from");
        let row = text
            .lines()
            .find(|line| line.contains(" roceP2p1s0f0:1 "))
            .unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        let expected = "p0 roceP2p1s0f0:1 active 200 Gbit/s enP2p1s0f0np0 9000 10.0.1.1/24 [3] 0002:01:00.0 x4 32 GT/s";
        assert_eq!(cells.join(" "), expected);
    }

    #[test]
    fn a_host_without_rdma_says_so() {
        let mut host = testing::spark("a", 1).host();
        host.rdma.clear();
        let hosts = [host];
        let text = text(&Cluster::of(&hosts));
        assert!(text.ends_with("#   no RDMA devices\n"), "{text}");
    }
}
