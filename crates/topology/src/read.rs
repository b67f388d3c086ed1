//! Reads a host: this machine or a recorded one.
//!
//! A recorded host is a folder. It has the files of `/sys`, `/proc`, `/etc`, `/usr` and `/boot`
//! that are read here, under the same paths. Facts that are in no file are in `netlink.json` (a
//! [`Network`]) and `cuda.json` (a [`Cuda`]).

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

use netlink::network;
#[cfg(any(test, fuzzing))]
pub(crate) use netlink::{Listed, messages, read_any};
pub(crate) use netlink::{netdevs, routes};
use serde::de::DeserializeOwned;
use spark_ccl_config::Env;
pub(crate) use tree::Tree;

use crate::model::{Cuda, Network, Traffic};
use crate::{Error, FORMAT, Host};

/// This machine, as this process sees it. Opens libcuda, but makes no context on a GPU.
///
/// # Errors
/// The kernel does not answer over netlink, or an RDMA device or this host has a name that is
/// unsafe in a command. Missing parts, such as RDMA, are no error.
pub fn live(env: &Env) -> Result<Host, Error> {
    let tree = Tree::new(Path::new("/"));
    let places = software::Places::of(env);
    let mut host = host(&tree, network()?, cuda::probe(), &places);
    host.disks = disk::disks();
    host.leave_out();
    host.checked()
}

/// The host recorded in a folder.
///
/// # Errors
/// The folder does not exist, or `netlink.json` or `cuda.json` is invalid.
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
        // The kernel uses the greater of both.
        let setting = |setting: &str| {
            let of =
                |of: &str| tree.number::<u8>(&format!("proc/sys/net/ipv4/conf/{of}/{setting}"));
            of("all").max(of(&netdev.name))
        };
        let count = |name: &str| tree.number(&format!("{folder}/statistics/{name}"));
        netdev.traffic = count("tx_bytes")
            .zip(count("rx_bytes"))
            .map(|(sent, received)| Traffic { sent, received });
        let (arp_ignore, rp_filter) = (setting("arp_ignore"), setting("rp_filter"));
        (netdev.arp_ignore, netdev.rp_filter) = (arp_ignore, rp_filter);
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
        left_out: Vec::new(),
    }
}

/// The speed of an interface in Mbit/s. Virtual interfaces report nothing or -1.
pub(crate) fn speed(tree: &Tree, netdev: &str) -> Option<u32> {
    let speed: i64 = tree.number(&format!("sys/class/net/{netdev}/speed"))?;
    u32::try_from(speed)
        .ok()
        .filter(|speed| *speed > 0 && *speed < u32::MAX)
}

/// Reads a file beside a recorded tree; the default if there is none.
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use spark_ccl_testing::{Need, has};

    use super::*;
    use crate::testing;

    #[test]
    fn an_interface_with_an_unsafe_name_is_left_out() {
        if !has(Need::Namespaces) {
            return;
        }
        // A namespace belongs to a thread and the programs that it starts.
        let read = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            for line in [
                "link add wg+home type veth peer name veth1",
                "addr add 10.7.0.1/24 dev wg+home",
                "link set wg+home up",
                "link set veth1 up",
            ] {
                let mut ip = Command::new("ip");
                assert!(ip.args(line.split(' ')).status().unwrap().success());
            }
            live(&Env::default())
        });
        let host = read.join().unwrap().unwrap();
        assert!(host.netdev("veth1").is_some() && host.netdev("wg+home").is_none());
        assert_eq!(host.left_out, ["wg+home"]);
    }

    #[test]
    fn what_is_no_file_among_addresses_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        testing::spark("spark-1", 1).write(folder.path());
        let port = "sys/class/infiniband/rocep1s0f0/ports/1/gids";
        let gids = folder.path().join(port);
        std::fs::remove_file(gids.join("0")).unwrap();
        nix::unistd::mkfifo(&gids.join("0"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (place, target) in [("1", "/dev/zero"), ("9", "/etc/hostname")] {
            let _ = std::fs::remove_file(gids.join(place));
            std::os::unix::fs::symlink(target, gids.join(place)).unwrap();
        }
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(Box::new(recorded(folder.path()).unwrap())));
        let mut host = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        let gids = &host.port_mut("rocep1s0f0").gids;
        let indices: Vec<_> = gids.iter().map(|gid| gid.index).collect();
        assert_eq!(indices, [2, 3]);
    }
}
