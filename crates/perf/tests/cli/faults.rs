//! The faults that set-ups have, planted one by one: each is named, with what to do.
//!
//! Most are planted in recorded trees of Sparks, the others in hosts with an ssh server. Elsewhere
//! are tested: blocked ports (`firewall`), cables and routes of namespaces (`survey`, `netplan`,
//! `in_order`), a slow rail (`probe`), and a host that vanishes from a running job (`launch`).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use spark_ccl_topology::testing::{self, Recorded};
use spark_ccl_topology::{NeighbourState, Route};

use crate::cluster::Cluster;
use crate::program::{Run, run};

/// The twin of the first function, and its device.
const NETDEV: &str = "enP2p1s0f0np0";
const DEVICE: &str = "roceP2p1s0f0";

/// A fault: its name; how it is planted in a pair of Sparks; the finding that names it; a part of
/// what is to be done.
type Fault = (
    &'static str,
    fn(&mut [Recorded]),
    &'static str,
    &'static str,
);

const FAULTS: [Fault; 20] = [
    (
        "MTU on one end",
        |hosts| hosts[1].netdev(NETDEV).mtu = 1500,
        "pair.mtu",
        "sudo ip link set enP2p1s0f0np0 mtu 9000",
    ),
    (
        "address missing",
        |hosts| readdress(&mut hosts[1], None),
        "net.address",
        "sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0",
    ),
    (
        "wrong subnet",
        |hosts| readdress(&mut hosts[1], Some([10, 0, 9, 2])),
        "net.subnet",
        "sudo ip addr add 10.0.1.2/24 dev enP2p1s0f0np0",
    ),
    (
        "address given twice",
        |hosts| readdress(&mut hosts[1], Some([10, 0, 1, 1])),
        "net.duplicate",
        "10.0.1.1",
    ),
    (
        "cable in the wrong cage",
        cross,
        "cable.crossed",
        "p1 of spark-2",
    ),
    (
        "twin down",
        |hosts| switch_off(&mut hosts[1]),
        "nic.link",
        "sudo ip link set enP2p1s0f0np0 up",
    ),
    (
        "neighbour silent",
        silence,
        "pair.reach",
        "ping -c 3 -I enp1s0f0np0 10.0.0.2",
    ),
    (
        "route past the cable",
        |hosts| detour(&mut hosts[1]),
        "pair.route",
        "ip route get 10.0.1.1",
    ),
    (
        "no route",
        |hosts| unroute(&mut hosts[1]),
        "pair.route",
        "sudo ip route add 10.0.1.0/24 dev enP2p1s0f0np0 src 10.0.1.2",
    ),
    (
        "little locked memory",
        |hosts| {
            limit(
                &mut hosts[1],
                "Max locked memory 65536 65536 bytes\nMax open files 1048576 1048576 files",
            );
        },
        "limits.memlock",
        "/etc/security/limits.d",
    ),
    (
        "few files",
        |hosts| {
            limit(
                &mut hosts[1],
                "Max locked memory unlimited unlimited bytes\nMax open files 256 256 files",
            );
        },
        "limits.files",
        "ulimit -n",
    ),
    (
        "NCCL that hangs",
        |hosts| reinstall(&mut hosts[1], "2.28.9"),
        "nccl.version",
        "dpkg -S",
    ),
    (
        "NCCL differs",
        |hosts| reinstall(&mut hosts[1], "2.31.0"),
        "cluster.nccl",
        "2.31.0",
    ),
    (
        "stray nccl.conf",
        |hosts| hosts[1].set("etc/nccl.conf", "NCCL_IB_GID_INDEX=3"),
        "nccl.conf",
        "/etc/nccl.conf",
    ),
    (
        "kernel that hands over",
        |hosts| hosts[1].set("proc/sys/kernel/osrelease", "7.0.0-1019-nvidia"),
        "host.kernel",
        "kho=off",
    ),
    (
        "driver differs",
        |hosts| hosts[1].set("sys/module/nvidia/version", "580.82.09"),
        "cluster.driver",
        "580.82.09",
    ),
    (
        "memory in use",
        |hosts| {
            hosts[1].set("proc/meminfo", "MemTotal: 125513216 kB\nMemAvailable: 1048576 kB\nCmaTotal: 65536 kB\nCmaFree: 60000 kB");
        },
        "host.memory",
        "ps -eo",
    ),
    (
        "slow governor",
        |hosts| {
            hosts[1].set(
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave",
            );
        },
        "host.governor",
        "performance",
    ),
    (
        "card in a narrow slot",
        |hosts| {
            hosts[1].set(
                "sys/devices/pci0002:00/0002:00:00.0/0002:01:00.0/current_link_width",
                "2",
            );
        },
        "nic.pcie",
        "fwupdmgr",
    ),
    (
        "lossy cable",
        |hosts| {
            hosts[1].set(
                "sys/class/infiniband/rocep1s0f0/ports/1/hw_counters/out_of_sequence",
                "7",
            );
        },
        "nic.errors",
        "rdma_bw",
    ),
];

