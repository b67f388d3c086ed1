//! A server with eight GPUs joined by NVLink, and a network card beside each.

use super::recorded::{Function, Recorded};
use crate::model::{Cuda, CudaDevice, GpuPeer, Reach};

/// A server with eight H200, and eight cards of 400 Gbit/s.
pub fn nvlink_server(name: &str) -> Recorded {
    let mut own = Recorded::new(name, "x86_64", "6.8.0-57-generic");
    own.set("sys/class/dmi/id/product_name", "PowerEdge XE9680");
    own.set(
        "proc/meminfo",
        "MemTotal: 2113536000 kB\nMemAvailable: 2000000000 kB\n",
    );
    own.processors(&[("model name", "INTEL(R) XEON(R) PLATINUM 8580", 4000, 0..8)]);
    for node in 0..2 {
        let at = format!("sys/devices/system/node/node{node}");
        own.set(
            &format!("{at}/cpulist"),
            if node == 0 { "0-3" } else { "4-7" },
        );
        own.set(
            &format!("{at}/meminfo"),
            &format!("Node {node} MemTotal: 1056768000 kB"),
        );
        own.set(
            &format!("{at}/distance"),
            if node == 0 { "10 21" } else { "21 10" },
        );
    }
    own.set("sys/module/nvidia/version", "570.133.20");
    own.nccl("usr/lib/x86_64-linux-gnu", "2.27.5");
    for index in 0..8 {
        gpu(&mut own, index);
        card(&mut own, index);
    }
    own.cuda = Cuda {
        version: Some("12.8".to_owned()),
        devices: (0..8).map(device).collect(),
        problem: None,
    };
    own
}

/// The switch that a GPU and a network card share.
fn bridge(index: usize) -> String {
    let bus = 0x10 + 0x10 * index;
    format!("pci0000:{bus:02x}/0000:{bus:02x}:01.0")
}

fn bus_id(index: usize) -> String {
    format!("0000:{:02x}:00.0", 0x11 + 0x10 * index)
}

fn gpu(own: &mut Recorded, index: usize) {
    own.function(&bridge(index), "0x060400", "0x8086", (16, 32.0));
    let path = format!("{}/{}", bridge(index), bus_id(index));
    own.function(&path, "0x030200", "0x10de", (16, 32.0));
}

fn card(own: &mut Recorded, index: usize) {
    let function = Function {
        path: format!("{}/0000:{:02x}:00.0", bridge(index), 0x12 + 0x10 * index),
        device: format!("mlx5_{index}"),
        netdev: format!("ens{index}np0"),
        port_name: "p0".to_owned(),
        card: format!("5c25:7303:0012:34{index:02x}"),
        mac: format!("5c:25:73:00:00:{index:02x}"),
        mbits: 400_000,
        pcie: (16, 32.0),
    };
    own.ethernet(&function);
    own.cable(&function, &format!("10.1.{index}.1"));
}

fn device(ordinal: usize) -> CudaDevice {
    let others = (0..8).filter(|other| *other != ordinal);
    CudaDevice {
        ordinal,
        bus_id: bus_id(ordinal),
        name: "NVIDIA H200".to_owned(),
        memory: 143_771 << 20,
        capability: (9, 0),
        integrated: false,
        dma_buf: true,
        peers: others
            .map(|other| GpuPeer {
                bus_id: bus_id(other),
                reach: Reach::NvLink,
            })
            .collect(),
    }
}
