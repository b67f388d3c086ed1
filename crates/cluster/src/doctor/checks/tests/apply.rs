//! Runs printed commands on the models of hosts, as the machines would.

use std::net::IpAddr;

use spark_ccl_topology::{Host, Limit, PortState, Route};

use super::{functions, give, wrong};
use crate::finding::{Finding, Status};

/// Runs all printed commands, on the hosts that they name, as often as there are some. Returns what
/// is still wrong. No command may touch an address that a host has.
#[track_caller]
pub(super) fn mend(hosts: &mut [Host]) -> Vec<Finding> {
    let before: Vec<_> = hosts.iter().map(addresses).collect();
    for _ in 0..3 {
        for one in wrong(hosts) {
            if let Some(fix) = one.fix.filter(|fix| fix.command.is_some()) {
                let place = fix.place.unwrap();
                let mut named = hosts.iter_mut().filter(|host| host.name == place);
                let host = named.next().unwrap();
                assert!(one.hosts.contains(&place));
                run(host, &fix.command.unwrap());
            }
        }
    }
    for (host, before) in hosts.iter().zip(before) {
        let after = addresses(host);
        assert!(
            before.iter().all(|one| after.contains(one)),
            "{before:?} {after:?}"
        );
    }
    let mut left = wrong(hosts);
    left.retain(|one| one.status > Status::Unknown);
    left
}

fn addresses(host: &Host) -> Vec<IpAddr> {
    let all = host.network.netdevs.iter().flat_map(|one| &one.addresses);
    all.map(|one| one.ip).collect()
}

/// Runs a command on the model of a host. One that is not known fails the test.
fn run(host: &mut Host, command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    match words.as_slice() {
        ["sudo", "ip", "link", "set", netdev, "mtu", mtu] => {
            host.netdev_mut(netdev).mtu = mtu.parse().unwrap();
        }
        ["sudo", "ip", "link", "set", netdev, "up"] => {
            let one = host.netdev_mut(netdev);
            (one.up, one.running) = (true, true);
            let device = device_of(netdev);
            host.port_mut(&device).state = PortState::Active;
        }
        ["sudo", "ip", "addr", "add", address, "dev", netdev] => {
            let (ip, prefix) = address.split_once('/').unwrap();
            let device = device_of(netdev);
            give(host, netdev, &device, (ip, prefix.parse().unwrap()));
        }
        [
            "sudo",
            "ip",
            "route",
            "add",
            subnet,
            "dev",
            netdev,
            "src",
            _,
        ] => {
            let (ip, prefix) = subnet.split_once('/').unwrap();
            host.network.routes.push(Route {
                destination: Some(ip.parse().unwrap()),
                prefix: prefix.parse().unwrap(),
                gateway: None,
                netdev: (*netdev).to_owned(),
            });
        }
        ["sudo", "sysctl", "-w", settings @ ..] => {
            for setting in settings {
                set(host, setting);
            }
        }
        ["echo", governor, "|", "sudo", "tee", file] if file.ends_with("scaling_governor") => {
            for class in &mut host.cpus {
                class.governor = Some((*governor).to_owned());
            }
        }
        [
            "printf",
            ..,
            "|",
            "sudo",
            "tee",
            "/etc/security/limits.d/95-spark-ccl-memlock.conf",
        ] if command.contains("'* - memlock unlimited\\n'") => {
            host.limits.memlock = Limit::Unlimited;
        }
        _ => panic!("nobody knows what this does: {command}"),
    }
}

fn set(host: &mut Host, setting: &str) {
    let (name, value) = setting.split_once('=').unwrap();
    let number: u64 = value.parse().unwrap();
    match name.split(['/', '.']).collect::<Vec<_>>().as_slice() {
        ["vm", "compaction_proactiveness"] => host.system.compaction = Some(number as u8),
        ["net", "core", "rmem_max"] => host.limits.receive_buffer = Some(number),
        ["net", "core", "wmem_max"] => host.limits.send_buffer = Some(number),
        ["net", "ipv4", "conf", netdev, "arp_ignore"] => {
            host.netdev_mut(netdev).arp_ignore = Some(number as u8);
        }
        ["net", "ipv4", "conf", _, "arp_announce"] => {}
        ["net", "ipv4", "conf", netdev, "rp_filter"] => {
            host.netdev_mut(netdev).rp_filter = Some(number as u8);
        }
        _ => panic!("nobody knows this setting: {setting}"),
    }
}

/// The RDMA device of a Spark's interface.
fn device_of(netdev: &str) -> String {
    let mut all = [0, 1].into_iter().flat_map(functions);
    all.find(|(_, name)| name == netdev).unwrap().0
}
