//! `netplan`: plans that are printed, and applied on hosts with a stand-in for the program
//! `netplan` alone.

mod trial;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::program::{Run, run, succeed};

/// Stands in for netplan, which Debian 12 does not install. As netplan does, it gives the
/// interfaces of its files what these say, lets a file in /run hide one of the same name, adds up
/// the addresses of several files, and leaves all other interfaces as they are. It fails as long as
/// /run/netplan-fails exists.
const STAND_IN: &str = r#"#!/bin/sh
[ "$1" = get ] && exit
[ "$1" = apply ] && [ ! -e /run/netplan-fails ] || exit 1
for name in $(ls /etc/netplan /run/netplan | grep '[.]yaml$' | sort -u); do
    file=/run/netplan/$name
    [ -e $file ] || file=/etc/netplan/$name
    awk '
        /^    [a-z0-9]*:/ { sub(":", "", $1); name = $1; print name, "link set " name " up" }
        /addresses:/ { gsub(/[][]/, "", $2); print name, "address add " $2 " dev " name }
        /mtu:/ { print name, "link set " name " mtu " $2 }
    ' $file
done > /run/netplan-wanted
for name in $(cut -d ' ' -f 1 /run/netplan-wanted | sort -u); do
    ip address flush dev $name scope global
    ip link set $name mtu 1500
done
cut -d ' ' -f 2- /run/netplan-wanted | ip -batch -
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
    stand_in(&cluster);
    Some(cluster)
}

