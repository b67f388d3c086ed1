//! Reads a host: this machine, or one that was recorded.
//!
//! A recorded host is a folder. It has the files of `/sys`, `/proc`, `/etc` and `/usr` that are read here, under the
//! same paths. What is in no file is in `netlink.json` (a [`Network`]) and `cuda.json` (a [`Cuda`]).

mod cpu;
mod cuda;
mod disk;
mod gpu;
mod netlink;
mod pci;
mod rdma;
mod software;
mod system;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::de::DeserializeOwned;
use spark_ccl_config::Env;

pub(crate) use netlink::netdevs;
use netlink::network;
#[cfg(any(test, fuzzing))]
pub(crate) use netlink::{Listed, messages, read_any};
pub(crate) use tree::Tree;

use crate::model::{Cuda, Network, Traffic};
use crate::{Error, FORMAT, Host};

/// This machine, as this process sees it. Opens libcuda, but makes no context on a GPU.
///
/// # Errors
/// The kernel does not answer over netlink, or an interface has a name that is not safe in a command. What is not there at all, such as RDMA, is no error.
pub fn live(env: &Env) -> Result<Host, Error> {
    let tree = Tree::new(Path::new("/"));
    let places = software::Places::of(env);
    let mut host = host(&tree, network()?, cuda::probe(), &places);
    host.disks = disk::disks();
    host.checked()
}

/// The host that was recorded in a folder.
///
/// # Errors
/// The folder is none, or `netlink.json` or `cuda.json` is not what it should be.
pub fn recorded(folder: &Path) -> Result<Host, Error> {
    for missing in ["proc", "sys", "netlink.json"] {
        if !folder.join(missing).exists() {
            let path = folder.to_owned();
            return Err(Error::NoTree { path, missing });
        }
    }
    let network: Network = beside(folder, "netlink.json")?;
    let cuda: Cuda = beside(folder, "cuda.json")?;
    let tree = Tree::new(folder);
    host(&tree, network, cuda, &software::Places::default()).checked()
}

fn host(tree: &Tree, mut network: Network, cuda: Cuda, places: &software::Places) -> Host {
    for netdev in &mut network.netdevs {
        let folder = format!("sys/class/net/{}", netdev.name);
        netdev.speed = speed(tree, &netdev.name);
        netdev.pci = tree.pci_address(&format!("{folder}/device"));
        let ignore = |of: &str| {
            let file = format!("proc/sys/net/ipv4/conf/{of}/arp_ignore");
            tree.number::<u8>(&file)
        };
        let count = |name: &str| tree.number(&format!("{folder}/statistics/{name}"));
        netdev.traffic = count("tx_bytes")
            .zip(count("rx_bytes"))
            .map(|(sent, received)| Traffic { sent, received });
        netdev.arp_ignore = ignore("all").max(ignore(&netdev.name));
    }
    let prefixes: BTreeMap<_, _> = network
        .netdevs
        .iter()
        .flat_map(|netdev| netdev.addresses.iter().map(|one| (one.ip, one.prefix)))
        .collect();
    let cuda_problem = cuda.problem;
    Host {
        format: FORMAT,
        name: tree
            .text("proc/sys/kernel/hostname")
            .unwrap_or_else(|| "localhost".to_owned()),
        clock: UNIX_EPOCH
            .elapsed()
            .map_or(0.0, |since| since.as_secs_f64()),
        system: system::system(tree),
        memory: system::memory(tree),
        disks: Vec::new(),
        cpus: cpu::classes(tree),
        numa: cpu::nodes(tree),
        pci: pci::functions(tree),
        gpus: gpu::gpus(tree, &cuda.devices),
        rdma: rdma::devices(tree, &prefixes),
        limits: system::limits(tree),
        software: software::software(tree, places, cuda.version, cuda_problem),
        network,
    }
}

/// The speed of an interface in Mbit/s. Virtual interfaces report nothing or -1.
pub(crate) fn speed(tree: &Tree, netdev: &str) -> Option<u32> {
    let speed: i64 = tree.number(&format!("sys/class/net/{netdev}/speed"))?;
    u32::try_from(speed)
        .ok()
        .filter(|speed| *speed > 0 && *speed < u32::MAX)
}

/// What a file beside a recorded tree says; the default if there is none.
fn beside<T: DeserializeOwned + Default>(folder: &Path, name: &str) -> Result<T, Error> {
    let path: PathBuf = folder.join(name);
    if !path.exists() {
        return Ok(T::default());
    }
    let wrong = |reason: String| Error::File {
        path: path.clone(),
        reason,
    };
    let text = Tree::new(folder).file(name);
    let text = text.ok_or_else(|| wrong("no file of text, or a very long one".to_owned()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}
