//! DGX Sparks: 20 processors of two kinds, a GPU that shares their memory, and a network card with
//! two cages. The host reaches each cage over two links of four lanes.

use super::recorded::{Function, Recorded};
use crate::model::{Cuda, CudaDevice, Netdev};

/// A cage of a host: the index of the host, and the number of the cage.
type Place = (usize, usize);

/// A Spark whose cage `p0` has a cable to an unknown host.
pub fn spark(name: &str, number: u8) -> Recorded {
    let mut own = bare(name, number);
    for (twin, function) in functions(number, 0).iter().enumerate() {
        own.cable(function, &format!("10.0.{twin}.{number}"));
    }
    own
}

/// Two Sparks, with a cable between their cages `p0`.
pub fn pair() -> Vec<Recorded> {
    let mut hosts = bare_hosts(2);
    cable(&mut hosts, (0, 0), (1, 0), 0);
    hosts
}

/// Three Sparks in a ring without a switch: each cage `p0` leads to the next host's `p1`.
pub fn ring() -> Vec<Recorded> {
    let mut hosts = bare_hosts(3);
    for host in 0..3 {
        cable(&mut hosts, (host, 0), ((host + 1) % 3, 1), 2 * host);
    }
    hosts
}

/// Four Sparks whose cages `p0` are plugged into one switch.
pub fn switch() -> Vec<Recorded> {
    let mut hosts = bare_hosts(4);
    let ends: Vec<_> = (1..=4).map(|number| functions(number, 0)).collect();
    let ip = |host: usize, twin: usize| format!("10.0.{twin}.{}", host + 1);
    for (index, host) in hosts.iter_mut().enumerate() {
        for (twin, function) in ends[index].iter().enumerate() {
            host.cable(function, &ip(index, twin));
            for (peer, other) in ends.iter().enumerate().filter(|(peer, _)| *peer != index) {
                host.neighbour(&function.netdev, &ip(peer, twin), &other[twin].mac);
            }
        }
    }
    hosts
}

fn bare_hosts(count: u8) -> Vec<Recorded> {
    (1..=count)
        .map(|number| bare(&format!("spark-{number}"), number))
        .collect()
}

/// Plugs a cable into two cages, with a subnet for each of their twins.
fn cable(hosts: &mut [Recorded], a: Place, b: Place, subnet: usize) {
    let ends = [a, b].map(|(host, cage)| (host, functions(host as u8 + 1, cage)));
    for [(host, own), (peer, other)] in [[&ends[0], &ends[1]], [&ends[1], &ends[0]]] {
        for (twin, function) in own.iter().enumerate() {
            let ip = |host: usize| format!("10.0.{}.{}", subnet + twin, host + 1);
            hosts[*host].cable(function, &ip(*host));
            hosts[*host].neighbour(&function.netdev, &ip(*peer), &other[twin].mac);
        }
    }
}

/// A Spark without a cable in its network card.
fn bare(name: &str, number: u8) -> Recorded {
    let kernel = "6.17.0-1014-nvidia";
    let mut own = Recorded::new(name, "aarch64", kernel);
    own.set(&format!("boot/config-{kernel}"), "CONFIG_ARM_SMMU_V3_SVA=y");
    own.set("proc/sys/vm/compaction_proactiveness", "0");
    own.set("sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark");
    own.set(
        "proc/meminfo",
        "MemTotal: 125513216 kB\nMemAvailable: 118112256 kB\nCmaTotal: 65536 kB\nCmaFree: 60000 \
         kB\n",
    );
    own.processors(&[
        ("CPU part", "0xd87", 2808, 0..5),
        ("CPU part", "0xd85", 3900, 5..10),
        ("CPU part", "0xd87", 2808, 10..15),
        ("CPU part", "0xd85", 3900, 15..20),
    ]);
    let node = "sys/devices/system/node/node0";
    own.set(&format!("{node}/cpulist"), "0-19");
    own.set(&format!("{node}/meminfo"), "Node 0 MemTotal: 125513216 kB");
    own.set(&format!("{node}/distance"), "10");
    for domain in ["0000", "0002"] {
        let bridge = format!("pci{domain}:00/{domain}:00:00.0");
        own.function(&bridge, "0x060400", "0x10de", (4, 32.0));
    }
    lan(&mut own, number);
    for function in (0..2).flat_map(|cage| functions(number, cage)) {
        own.ethernet(&function);
    }
    software(&mut own);
    own
}

/// The port of 10 Gbit/s, and its local network.
fn lan(own: &mut Recorded, number: u8) {
    own.network.netdevs.push(Netdev {
        name: "enP7s7".to_owned(),
        index: 2,
        up: true,
        running: true,
        mtu: 1500,
        mac: Some(format!("4c:bb:47:00:00:{number:02x}")),
        ..Netdev::default()
    });
    own.set("sys/class/net/enP7s7/speed", "10000");
    own.address("enP7s7", &format!("192.168.1.{}", 100 + number), 24);
}

fn software(own: &mut Recorded) {
    let bus_id = "000f:01:00.0";
    let path = format!("pci000f:00/000f:00:00.0/{bus_id}");
    own.function(&path, "0x030000", "0x10de", (16, 32.0));
    own.set("sys/module/nvidia/version", "580.95.05");
    own.set(
        &format!("proc/driver/nvidia/gpus/{bus_id}/information"),
        "Model: \t\t NVIDIA GB10\nIRQ:   \t\t 200\n",
    );
    own.set(
        "usr/local/cuda-13.0/version.json",
        r#"{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}"#,
    );
    own.link("usr/local/cuda", "cuda-13.0");
    own.nccl("usr/lib/aarch64-linux-gnu", "2.30.7");
    own.cuda = Cuda {
        version: Some("13.0".to_owned()),
        devices: vec![CudaDevice {
            ordinal: 0,
            bus_id: bus_id.to_owned(),
            name: "NVIDIA GB10".to_owned(),
            memory: 125_513_216 << 10,
            capability: (12, 1),
            integrated: true,
            dma_buf: false,
            peers: Vec::new(),
        }],
        problem: None,
    };
}

/// The two functions of a cage.
fn functions(number: u8, cage: usize) -> Vec<Function> {
    let of = |(domain, prefix): (u8, &str)| {
        let (domain, index) = (format!("000{domain}"), cage);
        Function {
            path: format!("pci{domain}:00/{domain}:00:00.0/{domain}:01:00.{index}"),
            device: format!("roce{prefix}p1s0f{index}"),
            netdev: format!("en{prefix}p1s0f{index}np{index}"),
            port_name: format!("p{index}"),
            card: format!("fc4c:ea03:00f9:42{number:02x}"),
            mac: format!(
                "4c:bb:47:{number:02x}:{domain:.2}:{index:02x}",
                domain = &domain[2..]
            ),
            mbits: 200_000,
            pcie: (4, 32.0),
        }
    };
    [(0, ""), (2, "P2")].into_iter().map(of).collect()
}