fn stand_in(cluster: &Cluster) {
    let path = cluster.programs().join("netplan");
    fs::write(&path, STAND_IN).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
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
fn interfaces_that_are_not_there_are_named_beside_the_plan() {
    let run = succeed(
        "netplan --topology direct --nodes a,b --interfaces \
         nonesuch0+nonesuch1,nonesuch2+nonesuch3",
    );
    assert!(run.stdout.contains("nonesuch0:"), "{}", run.stdout);
    let line = "spark-perf: this host has no interface nonesuch0, nonesuch1 (it has: ";
    assert!(run.stderr.starts_with(line), "{}", run.stderr);
    assert!(run.stderr.contains("--interfaces"), "{}", run.stderr);
}

#[test]
fn the_plan_is_written_to_a_file_for_each_node() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("new/plan");
    let args = format!(
        "netplan --topology direct --nodes spark-a,me@spark-b --output {}",
        plan.display()
    );
    for _ in 0..2 {
        let run = succeed(&args);
        assert!(run.stdout.is_empty(), "{}", run.stdout);
    }
    for (name, address) in [
        ("spark-a", "192.168.101.1/24"),
        ("me@spark-b", "192.168.101.2/24"),
    ] {
        let path = plan.join(format!("{name}.yaml"));
        assert!(fs::read_to_string(&path).unwrap().contains(address));
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(fs::read_dir(plan).unwrap().count(), 2);
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
        (
            "--topology direct --nodes a,b --json --output x",
            "--output",
        ),
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
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    for host in [1, 2] {
        let expected = format!(
            "fast0 192.168.100.{host}/24 9000\nfast1 192.168.101.{host}/24 9000\n/etc/netplan:\n\
             90-spark-ccl.yaml\n\n/run/netplan:\n"
        );
        assert_eq!(state(&cluster, host), expected);
        let mode = cluster.on(host, "stat -c %a /etc/netplan/90-spark-ccl.yaml");
        assert_eq!(mode, "600\n");
    }
}

/// A user's profile may print on every start.
#[test]
fn a_shell_that_greets_does_not_matter() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    let path = cluster.programs().join("greeting");
    let perf = env!("CARGO_BIN_EXE_spark-perf");
    let greeting = format!("#!/bin/sh\necho Welcome!\necho '[ 7 updates ]'\nexec {perf} \"$@\"\n");
    fs::write(&path, greeting).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let program = path.to_str().unwrap();
    let run = apply(&cluster, &["--yes", "--remote-program", program]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
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
    let Some(cluster) = two_hosts(STRAIGHT) else {
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

/// Ctrl-C sends it.
#[test]
fn a_signal_has_all_nodes_roll_back_at_once() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    // The second host tries until it may go on.
    let path = cluster.programs().join("netplan");
    let waits = "#!/bin/sh\nwhile [ $1 = apply ] && [ -e /run/wait ]; do sleep 0.05; done\n";
    fs::write(&path, STAND_IN.replacen("#!/bin/sh\n", waits, 1)).unwrap();
    cluster.on(2, "touch /run/wait");
    let ssh = cluster.ssh();
    let more = ["--apply", "--yes", "--confirm-within", "600", "--ssh", &ssh];
    let child = cluster
        .command(&[&PLAN[..], &more].concat())
        .spawn()
        .unwrap();
    until_state(&cluster, 1, ON_TRIAL);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    cluster.on(2, "rm /run/wait");
    let run = Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("interrupted by signal 15"),
        "{}",
        run.stderr
    );
    for host in [1, 2] {
        assert_eq!(state(&cluster, host), UNTOUCHED);
    }
    cluster.until_clean();
}

fn until_state(cluster: &Cluster, host: usize, expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(cluster, host) != expected {
        assert!(Instant::now() < deadline, "{}", state(cluster, host));
        std::thread::sleep(Duration::from_millis(50));
    }
}

const STRAIGHT: [[&str; 2]; 2] = [["fast0", "fast0"], ["fast1", "fast1"]];
const ON_TRIAL: &str = "fast0 192.168.100.1/24 9000\nfast1 192.168.101.1/24 9000\n/etc/netplan:\n\n/run/netplan:\n90-spark-ccl.yaml\n";

#[test]
fn addresses_and_routes_of_before_come_back() {
    let Some(cluster) = two_hosts([["fast0", "fast1"], ["fast1", "fast0"]]) else {
        return;
    };
    let before = "ip link set fast0 mtu 2000; ip address add 10.7.0.1/24 dev fast0; \
                  ip route add 10.8.0.0/16 via 10.7.0.9 dev fast0; ip link set fast1 down";
    cluster.on(1, before);
    let show = "ip -4 -br address show dev fast0; ip -4 route show dev fast0; \
                cat /sys/class/net/fast0/mtu; ip -o link show fast1 | grep -c '[<,]UP'";
    let before = cluster.on(1, show);
    assert!(before.contains("10.8.0.0/16 via 10.7.0.9"), "{before}");
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert_eq!(cluster.on(1, show), before);
}

/// `netplan apply` applies all files, also one that was edited and not applied.
#[test]
fn interfaces_of_other_files_come_back_too() {
    let Some(cluster) = two_hosts([["fast0", "fast1"], ["fast1", "fast0"]]) else {
        return;
    };
    cluster.cable([(1, "lan"), (2, "lan")]);
    let by_hand = "ip address add 10.7.0.1/24 dev lan; ip link set lan mtu 1400; \
                   ip route add 10.8.0.0/16 via 10.7.0.9 dev lan; \
                   echo '    lan:\n      addresses: [10.6.0.1/24]' > /etc/netplan/01-lan.yaml";
    cluster.on(1, by_hand);
    let show =
        "ip -4 -br address show dev lan; ip -4 route show dev lan; cat /sys/class/net/lan/mtu";
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    let after = cluster.on(1, show);
    for words in ["10.7.0.1/24", "10.8.0.0/16 via 10.7.0.9", "\n1400\n"] {
        assert!(after.contains(words), "{after}");
    }
    cluster.until_clean();
}

#[test]
fn no_node_keeps_it_when_one_cannot() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    // This fails as on a full disk.
    cluster.on(2, "mount -t tmpfs -o ro none /etc/netplan");
    let run = apply(&cluster, &["--yes"]);
    assert!(
        run.code == Some(2) && run.stderr.contains("node2: "),
        "{}",
        run.stderr
    );
    for host in [1, 2] {
        assert_eq!(state(&cluster, host), UNTOUCHED);
    }
    cluster.until_clean();
}

#[test]
fn a_node_that_has_it_gives_it_back_when_another_cannot() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    // Nothing can be renamed to what is mounted.
    let file = "/etc/netplan/90-spark-ccl.yaml";
    cluster.on(
        2,
        &format!("echo '# older' > {file}; mount --bind {file} {file}"),
    );
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    let busy =
        "node2: spark-perf: netplan: /etc/netplan/90-spark-ccl.yaml: Device or resource busy";
    assert!(run.stderr.contains(busy), "{}", run.stderr);
    assert_eq!(state(&cluster, 1), UNTOUCHED);
    assert_eq!(cluster.on(2, &format!("cat {file}")), "# older\n");
    assert!(state(&cluster, 2).starts_with("fast0 1500\nfast1 1500\n"));
    cluster.until_clean();
}

