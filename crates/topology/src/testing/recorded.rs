//! A made-up tree, written as files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use spark_ccl_log::Mutex;

use crate::model::{
    Address, Cuda, Library, Neighbour, NeighbourState, Netdev, Network, RdmaPort, Route,
};
use crate::netif::network;
use crate::{Host, recorded};

/// A recorded host: files, symbolic links, and the JSON files beside them.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    /// The lists of netlink.
    pub network: Network,
    /// The answer of CUDA's driver.
    pub cuda: Cuda,
}

/// A function of a network card: its place and its name.
#[derive(Debug, Clone)]
pub(super) struct Function {
    /// The folders below `sys/devices`, such as `pci0000:00/0000:00:00.0/0000:01:00.0`.
    pub(super) path: String,
    pub(super) device: String,
    pub(super) netdev: String,
    pub(super) port_name: String,
    pub(super) card: String,
    pub(super) mac: String,
    pub(super) mbits: u32,
    /// Lanes, and GT/s of a lane.
    pub(super) pcie: (u32, f64),
}

impl Recorded {
    /// The files that all hosts have.
    pub(super) fn new(name: &str, arch: &str, kernel: &str) -> Self {
        let mut own = Self::default();
        own.set("proc/sys/kernel/hostname", name);
        own.set("proc/sys/kernel/osrelease", kernel);
        own.set("proc/sys/kernel/arch", arch);
        own.set(
            "proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 ro quiet",
        );
        own.set(
            "proc/self/smaps",
            "Size: 4 kB\nKernelPageSize:        4 kB\n",
        );
        own.set("proc/self/status", "CapEff:\t0000000000000000\n");
        own.set(
            "proc/self/limits",
            "Limit Soft Hard Units\nMax open files 1048576 1048576 files\nMax locked memory \
             unlimited unlimited bytes\n",
        );
        own.set("proc/sys/net/core/rmem_max", "212992");
        own.set("proc/sys/net/core/wmem_max", "212992");
        own.network.netdevs.push(Netdev {
            running: true,
            loopback: true,
            ..netdev("lo", 1, None)
        });
        own.address("lo", "127.0.0.1", 8);
        own
    }

