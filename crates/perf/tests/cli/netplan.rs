//! `netplan`: plans that are printed, and applied on hosts with a stand-in for the program `netplan` alone.

use crate::cluster::Cluster;
use crate::program::{Run, run, succeed};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// Stands in for netplan, which Debian 12 does not install: gives two interfaces what the file says, or nothing.
const STAND_IN: &str = r#"#!/bin/sh
[ "$1" = apply ] || exit 1
for name in fast0 fast1; do
    ip address flush dev $name scope global
    ip link set $name mtu 1500
done
for file in /run/netplan/90-spark-ccl.yaml /etc/netplan/90-spark-ccl.yaml; do
    [ -e $file ] || continue
    awk '
        /^    [a-z0-9]*:/ { sub(":", "", $1); name = $1 }
        /addresses:/ { gsub(/[][]/, "", $2); print "address add " $2 " dev " name }
        /mtu:/ { print "link set " name " mtu " $2 }
    ' $file | ip -batch -
    exit
done
"#;

const PLAN: [&str; 7] = [
    "netplan",
    "--topology",
    "direct",
    "--nodes",
    "node1,node2",
    "--interfaces",
    "fast0+fast1",
];

/// Two hosts with two cables between them, and the stand-in.
fn two_hosts(cables: [[&str; 2]; 2]) -> Option<Cluster> {
    let cluster = Cluster::new(2)?;
    for [one, other] in cables {
        cluster.cable([(1, one), (2, other)]);
    }
    let path = cluster.programs().join("netplan");
    fs::write(&path, STAND_IN).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    Some(cluster)
}

fn apply(cluster: &Cluster, more: &[&str]) -> Run {
    let ssh = cluster.ssh();
    let args = [&PLAN[..], &["--apply", "--ssh", &ssh], more].concat();
    cluster.command(&args).output().unwrap().into()
}

/// The IPv4 addresses and MTUs of the fast interfaces of a host, and where files are.
fn state(cluster: &Cluster, host: usize) -> String {
    let addresses = "ip -4 -br address show dev $name | awk '{ printf $3 }'";
    let mtu = "cat /sys/class/net/$name/mtu";
    let script = format!(
        "for name in fast0 fast1; do echo $name $({addresses}) $({mtu}); done; ls /run/netplan /etc/netplan"
    );
    cluster.on(host, &script)
}

#[test]
fn the_plan_of_two_is_printed() {
    let run = succeed("netplan --topology direct --nodes spark-a,spark-b");
    let expected = "\
# On spark-b: /etc/netplan/90-spark-ccl.yaml, for root only (mode 600); then: sudo netplan try
# spark-b: made by spark-perf netplan
network:
  version: 2
  ethernets:
    enp1s0f0np0: # to spark-a enp1s0f0np0
      addresses: [192.168.100.2/24]
      mtu: 9000
      dhcp4: false
      dhcp6: false
      accept-ra: false
      optional: true
    enP2p1s0f0np0: # to spark-a enP2p1s0f0np0
      addresses: [192.168.101.2/24]
      mtu: 9000
      dhcp4: false
      dhcp6: false
      accept-ra: false
      optional: true
";
    let (first, second) = run.stdout.split_once("---\n").unwrap();
    assert_eq!(second, expected);
    assert!(first.contains("addresses: [192.168.100.1/24]"), "{first}");
    let run = succeed("netplan --topology ring --nodes a,b,c --json");
    let plan: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(plan["nodes"][2]["interfaces"].as_array().unwrap().len(), 4);
}

#[test]
fn wrong_plans_are_refused() {
    for (args, word) in [
        ("--topology direct --nodes a,b,c", "3 nodes"),
        ("--topology star --nodes a,b", "star"),
        ("--topology direct --nodes a,-b", "no host"),
        ("--topology direct --nodes a,b --mtu 100", "100"),
        ("--topology direct --nodes a,b --base 1.2.3.4", "1.2.3.4"),
        ("--topology direct --nodes a,b --yes", "--apply"),
    ] {
        let run = run(&format!("netplan {args}"));
        assert!(
            run.code == Some(6) && run.stderr.contains(word),
            "{args}: {}",
            run.stderr
        );
    }
}

#[test]
fn an_applied_plan_is_in_effect_and_lasts() {
    let Some(cluster) = two_hosts([["fast0", "fast0"], ["fast1", "fast1"]]) else {
        return;
    };
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    for host in [1, 2] {
        let expected = format!(
            "fast0 192.168.100.{host}/24 9000\nfast1 192.168.101.{host}/24 9000\n/etc/netplan:\n90-spark-ccl.yaml\n\n/run/netplan:\n"
        );
        assert_eq!(state(&cluster, host), expected);
        let mode = cluster.on(host, "stat -c %a /etc/netplan/90-spark-ccl.yaml");
        assert_eq!(mode, "600\n");
    }
}

const UNTOUCHED: &str = "fast0 1500\nfast1 1500\n/etc/netplan:\n\n/run/netplan:\n";

#[test]
fn crossed_cables_are_named_and_rolled_back() {
    let Some(cluster) = two_hosts([["fast0", "fast1"], ["fast1", "fast0"]]) else {
        return;
    };
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    let words = "node1: the cable of fast0 ends at fast1 of node2, not at fast0 of node2";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    for host in [1, 2] {
        assert_eq!(state(&cluster, host), UNTOUCHED);
    }
}

#[test]
fn what_nobody_confirms_is_rolled_back() {
    let Some(cluster) = two_hosts([["fast0", "fast0"], ["fast1", "fast1"]]) else {
        return;
    };
    let run = apply(&cluster, &[]);
    assert!(
        run.code == Some(2) && run.stderr.contains("--yes"),
        "{}",
        run.stderr
    );
    assert_eq!(state(&cluster, 1), UNTOUCHED);
}

/// As where the new addresses cut the connection by which they were set.
#[test]
fn a_node_rolls_back_by_itself() {
    let Some(cluster) = two_hosts([["fast0", "fast0"], ["fast1", "fast1"]]) else {
        return;
    };
    let plan = run(&[&PLAN[..], &["--json"]].concat().join(" ")).stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let perf = env!("CARGO_BIN_EXE_spark-perf");
    let path = cluster.programs();
    let agent = |step: &str| {
        format!(
            "echo '{}' | PATH={}:$PATH {perf} netplan-agent {step} 2>&1; echo $?",
            plan["nodes"][0],
            path.display()
        )
    };
    assert_eq!(cluster.on(1, &agent("try --within 1")), "0\n");
    // The time may be over by now, or not.
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(&cluster, 1) != UNTOUCHED {
        assert!(Instant::now() < deadline, "{}", state(&cluster, 1));
        std::thread::sleep(Duration::from_millis(50));
    }
    let late = cluster.on(1, &agent("keep"));
    assert!(
        late.contains("rolled back") && late.ends_with("\n2\n"),
        "{late}"
    );
    cluster.until_clean();
}
