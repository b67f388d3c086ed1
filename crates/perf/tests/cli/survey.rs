//! The commands about hosts: `topo`, `doctor`, `env`.

use std::path::Path;

use spark_ccl_testing::{Need, has};
use spark_ccl_topology::{Host, Limit, testing};

use crate::cluster::Cluster;
use crate::program::{Run, command, run, succeed};

/// Runs a command on hosts that were written to files.
fn on(hosts: &[Host], args: &str) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = hosts
        .iter()
        .map(|host| {
            let file = folder.path().join(format!("{}.json", host.name));
            std::fs::write(&file, host.to_json()).unwrap();
            file.display().to_string()
        })
        .collect();
    run(&format!("{args} --from {}", files.join(",")))
}

fn pair() -> Vec<Host> {
    testing::hosts(&testing::pair())
}

#[test]
fn this_host_is_described() {
    let run = succeed("topo --json");
    let host = Host::from_json(&run.stdout).unwrap();
    let lo = host
        .network
        .netdevs
        .iter()
        .find(|one| one.loopback)
        .unwrap();
    assert!(lo.mtu > 0 && host.memory.total > 0 && !host.cpus.is_empty());
    let text = succeed("topo").stdout;
    assert!(text.starts_with(&format!("# {}: ", host.name)), "{text}");
    let shown = command(&["env", "--json"]).output().unwrap();
    let values: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(values["format"], 1);
    assert!(values["settings"].is_array());
}

#[test]
fn a_pair_in_order_has_no_finding() {
    let run = on(&pair(), "doctor --quiet");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(
        run.stdout.starts_with("# nothing to do: ")
            && run
                .stdout
                .ends_with("firewalls and policies of routes were not checked\n"),
        "{}",
        run.stdout
    );
    assert_eq!(run.stdout.lines().count(), 1, "{}", run.stdout);
}

#[test]
fn a_fault_has_an_exit_code_and_its_fix() {
    let mut hosts = pair();
    hosts[0].limits.memlock = Limit::Most(65536);
    let run = on(&hosts, "doctor --json --quiet");
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(found["format"], 1);
    assert_eq!(found["summary"]["fail"], 1);
    assert_eq!(found["summary"]["warn"], 0);
    let found = found["findings"].as_array().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["id"], "limits.memlock");
    assert_eq!(found[0]["status"], "fail");
    assert_eq!(found[0]["fix"]["where"], "spark-1");
    let command = found[0]["fix"]["command"].as_str().unwrap();
    assert!(command.contains("limits.d"), "{command}");
    // A fault that only slows down is no failure.
    hosts[0].limits.memlock = Limit::Most(4 << 30);
    assert_eq!(on(&hosts, "doctor").code, Some(0));
}

#[test]
fn a_ring_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ring.svg");
    let args = format!("topo --svg {}", file.display());
    let run = on(&testing::hosts(&testing::ring()), &args);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(
        run.stdout.contains("# 3 hosts: a ring without a switch\n"),
        "{}",
        run.stdout
    );
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
}

#[test]
fn a_shell_takes_the_environment() {
    let run = on(&pair(), "env");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let script = format!("{}\nprintf %s \"$NCCL_IB_HCA\"", run.stdout);
    let shell = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(shell.stdout).unwrap(),
        "=roceP2p1s0f0,rocep1s0f0"
    );
    let options = on(&pair(), "env --docker").stdout;
    assert!(
        options.starts_with("--network=host --device=/dev/infiniband "),
        "{options}"
    );
    let refused = on(&pair(), "env --mode dmabuf");
    assert_eq!(refused.code, Some(6), "{}", refused.stderr);
}

#[test]
fn what_is_no_host_is_refused() {
    let code = |from: &Path| run(&format!("doctor --from {}", from.display())).code;
    assert_eq!(code(Path::new("/nowhere/at/all.json")), Some(2));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"format\": 99}").unwrap();
    assert_eq!(code(file.path()), Some(2));
    // A folder that is no recorded host.
    let folder = tempfile::tempdir().unwrap();
    let run = run(&format!("topo --from {}", folder.path().display()));
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("is no recorded host"), "{}", run.stderr);
}

#[test]
fn a_host_that_is_given_twice_is_said_to_be() {
    let mut hosts = pair();
    hosts[1] = hosts[0].clone();
    hosts[1].name = "copy".to_owned();
    let run = on(&hosts, "doctor --quiet");
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let expected = "FAIL     copy  host.twice: spark-1 and copy are one machine; ";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    assert_eq!(run.stdout.lines().count(), 2, "{}", run.stdout);
}

#[test]
fn a_name_that_a_shell_would_run_is_refused() {
    let mut hosts = pair();
    hosts[0].netdev_mut("enp1s0f0np0").name = "x;touch /tmp/y".to_owned();
    for command in ["topo", "doctor", "env", "env --docker"] {
        let run = on(&hosts, command);
        assert_eq!(run.code, Some(2), "{command}: {}", run.stdout);
        assert!(
            run.stdout.is_empty() && run.stderr.contains("only letters"),
            "{}",
            run.stderr
        );
    }
}

/// Two namespaces as hosts, with two cables between them.
struct Namespaces([String; 2]);

