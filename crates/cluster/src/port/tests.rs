//! The attempts for a pair of hosts, and what their outcomes say.

use firewall::chains;
use spark_ccl_topology::testing;

use super::*;
use crate::finding::Status;

const RULES: &str = r#"{"nftables": [{"metainfo": {"json_schema_version": 1}},
    {"table": {"family": "inet", "name": "filter"}},
    {"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input", "policy": "drop"}},
    {"chain": {"family": "inet", "table": "filter", "name": "forward", "type": "filter", "hook": "forward"}},
    {"chain": {"family": "ip6", "table": "filter", "name": "INPUT", "type": "filter", "hook": "input"}},
    {"chain": {"family": "inet", "table": "$(x)", "name": "input", "type": "filter", "hook": "input"}},
    {"chain": {"family": "inet", "table": "filter", "name": "own"}}]}"#;

fn hello(firewall: Firewall) -> Hello {
    Hello {
        port: 4000,
        token: "t".to_owned(),
        firewall,
        ssh: None,
    }
}

/// The findings if the connections to the second host, which has this firewall, end so.
fn found(firewall: &Firewall, outcome: &Outcome) -> Vec<Finding> {
    found_between([&Firewall::Unknown, firewall], outcome)
}

fn found_between(firewalls: [&Firewall; 2], outcome: &Outcome) -> Vec<Finding> {
    let hosts = testing::hosts(&testing::pair());
    let cluster = Cluster::of(&hosts);
    let hellos = firewalls.map(|one| Some(hello(one.clone())));
    let all = attempts(&cluster, &hellos);
    assert_eq!(all.len(), 4, "two rails, both ways");
    let tried: Vec<_> = all
        .into_iter()
        .map(|(from, to, attempt)| Tried {
            from,
            to,
            attempt,
            outcome: if to == 1 {
                outcome.clone()
            } else {
                Outcome::Reached
            },
        })
        .collect();
    findings::of(&cluster, &hellos, &tried)
}

#[test]
fn both_ways_are_told_apart() {
    let all = found(&Firewall::Unknown, &Outcome::Reached);
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|one| one.status == Status::Ok));
    let all = found(&Firewall::Ufw, &Outcome::Refused);
    let fails: Vec<_> = all.iter().filter(|it| it.status == Status::Fail).collect();
    assert_eq!((all.len(), fails.len()), (3, 2));
    assert_eq!(fails[0].hosts, ["spark-1", "spark-2"]);
}

#[test]
fn each_outcome_has_its_words() {
    let cases = [
        (Outcome::TimedOut(5), "no answer for 5 s", "drops"),
        (Outcome::Refused, "refused", "rejects"),
        (Outcome::Stranger, "another program", "another host"),
        (
            Outcome::Failed("no way".to_owned()),
            "no way",
            "leads there",
        ),
    ];
    for (outcome, seen, why) in cases {
        let all = found(&Firewall::Unknown, &outcome);
        assert!(all[0].seen.contains(seen), "{}", all[0]);
        assert!(all[0].why.as_ref().unwrap().contains(why), "{}", all[0]);
    }
}

#[test]
fn the_command_is_that_of_the_firewall() {
    let rules = serde_json::from_str(RULES).unwrap();
    let cases = [
        (
            Firewall::Ufw,
            "sudo ufw prepend allow in on enp1s0f0np0 from ",
        ),
        (Firewall::Firewalld, "--zone=trusted --add-source="),
        (
            Firewall::Chains(chains(&rules)),
            "sudo nft insert rule inet filter input iifname enp1s0f0np0 ip saddr ",
        ),
    ];
    for (firewall, command) in cases {
        let all = found(&firewall, &Outcome::TimedOut(5));
        let fix = all[0].fix.clone().unwrap();
        assert_eq!(fix.place.as_deref(), Some("spark-2"));
        let text = fix.command.unwrap();
        assert!(
            text.contains(command) && !text.contains("&& sudo nft"),
            "{text}"
        );
    }
    let all = found(&Firewall::Unknown, &Outcome::TimedOut(5));
    assert!(all[0].command().is_none(), "{}", all[0]);
}

#[test]
fn what_a_shell_would_run_is_in_no_command() {
    // As a host that is not to be trusted would say it.
    for name in ["$(x)", "a;b", "a b", "-f", "a\n"] {
        let said =
            format!(r#"{{"Chains":[{{"family":"inet","table":"filter","name":{name:?}}}]}}"#);
        let firewall: Firewall = serde_json::from_str(&said).unwrap();
        let all = found(&firewall, &Outcome::Refused);
        assert!(all[0].command().is_none(), "{}", all[0]);
    }
}

#[test]
fn the_host_that_connects_opens_nothing() {
    let all = found_between([&Firewall::Ufw, &Firewall::Unknown], &Outcome::TimedOut(5));
    assert!(all[0].command().is_none(), "{}", all[0]);
}

#[test]
fn a_host_that_does_not_tell_of_each_attempt_is_named() {
    let hosts = testing::hosts(&testing::pair());
    let cluster = Cluster::of(&hosts);
    let hellos = [
        Some(hello(Firewall::Unknown)),
        Some(hello(Firewall::Unknown)),
    ];
    let all = attempts(&cluster, &hellos);
    let own: Vec<Planned> = all.into_iter().filter(|one| one.0 == 1).collect();
    let said = |outcomes: &[Outcome]| Ok(serde_json::to_vec(outcomes).unwrap());
    let two = [Outcome::Reached, Outcome::Refused];
    assert_eq!(paired(own.clone(), said(&two)).unwrap().len(), 2);
    for bad in [
        Err("timed out".to_owned()),
        Ok(b"nonsense".to_vec()),
        said(&two[..1]),
    ] {
        let why = paired(own.clone(), bad).unwrap_err();
        let finding = findings::untried(&cluster, 1, why);
        assert_eq!(
            (finding.status, &finding.hosts[..]),
            (Status::Unknown, &["spark-2".to_owned()][..])
        );
    }
    assert!(
        paired(Vec::new(), Err("gone".to_owned()))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn link_local_addresses_are_not_tried() {
    let hosts = testing::hosts(&testing::pair());
    let mut cluster = Cluster::of(&hosts);
    let hellos = [
        Some(hello(Firewall::Unknown)),
        Some(hello(Firewall::Unknown)),
    ];
    cluster.rails[0].ends[1].gid.address = "fe80::1".parse().unwrap();
    assert_eq!(
        attempts(&cluster, &hellos).len(),
        2,
        "the other rail, both ways"
    );
}