/// Takes the address of the twin, or gives it another one, in the same subnet's size.
fn readdress(host: &mut Recorded, ip: Option<[u8; 4]>) {
    host.netdev(NETDEV).addresses.clear();
    host.network.routes.retain(|route| route.netdev != NETDEV);
    let port = format!("sys/class/infiniband/{DEVICE}/ports/1");
    let Some(ip) = ip else {
        // The entries of IPv4 are gone; those of the link-local address come first.
        for entry in [2, 3] {
            for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
                host.remove(&format!("{port}/{folder}/{entry}"));
            }
        }
        return;
    };
    let [a, b, c, d] = ip;
    host.address(NETDEV, &format!("{a}.{b}.{c}.{d}"), 24);
    for entry in [2, 3] {
        let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        host.set(&format!("{port}/gids/{entry}"), &gid);
    }
}

fn set_port(host: &mut Recorded, device: &str, state: &str) {
    host.set(
        &format!("sys/class/infiniband/{device}/ports/1/state"),
        state,
    );
}

fn switch_off(host: &mut Recorded) {
    set_port(host, DEVICE, "1: DOWN");
    let netdev = host.netdev(NETDEV);
    (netdev.up, netdev.running) = (false, false);
}

/// The second host's cable is in p1, and its addresses are those of p0.
fn cross(hosts: &mut [Recorded]) {
    for twin in ["", "P2"] {
        let [old, new] = [0, 1].map(|cage| {
            (
                format!("roce{twin}p1s0f{cage}"),
                format!("en{twin}p1s0f{cage}np{cage}"),
            )
        });
        set_port(&mut hosts[1], &old.0, "1: DOWN");
        hosts[1].netdev(&old.1).running = false;
        set_port(&mut hosts[1], &new.0, "4: ACTIVE");
        hosts[1].set(
            &format!("sys/class/infiniband/{}/ports/1/rate", new.0),
            "200 Gb/sec (4X HDR)",
        );
        let netdev = hosts[1].netdev(&new.1);
        (netdev.running, netdev.mtu) = (true, 9000);
        let mac = netdev.mac.clone();
        let mut heard = hosts[0].network.neighbours.iter_mut();
        heard.find(|one| one.netdev == old.1).unwrap().mac = mac;
    }
    hosts[1].network.neighbours.clear();
}

fn silence(hosts: &mut [Recorded]) {
    for neighbour in hosts
        .iter_mut()
        .flat_map(|host| &mut host.network.neighbours)
    {
        (neighbour.mac, neighbour.state) = (None, NeighbourState::Failed);
    }
}

fn detour(host: &mut Recorded) {
    host.network.routes.push(Route {
        destination: Some([10, 0, 1, 0].into()),
        prefix: 25,
        gateway: None,
        netdev: "enP7s7".to_owned(),
    });
}

fn unroute(host: &mut Recorded) {
    host.network.routes.retain(|route| route.netdev != NETDEV);
}

fn limit(host: &mut Recorded, lines: &str) {
    host.set(
        "proc/self/limits",
        &format!("Limit Soft Hard Units\n{lines}"),
    );
}

