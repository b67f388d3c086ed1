//! `discover`: hosts that answer on the link, and one that announces itself.

use std::fs::Permissions;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, Host, address};
use crate::program::Run;

pub(crate) fn discover(cluster: &Cluster, more: &[&str]) -> Run {
    let args = [&["discover", "--seconds", "2"], more].concat();
    cluster.command(&args).output().unwrap().into()
}

#[test]
fn neighbours_without_configuration_are_found() {
    let Some(cluster) = Cluster::with_idle(1, 1) else {
        return;
    };
    let run = discover(&cluster, &["--json"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["notes"].as_array().unwrap().len(), 0, "{report}");
    let hosts = report["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2, "{report}");
    for number in [1, 2] {
        let link_local = cluster.on(
            number,
            "ip -6 -br address show cable | awk '{ sub(\"/.*\", \"\", $3); print $3 }'",
        );
        let expected = format!("{}%bridge", link_local.trim());
        let host = hosts
            .iter()
            .find(|host| host["addresses"][0] == expected.as_str());
        let host = host.unwrap_or_else(|| panic!("{expected}: {report}"));
        assert_eq!(host["ssh_key"].is_string(), number == 1, "{host}");
        assert_eq!(host["sources"][0], "neighbours");
    }
    let run = discover(&cluster, &[]);
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(lines[1], "localhost # this host");
    let servers = lines[2..].iter().filter(|line| line.starts_with("fe80::"));
    assert_eq!((lines.len(), servers.count()), (4, 1), "{lines:?}");
}

#[test]
fn a_neighbour_is_listed_by_the_ipv4_address_of_its_card() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    // Nobody listens; but this host then knows the other's card.
    cluster.on(1, "bash -c ': > /dev/tcp/10.88.0.100/9' 2>&1");
    let run = discover(&cluster, &[]);
    let line = run.stdout.lines().nth(2).unwrap_or_default();
    let known = line.starts_with("10.88.0.1 # 10.88.0.1, fe80::");
    let is_whole = known && line.ends_with("%bridge; by neighbours");
    assert!(is_whole, "{}\n{}", run.stdout, run.stderr);
}

#[test]
fn an_announced_server_is_found_by_its_name() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let _announcer = announce(&cluster, "spark-1", &[address(1)]);
    let run = discover(&cluster, &[]);
    let line = run.stdout.lines().find(|line| line.contains("mDNS"));
    // Nothing here resolves the name, so the address stands for it.
    let line = line.unwrap_or_else(|| panic!("{}\n{}", run.stdout, run.stderr));
    // Its neighbour's address is known to be its own by the server's key.
    let known = "10.88.0.1 # spark-1.local, 10.88.0.1, fe80::";
    let is_whole = line.starts_with(known) && line.ends_with("%bridge; by mDNS, neighbours");
    assert!(is_whole, "{line}");
}

#[test]
fn a_job_starts_on_what_is_found() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let _announcer = announce(&cluster, "spark-1", &[address(1)]);
    let run = cluster.launch(
        "--hosts discovered",
        &["sh", "-c", "echo $RANK/$WORLD_SIZE $MASTER_ADDR"],
    );
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let mut lines: Vec<_> = run.stdout.lines().collect();
    lines.sort_unstable();
    // The launcher's own host comes first, by the address that the other sees.
    assert_eq!(lines, ["[0] 0/2 10.88.0.100", "[1] 1/2 10.88.0.100"]);
}

