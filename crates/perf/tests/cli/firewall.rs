//! Firewalls between hosts: each is found, and the printed command opens it.

use serde_json::Value;
use spark_ccl_testing::{Need, has};

use crate::cluster::Cluster;
use crate::program::Run;

/// A chain for all arriving packets; ssh passes.
const CHAIN: &str = "nft flush ruleset; nft add table inet filter; \
    nft add chain inet filter input '{ type filter hook input priority 0; }'; nft add rule inet filter input";

/// Doctor's findings about the ports of two hosts, and its exit code.
fn ports(cluster: &Cluster) -> (Option<i32>, Vec<Value>) {
    let ssh = cluster.ssh();
    let args = ["doctor", "--json", "--ssh", &ssh, "-H", "node1,node2"];
    let run = Run::from(cluster.command(&args).output().unwrap());
    let printed: Value = serde_json::from_str(&run.stdout).unwrap();
    let found = printed["findings"].as_array().unwrap().iter();
    let ports = found.filter(|one| one["id"] == "pair.port").cloned();
    (run.code, ports.collect())
}

fn blocked(found: &[Value]) -> Vec<&Value> {
    found.iter().filter(|one| one["status"] != "ok").collect()
}

#[test]
fn a_firewall_is_found_and_opened() {
    if !has(Need::Nft) {
        return;
    }
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let (code, found) = ports(&cluster);
    assert_eq!(blocked(&found), Vec::<&Value>::new());
    assert_eq!((code, found.len()), (Some(0), 2), "{found:#?}");
    let faults = [
        ("iifname rail1 tcp dport != 22 drop", "no answer for", 2),
        (
            "iifname rail0 tcp dport != 22 reject with tcp reset",
            "refused",
            2,
        ),
        (
            "iifname rail1 reject with icmp type host-prohibited",
            "No route to host",
            2,
        ),
    ];
    for (rule, words, count) in faults {
        cluster.on(2, &format!("{CHAIN} {rule}"));
        let (code, found) = ports(&cluster);
        let blocked = blocked(&found);
        assert_eq!(
            (code, blocked.len()),
            (Some(1), count),
            "{rule}: {found:#?}"
        );
        assert!(
            blocked[0]["seen"].as_str().unwrap().contains(words),
            "{rule}: {found:#?}"
        );
        let fix = blocked[0]["fix"]["command"].as_str().unwrap();
        cluster.on(2, &fix.replace("sudo ", ""));
        let (code, found) = ports(&cluster);
        assert_eq!(code, Some(0), "{fix}: {found:#?}");
    }
    cluster.on(
        2,
        &format!(
            "{CHAIN} iifname rail0 drop; mkdir /etc/ufw; echo ENABLED=yes > /etc/ufw/ufw.conf"
        ),
    );
    let (_, found) = ports(&cluster);
    let fix = blocked(&found)[0]["fix"]["command"].as_str().unwrap();
    assert_eq!(fix, "sudo ufw prepend allow in on rail0 from 10.90.0.1");
}
