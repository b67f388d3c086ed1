//! Part 1: the hosts, and the rates of their rails.

use spark_ccl_topology::Netdev;
use spark_ccl_topology::cluster::RailEnd;
use spark_ccl_topology::rdma::Roce;

use super::bench::{Bench, NO_RDMA};
use super::{Check, rails};
use crate::finding::Status;

/// The MTU that fast rails have.
const LARGE: u32 = 9000;
/// An idle state that takes longer to leave than this, in microseconds, slows collectives.
const LONG_SLEEP: u32 = 50;
/// Prints the enabled idle states of a processor.
const IDLE: &str = "for state in /sys/devices/system/cpu/cpu0/cpuidle/state*; do \
    [ \"$(cat $state/disable)\" = 0 ] && echo \"$(cat $state/latency) $(cat $state/name) of $(uname -n)\"; done 2>/dev/null; exit 0";

pub(super) fn checks(bench: &Bench<'_>) -> Vec<Check> {
    let kernel = Check::new(
        "kernel",
        "none that hands memory over (kho), CmaFree at most CmaTotal",
    );
    let locked = Check::new("locked memory", "unlimited");
    let pcie = Check::new(
        "PCIe",
        "x4 at 32 GT/s for each function of a Spark: 252 Gbit/s for both",
    );
    vec![
        hosts(bench),
        bench.found(kernel, &["host.kernel"]),
        bench.found(locked, &["limits.memlock"]),
        mtu(bench),
        gids(bench),
        firmware(bench),
        bench.found(pcie, &["nic.pcie"]),
        clocks(bench),
        idle(bench),
        rails::latency(bench),
        rails::one_way(bench),
        rails::both_ways(bench),
    ]
}

fn hosts(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "hosts",
        "each answers over ssh without a password, and is one of its own",
    );
    let lost = ["host.ssh", "host.twice"];
    if bench.found.iter().any(|one| lost.contains(&one.id)) {
        return bench.found(check, &lost);
    }
    check.is(Status::Ok, bench.names())
}

fn mtu(bench: &Bench<'_>) -> Check {
    let check = Check::new("MTU", format!("{LARGE} at both ends of each rail"));
    let netdev = |end: &RailEnd| bench.cluster.hosts[end.host].netdev(&end.netdev);
    let mut seen = Vec::new();
    let mut status = Status::Ok;
    for rail in &bench.cluster.rails {
        let ends: Vec<&Netdev> = rail.ends.iter().filter_map(netdev).collect();
        let [a, b] = ends[..] else { continue };
        seen.push(format!("{} {}, {} {}", a.name, a.mtu, b.name, b.mtu));
        let own = match (a.mtu == b.mtu, a.mtu >= LARGE) {
            (true, true) => Status::Ok,
            (true, false) => Status::Warn,
            (false, _) => Status::Fail,
        };
        status = status.max(own);
    }
    if seen.is_empty() {
        return check.could_not("no rail joins these hosts");
    }
    check.is(status, seen.join("; "))
}

fn gids(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "GIDs",
        "each end of a rail has one of RoCEv2 with its IPv4 address",
    )
    .by("spark-perf gids");
    let ends: Vec<_> = bench.rdma_rails().flat_map(|rail| &rail.ends).collect();
    if ends.is_empty() {
        return check.could_not(NO_RDMA);
    }
    let is_right = |end: &&RailEnd| end.gid.roce == Roce::V2 && end.gid.ip().is_ipv4();
    let told: Vec<_> = ends
        .iter()
        .map(|end| {
            let host = &bench.cluster.hosts[end.host].name;
            format!(
                "{host} {}: index {}, {}, {:?}",
                end.device,
                end.gid.index,
                end.gid.ip(),
                end.gid.roce
            )
        })
        .collect();
    let status = if ends.iter().all(is_right) {
        Status::Ok
    } else {
        Status::Warn
    };
    check.is(status, told.join("; "))
}

fn firmware(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "firmware",
        "one version on all hosts; a version proves nothing more",
    );
    let devices = bench
        .cluster
        .hosts
        .iter()
        .flat_map(|host| host.rdma.iter().map(move |one| (host, one)));
    let told: Vec<_> = devices
        .filter_map(|(host, one)| Some((&host.name, &one.name, one.firmware.as_deref()?)))
        .filter(|(_, _, version)| !version.is_empty())
        .collect();
    let Some((_, _, first)) = told.first() else {
        return check.could_not("no RDMA device tells its firmware");
    };
    let is_one = told.iter().all(|(_, _, version)| version == first);
    let seen: Vec<_> = told
        .iter()
        .map(|(host, device, version)| format!("{host} {device} {version}"))
        .collect();
    check.is(
        if is_one { Status::Ok } else { Status::Warn },
        seen.join("; "),
    )
}

fn clocks(bench: &Bench<'_>) -> Check {
    let command = "nvidia-smi --query-gpu=clocks.sm,power.draw,clocks_event_reasons.active --format=csv, under load";
    let check = Check::new(
        "clocks of the GPU",
        "under load above 2000 MHz; a GPU that stays at 500 to 890 MHz needs its plug pulled",
    );
    let check = check.by(command);
    if bench.cluster.hosts.iter().all(|host| host.gpus.is_empty()) {
        return check.could_not("these hosts have no GPU");
    }
    check.could_not("spark-perf has no program that loads a GPU's arithmetic")
}

fn idle(bench: &Bench<'_>) -> Check {
    let expected = format!(
        "none that is on takes above {LONG_SLEEP} us to leave, or no rank that sleeps is measured"
    );
    let check = Check::new("states of idleness", expected)
        .by("grep . /sys/devices/system/cpu/cpu0/cpuidle/state*/*");
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let answer = match bench.script(IDLE, &[]) {
        Ok((answer, _)) => answer,
        Err(why) => return check.could_not(why),
    };
    let mut states: Vec<(u32, String)> = answer
        .lines()
        .iter()
        .filter_map(|line| {
            let (latency, name) = line.split_once(' ')?;
            Some((latency.parse().ok()?, name.to_owned()))
        })
        .collect();
    states.sort();
    let Some((longest, _)) = states.last() else {
        return check.could_not("these hosts tell of no states of idleness");
    };
    let status = if *longest > LONG_SLEEP {
        Status::Warn
    } else {
        Status::Ok
    };
    let told: Vec<_> = states
        .iter()
        .map(|(latency, name)| format!("{name} {latency} us"))
        .collect();
    check.is(status, told.join(", "))
}