    /// Writes a file.
    pub fn set(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), format!("{text}\n"));
    }

    /// Removes a file, or all files of a folder.
    pub fn remove(&mut self, path: &str) {
        let inside = |at: &String| at == path || at.starts_with(&format!("{path}/"));
        self.files.retain(|at, _| !inside(at));
        self.links.retain(|at, _| !inside(at));
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.links.insert(path.to_owned(), target.to_owned());
    }

    /// A network interface.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn netdev(&mut self, name: &str) -> &mut Netdev {
        let mut all = self.network.netdevs.iter_mut();
        all.find(|netdev| netdev.name == name).unwrap()
    }

    /// Adds an address to an interface, and the route to its subnet.
    ///
    /// # Panics
    /// The text is no address, or the interface does not exist.
    pub fn address(&mut self, name: &str, ip: &str, prefix: u8) {
        let ip: IpAddr = ip.parse().unwrap();
        self.netdev(name).addresses.push(Address {
            ip,
            prefix,
            label: None,
        });
        if ip.is_ipv4() && !ip.is_loopback() {
            self.network.routes.push(Route {
                destination: Some(network(ip, prefix)),
                prefix,
                gateway: None,
                netdev: name.to_owned(),
            });
        }
    }

    /// Adds a neighbour that has answered.
    ///
    /// # Panics
    /// The text is no address.
    pub fn neighbour(&mut self, name: &str, ip: &str, mac: &str) {
        self.network.neighbours.push(Neighbour {
            ip: ip.parse().unwrap(),
            netdev: name.to_owned(),
            mac: Some(mac.to_owned()),
            state: NeighbourState::Known,
        });
    }

    /// A PCI function below its bridge.
    pub(super) fn function(&mut self, path: &str, class: &str, vendor: &str, pcie: (u32, f64)) {
        let address = path.rsplit('/').next().unwrap();
        let at = format!("sys/devices/{path}");
        self.link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/{path}"),
        );
        self.set(&format!("{at}/class"), class);
        self.set(&format!("{at}/vendor"), vendor);
        self.set(&format!("{at}/device"), "0x1021");
        self.set(&format!("{at}/numa_node"), "0");
        let (width, speed) = pcie;
        for kind in ["current", "max"] {
            self.set(&format!("{at}/{kind}_link_width"), &width.to_string());
            let speed = format!("{speed:.1} GT/s PCIe");
            self.set(&format!("{at}/{kind}_link_speed"), &speed);
        }
    }

    /// An Ethernet function without a cable.
    pub(super) fn ethernet(&mut self, function: &Function) {
        let index = self.network.netdevs.len() as u32 + 1;
        let up = "../".repeat(3);
        self.function(&function.path, "0x020000", "0x15b3", function.pcie);
        self.network.netdevs.push(Netdev {
            port_name: Some(function.port_name.clone()),
            ..netdev(&function.netdev, index, Some(&function.mac))
        });
        let class = format!("sys/class/net/{}", function.netdev);
        self.link(
            &format!("{class}/device"),
            &format!("{up}devices/{}", function.path),
        );
        let device = format!("sys/class/infiniband/{}", function.device);
        self.link(
            &format!("{device}/device"),
            &format!("{up}devices/{}", function.path),
        );
        self.set(&format!("{device}/fw_ver"), "28.45.4028");
        self.set(&format!("{device}/sys_image_guid"), &function.card);
        let port = format!("{device}/ports/1");
        self.set(&format!("{port}/state"), "1: DOWN");
        self.set(&format!("{port}/rate"), "40 Gb/sec (4X QDR)");
        self.set(&format!("{port}/link_layer"), "Ethernet");
        for counter in ["symbol_error", "port_rcv_errors"] {
            self.set(&format!("{port}/counters/{counter}"), "0");
        }
        for counter in ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err"] {
            self.set(&format!("{port}/hw_counters/{counter}"), "0");
        }
        self.gids(function);
    }

    /// Plugs a cable into a function, and gives an address to its interface.
    pub(super) fn cable(&mut self, function: &Function, ip: &str) {
        let netdev = self.netdev(&function.netdev);
        netdev.running = true;
        netdev.mtu = 9000;
        let class = format!("sys/class/net/{}", function.netdev);
        self.set(&format!("{class}/speed"), &function.mbits.to_string());
        self.address(&function.netdev, ip, 24);
        let port = format!("sys/class/infiniband/{}/ports/1", function.device);
        self.set(&format!("{port}/state"), "4: ACTIVE");
        let gbits = function.mbits / 1000;
        self.set(&format!("{port}/rate"), &format!("{gbits} Gb/sec (4X HDR)"));
        self.gids(function);
    }

    /// The GID table of a function's port: for each address an entry for either version of `RoCE`.
    fn gids(&mut self, function: &Function) {
        let port = format!("sys/class/infiniband/{}/ports/1", function.device);
        let own = self.netdev(&function.netdev).addresses.clone();
        let link_local = format!("fe80::{}", function.mac.replace(':', "").split_off(8));
        let link_local: IpAddr = link_local.parse().unwrap();
        let addresses = std::iter::once(link_local).chain(own.into_iter().map(|one| one.ip));
        for (place, ip) in addresses.enumerate() {
            let bits = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let words: Vec<_> = bits.segments().map(|word| format!("{word:04x}")).to_vec();
            for (kind, name) in ["IB/RoCE v1", "RoCE v2"].into_iter().enumerate() {
                let index = 2 * place + kind;
                self.set(&format!("{port}/gids/{index}"), &words.join(":"));
                self.set(&format!("{port}/gid_attrs/types/{index}"), name);
                self.set(&format!("{port}/gid_attrs/ndevs/{index}"), &function.netdev);
            }
        }
    }

    /// Installs NCCL, as NVIDIA's package does.
    pub fn nccl(&mut self, folder: &str, version: &str) {
        self.set(&format!("{folder}/libnccl.so.{version}"), "a library");
        self.link(
            &format!("{folder}/libnccl.so.2"),
            &format!("libnccl.so.{version}"),
        );
    }

    /// Blocks of `/proc/cpuinfo`, and the files of each processor's frequency.
    pub(super) fn processors(&mut self, kinds: &[(&str, &str, u32, std::ops::Range<u32>)]) {
        let mut text = String::new();
        for (key, name, mhz, cpus) in kinds {
            for cpu in cpus.clone() {
                let _ = writeln!(text, "processor\t: {cpu}\n{key}\t: {name}\n");
                let at = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
                self.set(&format!("{at}/cpuinfo_max_freq"), &(mhz * 1000).to_string());
                self.set(&format!("{at}/scaling_governor"), "performance");
                self.set(&format!("{at}/scaling_driver"), "cppc_cpufreq");
            }
        }
        self.set("proc/cpuinfo", &text);
    }

    /// Writes the tree.
    ///
    /// # Panics
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) {
        let file = |path: &str| {
            let at = folder.join(path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            at
        };
        for (path, text) in &self.files {
            fs::write(file(path), text).unwrap();
        }
        for (path, target) in &self.links {
            std::os::unix::fs::symlink(target, file(path)).unwrap();
        }
        let json = |value: String, name: &str| fs::write(folder.join(name), value).unwrap();
        json(
            serde_json::to_string(&self.network).unwrap(),
            "netlink.json",
        );
        json(serde_json::to_string(&self.cuda).unwrap(), "cuda.json");
    }

    /// The host read from the written tree. Equal trees are written and read once: the many tests
    /// of a process start from few trees.
    ///
    /// # Panics
    /// The tree cannot be written or read.
    pub fn host(&self) -> Host {
        static READ: Mutex<BTreeMap<String, Host>> = Mutex::new(BTreeMap::new());
        let tree = format!("{self:?}");
        if let Some(host) = READ.lock().get(&tree) {
            return host.clone();
        }
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        let mut host = recorded(folder.path()).unwrap();
        host.clock = 1_764_000_000.0;
        READ.lock().insert(tree, host.clone());
        host
    }
}

fn netdev(name: &str, index: u32, mac: Option<&str>) -> Netdev {
    Netdev {
        name: name.to_owned(),
        index,
        up: true,
        mtu: if mac.is_some() { 1500 } else { 65536 },
        mac: mac.map(str::to_owned),
        ..Netdev::default()
    }
}

impl Host {
    /// An RDMA device's first port.
    ///
    /// # Panics
    /// The device does not exist.
    pub fn port_mut(&mut self, device: &str) -> &mut RdmaPort {
        let mut all = self.rdma.iter_mut();
        &mut all.find(|one| one.name == device).unwrap().ports[0]
    }

    /// A network interface.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn netdev_mut(&mut self, name: &str) -> &mut Netdev {
        let mut all = self.network.netdevs.iter_mut();
        all.find(|netdev| netdev.name == name).unwrap()
    }

    /// The first NCCL library.
    ///
    /// # Panics
    /// There is none.
    pub fn nccl_mut(&mut self) -> &mut Library {
        &mut self.software.nccl[0]
    }
}
