//! What crossed which interface, and what has changed.

use spark_ccl_topology::Traffic as Counted;
use spark_ccl_topology::testing;

use super::*;

/// What the two hosts find where each rail has carried `rails` bytes, and each other interface `others`, after `alter` has
/// had its way with the second reading.
fn counted(rails: u64, others: u64, moved: f64, alter: impl Fn(&mut Host)) -> Vec<Finding> {
    let hosts = testing::hosts(&testing::pair());
    let cluster = Cluster::of(&hosts);
    let is_rail = |name: &str| {
        let mut ends = cluster.rails.iter().flat_map(|rail| &rail.ends);
        ends.any(|end| end.netdev == name)
    };
    let at = |rails: u64, others: u64| {
        let mut hosts = hosts.clone();
        for host in &mut hosts {
            for netdev in &mut host.network.netdevs {
                let sent = 5 + if is_rail(&netdev.name) { rails } else { others };
                let received = sent;
                netdev.traffic = Some(Counted { sent, received });
            }
            for port in host.rdma.iter_mut().flat_map(|one| &mut one.ports) {
                for name in ["port_xmit_data", "port_rcv_data"] {
                    port.counters.insert(name.to_owned(), 7);
                }
            }
        }
        hosts
    };
    let (before, mut after) = (at(0, 0), at(rails, others));
    after.iter_mut().for_each(alter);
    let pairs = before.iter().zip(&after).enumerate();
    let judged = pairs.map(|(index, (then, now))| {
        let traffic = traffic::between(&cluster, index, then, now);
        traffic::judge(&cluster, index, &traffic, moved)
    });
    judged.collect()
}

fn all_are(found: &[Finding], status: Status) {
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|one| one.status == status), "{found:#?}");
}

/// The first rail's interface, and its device.
fn first_rail() -> [String; 2] {
    let hosts = testing::hosts(&testing::pair());
    let end = &Cluster::of(&hosts).rails[0].ends[0];
    [end.netdev.clone(), end.device.clone()]
}

fn netdev<'a>(host: &'a mut Host, name: &str) -> &'a mut spark_ccl_topology::Netdev {
    let mut all = host.network.netdevs.iter_mut();
    all.find(|one| one.name == name).unwrap()
}

#[test]
fn rails_that_carry_too_little_fail() {
    let cases = [
        ([600_000_000, 100_000], Status::Ok),
        ([600_000_000, 300_000_000], Status::Warn),
        ([100_000, 1_000_000_000], Status::Fail),
        ([100_000, 100_000], Status::Fail),
    ];
    for ([rails, others], status) in cases {
        all_are(&counted(rails, others, 1e9, |_| ()), status);
    }
}

#[test]
fn nothing_moved_proves_nothing() {
    all_are(&counted(600_000_000, 0, 0.0, |_| ()), Status::Unknown);
}

#[test]
fn an_idle_rail_fails() {
    let [name, _] = first_rail();
    let rest = |host: &mut Host| {
        netdev(host, &name).traffic = Some(Counted {
            sent: 5,
            received: 5,
        });
    };
    let found = counted(1_200_000_000, 0, 1e9, rest);
    all_are(&found, Status::Fail);
    assert!(found[0].seen.contains("as good as nothing"), "{found:#?}");
}

#[test]
fn a_missing_counter_is_not_zero() {
    let [name, device] = first_rail();
    let lose = |host: &mut Host| {
        let ports = host.rdma.iter_mut().filter(|one| one.name == device);
        for port in ports.flat_map(|one| &mut one.ports) {
            port.counters.remove("port_xmit_data");
        }
    };
    let found = counted(100_000, 0, 1e9, lose);
    all_are(&found, Status::Unknown);
    assert!(found[0].seen.contains(&device), "{found:#?}");
    // What is counted elsewhere proves enough.
    all_are(&counted(600_000_000, 0, 1e9, lose), Status::Ok);
    let lose = |host: &mut Host| netdev(host, &name).traffic = None;
    all_are(&counted(600_000_000, 0, 1e9, lose), Status::Unknown);
    let none = |host: &mut Host| host.network.netdevs.clear();
    all_are(&counted(600_000_000, 0, 1e9, none), Status::Unknown);
    // A counter that began again is none.
    let restart = |host: &mut Host| netdev(host, &name).traffic.as_mut().unwrap().sent = 0;
    all_are(&counted(600_000_000, 0, 1e9, restart), Status::Unknown);
}

#[test]
fn a_bond_and_what_is_below_it_count_once() {
    let [name, _] = first_rail();
    let others = 300_000_000;
    let below = |host: &mut Host| {
        let mac = netdev(host, &name).mac.clone();
        let hosts = testing::hosts(&testing::pair());
        let rails = Cluster::of(&hosts).rails;
        let is_rail = |name: &str| {
            let mut ends = rails.iter().flat_map(|rail| &rail.ends);
            ends.any(|end| end.netdev == name)
        };
        for netdev in &mut host.network.netdevs {
            if !is_rail(&netdev.name) {
                netdev.mac.clone_from(&mac);
            }
        }
    };
    all_are(&counted(600_000_000, others, 1e9, below), Status::Ok);
}

#[test]
fn load_that_throttles_warns() {
    let judged = |rates: &[f64]| {
        let moments = rates.iter().enumerate().map(|(at, rate)| Moment {
            seconds: at as f64,
            bus_bw: *rate,
            bytes: 1,
        });
        load::steady(&["a", "b"], &moments.collect::<Vec<_>>()).map(|one| one.status)
    };
    assert_eq!(judged(&[]), None);
    assert_eq!(judged(&[12.0]), Some(Status::Ok));
    assert_eq!(judged(&[11.0, 12.0, 11.5, 12.0]), Some(Status::Ok));
    // Once, at the end, and from early on.
    assert_eq!(judged(&[12.0, 8.0, 12.0, 12.0]), Some(Status::Warn));
    assert_eq!(judged(&[12.0, 12.0, 12.0, 8.0]), Some(Status::Warn));
    let early = [12.0, 12.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0];
    assert_eq!(judged(&early), Some(Status::Warn));
}

#[test]
fn results_that_nobody_verified_are_not_right() {
    let judged = |results: &str| {
        let document = serde_json::from_str(&format!("{{\"results\":{results}}}"));
        load::judge("check.sweep", &["a"], &Ok(document.unwrap())).status
    };
    let row = |nwrong: &str| {
        format!(
            r#"[{{"size":8,"type":"float","redop":"sum","root":"-1",
            "out_of_place":{{"time":2.0,"bus_bw":2.0,"nwrong":{nwrong}}},"in_place":null}}]"#
        )
    };
    assert_eq!(judged(&row("0")), Status::Ok);
    for bad in ["[]", &row("1"), &row("\"N/A\""), &row("null")] {
        assert_eq!(judged(bad), Status::Fail, "{bad}");
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
