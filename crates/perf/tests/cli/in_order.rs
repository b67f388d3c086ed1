//! Live hosts, asked over ssh: where all is in order, no line about the network warns or fails. A
//! route that is taken away does.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::program::Run;

/// Findings about the machine on which the test runs, which may be slow to answer.
const OF_THE_MACHINE: [&str; 12] = [
    "cluster.clock",
    "gpu.driver",
    "gpu.memory",
    "host.disk",
    "host.governor",
    "host.kernel",
    "host.memory",
    "limits.buffers",
    "limits.files",
    "limits.memlock",
    "nccl.conf",
    "nccl.version",
];

/// All findings of doctor about hosts.
fn examined(cluster: &Cluster, hosts: &str) -> Vec<Value> {
    let ssh = cluster.ssh();
    let args = ["doctor", "--json", "--ssh", &ssh, "-H", hosts];
    let run = Run::from(cluster.command(&args).output().unwrap());
    let printed: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{}", run.stderr));
    printed["findings"].as_array().unwrap().clone()
}

/// The findings that are not ok, without those about the machine.
fn wrong(found: &[Value]) -> Vec<&Value> {
    let of_the_machine = |one: &&Value| OF_THE_MACHINE.iter().any(|id| one["id"] == *id);
    let not_ok = found.iter().filter(|one| one["status"] != "ok");
    not_ok.filter(|one| !of_the_machine(one)).collect()
}

/// Nothing is wrong, and each pair of hosts has this number of rails.
fn assert_in_order(cluster: &Cluster, hosts: &str, shape: &str, pairs: usize, rails: usize) {
    // Once the hosts have heard from each other, more is checked.
    for _ in 0..2 {
        let found = examined(cluster, hosts);
        assert_eq!(wrong(&found), Vec::<&Value>::new());
        let seen = |id: &str| -> Vec<&str> {
            let own = found.iter().filter(|one| one["id"] == id);
            own.map(|one| one["seen"].as_str().unwrap()).collect()
        };
        assert!(
            seen("cluster.shape")[0].starts_with(shape),
            "{:?}",
            seen("cluster.shape")
        );
        let joined = seen("pair.rails");
        assert_eq!(joined.len(), pairs, "{joined:?}");
        for one in joined {
            assert_eq!(one.matches(" to ").count(), rails, "{one}");
        }
        // Each way.
        assert_eq!(
            seen("pair.port").len(),
            2 * pairs,
            "{:?}",
            seen("pair.port")
        );
    }
}

#[test]
fn a_ring_without_a_switch_is_in_order() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    cluster.rails_between(&[[1, 2], [2, 3], [1, 3]]);
    assert_in_order(
        &cluster,
        "node1,node2,node3",
        "a ring without a switch",
        3,
        2,
    );
}

#[test]
fn four_hosts_on_a_bridge_are_in_order() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    assert_in_order(&cluster, "node1,node2,node3,node4", "a switch", 6, 1);
}

#[test]
fn a_route_that_is_gone_is_named_and_its_fix_brings_it_back() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    for (way_out, status, words) in [
        ("", "fail", "10.91.0.1 is not reached"),
        (
            "ip route add default via 10.88.0.99",
            "warn",
            "10.91.0.1 is reached by way of 10.88.0.99",
        ),
    ] {
        cluster.on(
            2,
            &format!("ip route del 10.91.0.0/24 dev rail1; {way_out}"),
        );
        let found = examined(&cluster, "node1,node2");
        let missing: Vec<_> = found
            .iter()
            .filter(|one| one["id"] == "pair.route")
            .collect();
        let [missing] = missing.as_slice() else {
            panic!("{found:#?}");
        };
        assert_eq!(missing["status"], status, "{missing:#}");
        let seen = format!("rail1 has 10.91.0.2/24, and no route to that subnet; {words}");
        assert_eq!(missing["seen"], seen);
        let fix = missing["fix"]["command"].as_str().unwrap();
        assert_eq!(
            fix,
            "sudo ip route add 10.91.0.0/24 dev rail1 src 10.91.0.2"
        );
        // Nothing of the other rail.
        let of_ports = found
            .iter()
            .filter(|one| one["id"] == "pair.port" && one["status"] != "ok");
        for one in of_ports {
            assert!(
                one["seen"].as_str().unwrap().contains("10.91.0."),
                "{one:#}"
            );
        }
        cluster.on(2, &fix.replace("sudo ", ""));
        assert_eq!(
            wrong(&examined(&cluster, "node1,node2")),
            Vec::<&Value>::new()
        );
    }
}