#[test]
fn nobody_is_found_where_nobody_is() {
    let Some(cluster) = Cluster::new(0) else {
        return;
    };
    let run = discover(&cluster, &[]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(
        run.stderr.contains("is the cable plugged in"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_name_that_is_none_is_not_printed() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let _announcer = announce(&cluster, "x\u{1b}[2J\nroot@192.0.2.1 # ", &[address(1)]);
    let run = discover(&cluster, &[]);
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    // The host is there, by its address alone.
    let is_there = lines[2].starts_with("10.88.0.1 # 10.88.0.1, fe80::");
    assert!(
        is_there && lines[2].ends_with("by mDNS, neighbours"),
        "{lines:?}"
    );
}

#[test]
fn addresses_that_do_not_answer_are_not_asked_one_by_one() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let absent: Vec<Ipv4Addr> = (101..141).map(address).collect();
    let _announcer = announce(&cluster, "many", &absent);
    let mut child = cluster.command(&["discover", "--seconds", "2"]);
    let mut child = child.spawn().unwrap();
    // One by one, they take 80 s.
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let run = Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("many.local"), "{}", run.stdout);
}

#[test]
fn keys_go_only_where_the_user_wants_them() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let _announcer = announce(&cluster, "spark-1", &[address(1)]);
    // It stands for the program that asks for a password, and says how it was called.
    let stand_in = cluster.programs().join("ssh-copy-id");
    std::fs::write(&stand_in, "#!/bin/sh\necho called \"$@\" >&2\n").unwrap();
    std::fs::set_permissions(&stand_in, Permissions::from_mode(0o755)).unwrap();
    let copy = |answer: &str, more: &[&str]| {
        let args = [&["discover", "--seconds", "2", "--copy-keys"], more].concat();
        let path = std::env::var("PATH").unwrap();
        let mut command = cluster.command(&args);
        command.env("PATH", format!("{}:{path}", cluster.programs().display()));
        command.stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(answer.as_bytes())
            .unwrap();
        Run::from(child.wait_with_output().unwrap())
    };
    let of_server = cluster.on(
        1,
        "ssh-keyscan -t rsa,ecdsa,ed25519 10.88.0.1 | ssh-keygen -l -f -",
    );
    let fingerprint = of_server.split_whitespace().nth(1).unwrap();
    let called = "called -o HostKeyAlias=10.88.0.1 -- me@10.88.0.1\n";
    for (answer, more, code, is_asked, is_copied) in [
        ("y\n", &["--user", "me"][..], 0, true, true),
        ("n\n", &["--user", "me"], 0, true, false),
        ("", &["--user", "me"], 0, true, false),
        ("", &["--user", "me", "-H", "spark-1"], 0, false, true),
        ("", &["--user", "me", "-H", "10.88.0.9"], 2, false, false),
    ] {
        let run = copy(answer, more);
        assert_eq!(run.code, Some(code), "{more:?}: {}", run.stderr);
        assert_eq!(run.stderr.contains(fingerprint), is_asked, "{}", run.stderr);
        assert_eq!(run.stderr.contains(called), is_copied, "{}", run.stderr);
        assert_eq!(run.stderr.contains("called "), is_copied, "{}", run.stderr);
    }
}

/// Has the first host announce its ssh server, until the returned process is dropped.
pub(crate) fn announce(cluster: &Cluster, name: &str, addresses: &[Ipv4Addr]) -> Host {
    let packet = announcement(name, addresses);
    let file = cluster.programs().join("packet");
    std::fs::write(&file, packet).unwrap();
    let script = format!(
        "while :; do cat {} > /dev/udp/224.0.0.251/5353; sleep 0.2; done",
        file.display()
    );
    cluster.on(1, "ip route add 224.0.0.0/4 dev cable");
    cluster.start_on(1, "bash", &["-c", &script])
}

/// A response of multicast DNS, by the format of RFC 1035: an ssh server on this host, with these
/// addresses.
fn announcement(host: &str, addresses: &[Ipv4Addr]) -> Vec<u8> {
    let service = name(&["_ssh", "_tcp", "local"]);
    let instance = name(&[host, "_ssh", "_tcp", "local"]);
    let host = name(&[host, "local"]);
    let server = [&[0, 0, 0, 0, 0, 22][..], &host].concat();
    // A response with authority.
    let records = 3 + addresses.len() as u8;
    let header = [0, 0, 0x84, 0, 0, 0, 0, records, 0, 0, 0, 0];
    let addresses = addresses.iter().map(|one| record(&host, 1, &one.octets()));
    [
        header.to_vec(),
        record(&service, 12, &instance),
        record(&instance, 33, &server),
        record(&instance, 16, &[0]),
        addresses.collect::<Vec<_>>().concat(),
    ]
    .concat()
}

fn name(labels: &[&str]) -> Vec<u8> {
    let labels = labels
        .iter()
        .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
    labels.chain([0]).collect()
}

/// A record of the internet's class, good for two minutes.
fn record(name: &[u8], kind: u8, data: &[u8]) -> Vec<u8> {
    let fixed = [0, kind, 0, 1, 0, 0, 0, 120, 0, data.len() as u8];
    [name, &fixed, data].concat()
}
