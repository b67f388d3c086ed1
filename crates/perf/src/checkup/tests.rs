//! What crossed which interface, and what has changed.

use spark_ccl_topology::Traffic as Counted;
use spark_ccl_topology::testing;

use super::*;

/// Two hosts before and after; the last byte counters are of the rails and of the others.
fn counted(rails: u64, others: u64) -> Vec<Finding> {
    let before = testing::hosts(&testing::pair());
    let mut before = before;
    let mut after = before.clone();
    let cluster = Cluster::of(&after.clone()).rails.clone();
    let names: Vec<_> = cluster
        .iter()
        .map(|rail| rail.ends[0].netdev.clone())
        .collect();
    for (old, new) in before.iter_mut().zip(&mut after) {
        for (old, new) in old.network.netdevs.iter_mut().zip(&mut new.network.netdevs) {
            let sent = if names.contains(&new.name) {
                rails
            } else {
                others
            };
            old.traffic = Some(Counted {
                sent: 5,
                received: 5,
            });
            new.traffic = Some(Counted {
                sent: 5 + sent,
                received: 5 + sent,
            });
        }
    }
    let traffic = traffic::between(&Cluster::of(&before), &after);
    traffic::judge(&traffic, 1e9)
}

#[test]
fn bytes_on_the_wrong_interface_fail() {
    let cases = [
        ([600_000_000, 100_000], Status::Ok),
        ([600_000_000, 300_000_000], Status::Fail),
        ([100_000, 1_000_000_000], Status::Fail),
        ([100_000, 100_000], Status::Fail),
    ];
    for ([rails, others], status) in cases {
        let found = counted(rails, others);
        assert_eq!(found.len(), 2);
        assert!(
            found.iter().all(|one| one.status == status),
            "{rails} {others}: {found:#?}"
        );
    }
}

#[test]
fn names_cannot_end_an_element_of_the_page() {
    let hosts = testing::hosts(&testing::pair());
    let report = Report {
        format: FORMAT,
        spark_ccl: "1",
        time: "<b>".to_owned(),
        findings: vec![Finding::ok("a.b", &["x<script>"], "fine | \"well\"")],
        probed: None,
        sweep: None,
        load: Vec::new(),
        traffic: Vec::new(),
        changes: Vec::new(),
        hosts: &hosts,
    };
    let page = html::page(&report).unwrap();
    assert!(!page.contains("<b>") && !page.contains("<script>"));
    assert!(markdown::text(&report).contains("fine \\| "));
    // A report is read back, and nothing has changed.
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &report).unwrap();
    let older = Older::read(&folder.path().join("check.json")).unwrap();
    assert_eq!(changes::since(&older, &report), []);
}
