//! The texts of the picture.

use spark_ccl_console::notation::{number::significant, size::human};
use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::{Cable, CableEnd};
use spark_ccl_topology::netif::network;
use spark_ccl_topology::{Cluster, Gpu, Host, Reach, cages};

/// The machine and its memory.
pub(super) fn machine(host: &Host) -> String {
    let product = host.system.product.as_deref().unwrap_or("unknown machine");
    format!(
        "{} · {}",
        product.replace('_', " "),
        human(host.memory.total)
    )
}

pub(super) fn processors(host: &Host) -> String {
    let classes = host.cpus.iter();
    let mut words: Vec<_> = classes
        .map(|class| format!("{} × {}", class.count, class.name))
        .collect();
    let joined = |gpu: &Gpu| {
        let peers = gpu.cuda.as_ref().map(|device| &device.peers);
        peers.is_some_and(|all| all.iter().all(|peer| peer.reach == Reach::NvLink))
    };
    if host.gpus.len() > 1 && host.gpus.iter().all(joined) {
        words.push("NVLink between all GPUs".to_owned());
    }
    words.join(", ")
}

pub(super) fn gpu(gpu: &Gpu) -> String {
    let name = gpu.name.as_deref().unwrap_or("GPU");
    name.strip_prefix("NVIDIA ").unwrap_or(name).to_owned()
}

/// A function of the network card: device, interface, address, packets, PCIe.
pub(super) fn function(host: &Host, end: CageEnd<'_>) -> Vec<String> {
    let port = host.described(end.device, end.port);
    let address = port.preferred().filter(|_| end.is_active());
    let pcie = end.pcie(host);
    let lines = [
        Some(end.device.name.clone()),
        end.port.netdev.clone(),
        address.map(ToString::to_string),
        end.netdev.map(|netdev| format!("MTU {}", netdev.mtu)),
        pcie.map(|link| format!("x{} {} GT/s", link.width, link.speed)),
    ];
    lines.into_iter().flatten().collect()
}

/// A cable's speed, which is its slower end's, and its MTU, as far as these ends know them.
pub(super) fn cable(cluster: &Cluster<'_>, cable: &Cable, ends: &[&CableEnd]) -> String {
    let speeds = ends.iter().filter_map(|end| speed(cluster, end));
    let slowest = speeds.reduce(f64::min);
    let speed = slowest.map(|gbits| format!("{} Gbit/s", significant(gbits)));
    let rails = cable
        .rails
        .iter()
        .flat_map(|&rail| &cluster.rails[rail].ends);
    let own = rails.filter(|rail| ends.iter().any(|end| end.host == rail.host));
    let netdevs = own.filter_map(|rail| cluster.hosts[rail.host].netdev(&rail.netdev));
    let mut sizes: Vec<_> = netdevs.map(|netdev| netdev.mtu).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
    let mtu = (!sizes.is_empty()).then(|| format!("MTU {}", sizes.join(" and ")));
    let words: Vec<_> = [speed, mtu].into_iter().flatten().collect();
    words.join(" · ")
}

/// In Gbit/s.
fn speed(cluster: &Cluster<'_>, end: &CableEnd) -> Option<f64> {
    let host = &cluster.hosts[end.host];
    if let Some((card, name)) = &end.cage {
        let cages = cages(host);
        let cage = cages
            .iter()
            .find(|one| one.card == *card && one.name == *name);
        return cage?.gbits();
    }
    let netdev = host.netdev(&end.name)?;
    Some(f64::from(netdev.speed?) / 1000.0)
}

/// The subnet of a rail.
pub(super) fn subnet(cluster: &Cluster<'_>, rail: usize) -> String {
    let gid = &cluster.rails[rail].ends[0].gid;
    let prefix = gid
        .prefix
        .unwrap_or(if gid.ip().is_ipv4() { 32 } else { 128 });
    format!("{}/{prefix}", network(gid.ip(), prefix))
}
