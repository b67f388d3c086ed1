//! The steps of a trial on a node, one by one.

use super::*;

/// The command line of an agent's step on the first host. It prints what the agent says, and its
/// exit code.
fn agent(cluster: &Cluster, step: &str) -> String {
    let plan = run(&[&PLAN[..], &["--json"]].concat().join(" ")).stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let perf = env!("CARGO_BIN_EXE_spark-perf");
    let path = cluster.programs();
    let script = format!(
        "echo '{}' | PATH={}:$PATH {perf} netplan-agent {step} 2>&1; echo $?",
        plan["nodes"][0],
        path.display()
    );
    cluster.on(1, &script)
}

/// The new addresses may cut the connection by which they were set.
#[test]
fn a_node_rolls_back_by_itself() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    assert_eq!(agent(&cluster, "try --trial one --within 1"), "0\n");
    // The time may be over by now, or not.
    until_state(&cluster, 1, UNTOUCHED);
    cluster.until_clean();
    let endless = format!("try --trial two --within {}", u64::MAX);
    let refused = agent(&cluster, &endless);
    assert!(refused.ends_with("\n6\n"), "{refused}");
    let late = agent(&cluster, "keep --trial one");
    assert!(
        late.contains("rolled back") && late.ends_with("\n2\n"),
        "{late}"
    );
}

/// Another node may have failed to commit after this one.
#[test]
fn a_committed_trial_is_taken_back() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    cluster.on(1, "echo '# older' > /etc/netplan/90-spark-ccl.yaml");
    for step in ["try", "keep", "commit"] {
        assert_eq!(agent(&cluster, &format!("{step} --trial one")), "0\n");
    }
    cluster.until_clean();
    let lasting = "cat /etc/netplan/90-spark-ccl.yaml";
    assert!(cluster.on(1, lasting).contains("192.168.100.1/24"));
    assert_eq!(agent(&cluster, "undo --trial other"), "0\n");
    assert!(cluster.on(1, lasting).contains("192.168.100.1/24"));
    assert_eq!(agent(&cluster, "undo --trial one"), "0\n");
    assert_eq!(cluster.on(1, lasting), "# older\n");
    assert!(state(&cluster, 1).starts_with("fast0 1500\nfast1 1500\n"));
}

#[test]
fn rolling_back_is_tried_until_it_succeeds() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    assert_eq!(agent(&cluster, "try --trial one --within 60"), "0\n");
    let rename = |from: &str, to: &str| {
        cluster.on(
            1,
            &format!("ip link set {from} down; ip link set {from} name {to}; ip link set {to} up"),
        )
    };
    rename("fast1", "gone");
    let failed = agent(&cluster, "undo --trial one");
    assert!(failed.contains("no interface fast1"), "{failed}");
    // The guard goes on, and neither keeps it nor lets it be kept.
    let late = agent(&cluster, "keep --trial one");
    assert!(late.contains("rolled back"), "{late}");
    cluster.on(
        1,
        "until grep -q 'no interface' /run/spark-ccl-netplan/log; do sleep 0.1; done",
    );
    rename("gone", "fast1");
    cluster.until_clean();
    assert_eq!(state(&cluster, 1), UNTOUCHED);
}

/// Any of its files may have an error.
#[test]
fn a_netplan_that_always_fails_keeps_no_trial() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    cluster.on(1, "touch /run/netplan-fails");
    let failed = agent(&cluster, "try --trial one --within 60");
    assert!(failed.contains("netplan apply"), "{failed}");
    cluster.until_clean();
    assert_eq!(state(&cluster, 1), UNTOUCHED);
    cluster.on(1, "rm /run/netplan-fails");
    assert_eq!(agent(&cluster, "try --trial two --within 60"), "0\n");
    cluster.on(1, "touch /run/netplan-fails");
    let undone = agent(&cluster, "undo --trial two");
    let words = "the interfaces are what they were, but netplan";
    assert!(
        undone.contains(words) && undone.ends_with("\n2\n"),
        "{undone}"
    );
    cluster.until_clean();
    assert_eq!(state(&cluster, 1), UNTOUCHED);
    // Hides a netplan that this machine may have.
    let broken = cluster.programs().join("netplan");
    fs::write(&broken, "#!/bin/sh\nexit 127\n").unwrap();
    let look = agent(&cluster, "look --trial three");
    assert!(look.contains("netplan does not work here"), "{look}");
}

#[test]
fn a_trial_is_ended_by_its_own_guard_alone() {
    let Some(cluster) = two_hosts(STRAIGHT) else {
        return;
    };
    assert_eq!(agent(&cluster, "try --trial one --within 60"), "0\n");
    let second = agent(&cluster, "try --trial two --within 60");
    assert!(second.contains("undo --trial one"), "{second}");
    assert_eq!(state(&cluster, 1), ON_TRIAL);
    assert_eq!(agent(&cluster, "undo --trial one"), "0\n");
    assert_eq!(agent(&cluster, "try --trial two --within 60"), "0\n");
    // The guard of the first, whose time is over.
    assert_eq!(agent(&cluster, "guard --trial one --within 0"), "0\n");
    assert_eq!(state(&cluster, 1), ON_TRIAL);
    assert_eq!(agent(&cluster, "undo --trial two"), "0\n");
    cluster.until_clean();
}