fn reinstall(host: &mut Recorded, version: &str) {
    let folder = "usr/lib/aarch64-linux-gnu";
    host.remove(folder);
    host.nccl(folder, version);
}

/// Doctor's findings of faults in recorded hosts, and its exit code.
fn wrong(hosts: &[Recorded]) -> (Option<i32>, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let trees: Vec<_> = (0..hosts.len())
        .map(|index| folder.path().join(index.to_string()))
        .collect();
    for (host, tree) in hosts.iter().zip(&trees) {
        host.write(tree);
    }
    let trees: Vec<_> = trees
        .iter()
        .map(|tree| tree.display().to_string())
        .collect();
    findings(&run(&format!(
        "doctor --json --quiet --from {}",
        trees.join(",")
    )))
}

fn findings(run: &Run) -> (Option<i32>, Vec<Value>) {
    let printed: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr));
    (run.code, printed["findings"].as_array().unwrap().clone())
}

/// A finding of this name has these words, and says what to do.
fn assert_found(fault: &str, found: &[Value], id: &str, words: &str) {
    let own = || found.iter().filter(|one| one["id"] == id);
    assert!(
        own().any(|one| one.to_string().contains(words)),
        "{fault}: {id}, {words}: {found:#?}"
    );
    for one in own() {
        let fix = &one["fix"];
        assert!(
            fix["command"].is_string() || fix["look"].is_string(),
            "{fault}: {one:#}"
        );
    }
}

#[test]
fn planted_faults_are_named_with_what_to_do() {
    for (fault, plant, id, words) in FAULTS {
        let mut hosts = testing::pair();
        plant(&mut hosts);
        let (code, found) = wrong(&hosts);
        assert_found(fault, &found, id, words);
        let fails = found.iter().any(|one| one["status"] == "fail");
        assert_eq!(code, Some(i32::from(fails)), "{fault}: {found:#?}");
    }
}

#[test]
fn hosts_in_order_have_no_warning() {
    for hosts in [testing::pair(), testing::ring(), testing::switch()] {
        assert_eq!(wrong(&hosts), (Some(0), Vec::new()));
    }
}

#[test]
fn faults_of_hosts_behind_ssh_are_named_with_what_to_do() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let ssh = cluster.ssh();
    let doctor = |hosts: &str, more: &[&str]| {
        let mut args = vec!["doctor", "--json", "--quiet", "--ssh", &ssh, "-H", hosts];
        args.extend(more);
        findings(&cluster.command(&args).output().unwrap().into()).1
    };
    for (fault, host, words) in [
        (
            "no ssh server",
            "refusing",
            "sudo systemctl enable --now ssh",
        ),
        ("key not accepted", "stranger", "ssh-copy-id stranger"),
        ("host off", "absent", "is the host on"),
        (
            "no such name",
            "nowhere.invalid",
            "try nowhere.invalid.local",
        ),
    ] {
        let found = doctor(&format!("node1,{host}"), &[]);
        assert_found(fault, &found, "host.ssh", words);
    }

    cluster.on(2, "echo NCCL_IB_GID_INDEX=3 > /etc/nccl.conf");
    cluster.on(
        2,
        "mount -t tmpfs -o size=64m none /dev/shm; head -c 60m /dev/zero > /dev/shm/left",
    );
    let found = doctor("node1,node2", &[]);
    assert_found(
        "stray nccl.conf",
        &found,
        "nccl.conf",
        "/etc/nccl.conf: NCCL_IB_GID_INDEX=3",
    );
    // What to look at depends on whether this machine is a container.
    assert_found(
        "disk full",
        &found,
        "host.disk",
        "/dev/shm: 4 MiB of 64 MiB",
    );

    // A host whose clock stands at 1970: the time is taken out of what it says of itself.
    let program = cluster.programs().join("late");
    let script = format!(
        "#!/bin/sh\n{} \"$@\" | sed 's/\"clock\": *[0-9.]*/\"clock\": 1.0/'\n",
        env!("CARGO_BIN_EXE_spark-perf")
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let program = program.display().to_string();
    let found = doctor("node1,node2", &["--remote-program", &program]);
    assert_found("clock off", &found, "cluster.clock", "timedatectl");
}