impl Namespaces {
    fn new() -> Self {
        let name = |side: &str| format!("survey-{}-{side}", std::process::id());
        let own = Self([name("a"), name("b")]);
        for name in &own.0 {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        for cable in 0..2 {
            let [a, b] = &own.0;
            ip(&format!(
                "link add c{cable} netns {a} type veth peer name c{cable} netns {b}"
            ));
            for (side, name) in own.0.iter().enumerate() {
                ip(&format!("-n {name} link set c{cable} mtu 9000 up"));
                ip(&format!(
                    "-n {name} addr add 10.77.{cable}.{}/24 dev c{cable}",
                    side + 1
                ));
            }
        }
        own
    }

    /// Runs a command of spark-perf in a namespace.
    fn run(&self, side: usize, args: &[&str]) -> Run {
        let program = env!("CARGO_BIN_EXE_spark-perf");
        let mut command = std::process::Command::new("ip");
        command
            .args(["netns", "exec", &self.0[side], program])
            .args(args);
        command.output().unwrap().into()
    }

    /// Doctor's findings of faults in both hosts, without those of the machine that the test runs
    /// on.
    fn wrong(&self) -> Vec<(String, String)> {
        let hosts = [0, 1].map(|side| {
            let mut host = Host::from_json(&self.run(side, &["topo", "--json"]).stdout).unwrap();
            ["a", "b"][side].clone_into(&mut host.name);
            host
        });
        let printed = on(&hosts, "doctor --json").stdout;
        let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
        let found = printed["findings"].as_array().unwrap().clone();
        let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
        let about_net = found
            .iter()
            .filter(|one| one["status"] != "ok")
            .filter(|one| {
                let id = text(one, "id");
                ["net.", "pair.", "cable.", "cluster."]
                    .iter()
                    .any(|area| id.starts_with(area))
            });
        about_net
            .map(|one| {
                let command = one["fix"]["command"].as_str();
                (text(one, "id"), command.unwrap_or_default().to_owned())
            })
            .collect()
    }

    /// Lets the kernels hear from each other over both cables.
    fn talk(&self) {
        let send = "for cable in 0 1; do echo > /dev/udp/10.77.$cable.2/9; done";
        let known = || {
            let mut command = std::process::Command::new("ip");
            command.args(["netns", "exec", &self.0[0], "bash", "-c", send]);
            assert!(command.status().unwrap().success());
            let list = std::process::Command::new("ip")
                .args(["-n", &self.0[0], "-4", "neigh", "show"])
                .output();
            let list = String::from_utf8(list.unwrap().stdout).unwrap();
            list.matches("lladdr").count() == 2
        };
        let heard = (0..50).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            known()
        });
        assert!(heard, "no answer over the cables");
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = std::process::Command::new("ip")
                .args(["netns", "del", name])
                .status();
        }
    }
}

fn ip(args: &str) {
    let status = std::process::Command::new("ip")
        .args(args.split(' '))
        .status()
        .unwrap();
    assert!(status.success(), "ip {args}");
}

#[test]
fn faults_of_live_hosts_are_found() {
    if !has(Need::Namespaces) {
        return;
    }
    let hosts = Namespaces::new();
    let none: Vec<(String, String)> = Vec::new();
    assert_eq!(hosts.wrong(), none);
    let b = &hosts.0[1];

    ip(&format!("-n {b} link set c1 mtu 1500"));
    // Nothing shows yet that the cable is there.
    assert_eq!(hosts.wrong(), none);
    hosts.talk();
    // Interfaces without RDMA may be meant for something else, or lead to a switch: no command is
    // printed.
    let look = ("pair.mtu".to_owned(), String::new());
    assert_eq!(hosts.wrong(), [look]);
    ip(&format!("-n {b} link set c1 mtu 9000"));

    ip(&format!("-n {b} addr del 10.77.1.2/24 dev c1"));
    let look = ("net.subnet".to_owned(), String::new());
    assert_eq!(hosts.wrong(), std::slice::from_ref(&look));
    ip(&format!("-n {b} addr add 10.78.1.2/24 dev c1"));
    assert_eq!(hosts.wrong(), [look.clone(), look]);
}

#[test]
fn hosts_are_asked_over_ssh() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let ssh = cluster.ssh();
    let doctor = |hosts: &str| -> (Option<i32>, Vec<serde_json::Value>) {
        let args = ["doctor", "--json", "--ssh", &ssh, "-H", hosts];
        let run = Run::from(cluster.command(&args).output().unwrap());
        let printed: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        (run.code, printed["findings"].as_array().unwrap().clone())
    };
    let (_, found) = doctor("node1,node2");
    let ids: Vec<_> = found.iter().filter_map(|one| one["id"].as_str()).collect();
    assert!(
        ids.contains(&"pair.rails") && !ids.contains(&"host.ssh"),
        "{ids:?}"
    );
    // Both clocks are this machine's, which may be too slow to answer to show it.
    let mut clocks = found.iter().filter(|one| one["id"] == "cluster.clock");
    let is_fine = |one: &serde_json::Value| ["ok", "unknown"].iter().any(|it| one["status"] == *it);
    assert!(
        clocks.clone().count() == 2 && clocks.all(is_fine),
        "{found:#?}"
    );

    let (code, found) = doctor("node1,nobody@node2");
    assert_eq!(code, Some(1));
    let ssh = found.iter().find(|one| one["id"] == "host.ssh").unwrap();
    assert_eq!(
        (&ssh["status"], &ssh["hosts"][0]),
        (&"fail".into(), &"nobody@node2".into())
    );
}