#[test]
fn networks_in_use_are_left_alone() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    let refused = |args: &[&str], words: &str| {
        let run = apply(&cluster, args);
        let said = run.stderr;
        assert!(run.code == Some(2) && said.contains(words), "{said}");
        assert!(said.contains("nothing is changed"), "{said}");
        assert!(state(&cluster, 1).starts_with("fast0 1500\nfast1 1500\n"));
    };
    refused(
        &["--base", "10.88.0.0", "--yes"],
        "cable is in 10.88.0.0/24 already",
    );
    cluster.on(1, "ip route add 192.168.0.0/16 via 10.88.0.99");
    refused(&["--yes"], "node1: 192.168.0.0/16 is reached by cable");
    cluster.on(1, "ip route del 192.168.0.0/16");
    cluster.on(
        1,
        "echo '    fast1: {dhcp4: true}' > /etc/netplan/01-lan.yaml",
    );
    refused(
        &["--yes"],
        "node1: /etc/netplan/01-lan.yaml configures fast1",
    );
    cluster.on(1, "rm /etc/netplan/01-lan.yaml");
    cluster.on(1, "ip -6 route add default dev fast1");
    refused(&["--yes"], "node1: fast1 has the default route");
    cluster.on(1, "ip -6 route del default dev fast1");
    for (kind, other) in [("bridge", "br0"), ("macvlan", "mac0")] {
        let join = match kind {
            "bridge" => "ip link add br0 type bridge; ip link set fast1 master br0",
            _ => "ip link add link fast1 name mac0 type macvlan",
        };
        cluster.on(1, join);
        refused(&["--yes"], &format!("node1: fast1 is a part of {other}: "));
        cluster.on(1, &format!("ip link del {other}"));
    }
    let ssh = cluster.ssh();
    let mut args = PLAN.to_vec();
    args[6] = "cable+fast1";
    args.extend(["--apply", "--yes", "--ssh", &ssh]);
    let run: Run = cluster.command(&args).output().unwrap().into();
    let words = "node1: ssh comes in by cable (10.88.0.1)";
    assert!(
        run.code == Some(2) && run.stderr.contains(words),
        "{}",
        run.stderr
    );
}

#[test]
fn a_neighbour_that_is_not_reached_is_named_with_the_cause() {
    let Some(cluster) = Cluster::with_idle(2, 1) else {
        return;
    };
    cluster.cable([(1, "fast0"), (2, "fast0")]);
    cluster.cable([(1, "fast1"), (3, "end1")]);
    cluster.cable([(2, "fast1"), (3, "end2")]);
    stand_in(&cluster);
    // Packets of the first arrive, and are answered on the cable alone, as with a firewall.
    cluster.on(2, "ip route add blackhole 192.168.100.1");
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(2));
    for words in [
        "fast0: the cable reaches node2 (fast0, 192.168.100.2), but its TCP port 22",
        "fast1 does not reach node2 (fast1, 192.168.101.2): is the cable between",
    ] {
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
}

#[test]
fn a_switch_with_a_smaller_mtu_is_found() {
    let Some(cluster) = Cluster::with_idle(2, 1) else {
        return;
    };
    for host in [1, 2] {
        for fast in ["fast0", "fast1"] {
            let port = format!("{fast}-{host}");
            cluster.cable([(host, fast), (3, &port)]);
        }
    }
    let switch = |fast: &str, mtu: u16| {
        cluster.on(
            3,
            &format!(
                "ip link add {fast} type bridge; ip link set {fast} up; \
             for host in 1 2; do ip link set {fast}-$host mtu {mtu} master {fast}; done"
            ),
        )
    };
    switch("fast0", 9000);
    switch("fast1", 1500);
    stand_in(&cluster);
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    let words = "fast1: packets of 9000 bytes do not reach node2";
    assert!(run.stderr.contains(words), "{}", run.stderr);
    assert!(!run.stderr.contains("fast0: "), "{}", run.stderr);
    cluster.on(
        3,
        "for host in 1 2; do ip link set fast1-$host mtu 9000; done",
    );
    let run = apply(&cluster, &["--yes"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
}
