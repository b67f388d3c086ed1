//! Traffic of interfaces, and changes between reports.

use spark_ccl_console::Failure;
use spark_ccl_topology::Traffic as Counted;
use spark_ccl_topology::testing;

use super::*;

/// The findings about two hosts if each rail has carried `rails` bytes, and each other interface
/// `others`. `alter` changes the second reading.
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
        // A small part of much is much.
        ([600_000_000_000, 1_900_000_000], Status::Warn),
        ([100_000, 1_000_000_000], Status::Fail),
        ([100_000, 100_000], Status::Fail),
    ];
    for ([rails, others], status) in cases {
        let moved = f64::max(1e9, 1.6 * rails as f64);
        all_are(&counted(rails, others, moved, |_| ()), status);
    }
}

#[test]
fn what_crossed_other_interfaces_is_told() {
    // 0.1 GB beside 100 GB is little, but not nothing.
    let found = counted(60_000_000_000, 150_000_000, 1e11, |_| ());
    all_are(&found, Status::Ok);
    assert!(found[0].seen.contains("150.0 MB"), "{found:#?}");
    assert!(!found[0].seen.contains("no other"), "{found:#?}");
}

#[test]
fn nothing_moved_proves_nothing() {
    all_are(&counted(600_000_000, 0, 0.0, |_| ()), Status::Unknown);
}

#[test]
fn an_idle_rail_fails() {
    let [name, device] = first_rail();
    let rest = |host: &mut Host| {
        netdev(host, &name).traffic = Some(Counted {
            sent: 5,
            received: 5,
        });
    };
    let found = counted(1_200_000_000, 0, 1e9, rest);
    all_are(&found, Status::Fail);
    let idle = format!("as good as nothing: sent by {device}, received by {device}");
    assert!(found[0].seen.contains(&idle), "{found:#?}");
}

/// The finding about the first of two hosts without RDMA, whose rails have each carried this both
/// ways.
fn found_over_tcp(carried: &[u64]) -> Finding {
    let both = carried.iter().map(|one| [*one, *one]);
    found_over_rails(&both.collect::<Vec<_>>())
}

/// Like [`found_over_tcp`], with what each rail has sent and received.
fn found_over_rails(carried: &[[u64; 2]]) -> Finding {
    let hosts = testing::hosts(&testing::pair());
    let mut cluster = Cluster::of(&hosts);
    let rail = cluster.rails[0].clone();
    let named = |number| {
        let mut rail = rail.clone();
        for end in &mut rail.ends {
            end.device = format!("net{number}");
            end.netdev.clone_from(&end.device);
        }
        rail
    };
    cluster.rails = (0..carried.len()).map(named).collect();
    let traffic = |(number, &[sent, received]): (usize, &[u64; 2])| traffic::Traffic {
        host: hosts[0].name.clone(),
        name: format!("net{number}"),
        rail: true,
        sent,
        received,
    };
    let traffic: Vec<_> = carried.iter().enumerate().map(traffic).collect();
    traffic::judge(&cluster, 0, &traffic, 1e9)
}

#[test]
fn more_rails_than_connections_are_told() {
    let found = found_over_tcp(&[600_000_000, 600_000_000, 5]);
    assert_eq!(found.status, Status::Warn, "{found:#?}");
    assert!(
        format!("{found:?}").contains("SPARK_CCL_SOCKETS=3"),
        "{found:#?}"
    );
    // The number of connections is not the cause: there are enough, or the data went elsewhere.
    for carried in [&[1_200_000_000, 5][..], &[300_000_000, 300_000_000, 5]] {
        assert_eq!(found_over_tcp(carried).status, Status::Fail, "{carried:?}");
    }
    let found = found_over_tcp(&[400_000_000; 3]);
    assert_eq!(found.status, Status::Ok, "{found:#?}");
}

/// The library skips the cable, so the local network must have carried the data.
#[test]
fn a_cable_that_does_not_answer_is_no_rail() {
    let mut hosts = testing::hosts(&testing::pair());
    for host in &mut hosts {
        host.rdma.clear();
        for netdev in &mut host.network.netdevs {
            let (sent, received) = (0, 0);
            netdev.traffic = Some(Counted { sent, received });
        }
        for neighbour in &mut host.network.neighbours {
            neighbour.mac = None;
            neighbour.state = spark_ccl_topology::NeighbourState::Failed;
        }
    }
    let cluster = Cluster::of(&hosts);
    let mut after = hosts[0].clone();
    let (sent, received) = (1_200_000_000, 1_200_000_000);
    netdev(&mut after, "enP7s7").traffic = Some(Counted { sent, received });
    let traffic = traffic::between(&cluster, 0, &hosts[0], &after);
    let rails: Vec<_> = traffic.iter().filter(|one| one.rail).collect();
    assert_eq!(rails.len(), 1);
    assert_eq!(rails[0].name, "enP7s7");
    let found = traffic::judge(&cluster, 0, &traffic, 1e9);
    assert_eq!(found.status, Status::Ok, "{found:#?}");
}

#[test]
fn each_direction_counts() {
    let half = 600_000_000;
    assert_eq!(found_over_rails(&[[half; 2]; 2]).status, Status::Ok);
    let cases = [
        // All arrives by one, as where an interface answers for its twin.
        ([[half, 5], [half, 2 * half]], "received by net0"),
        ([[5, half], [2 * half, half]], "sent by net0"),
        // What was sent over the rails was answered by another network.
        ([[half, 5], [half, 5]], "over other interfaces"),
    ];
    for (carried, seen) in cases {
        let found = found_over_rails(&carried);
        assert_eq!(found.status, Status::Fail, "{found:#?}");
        assert!(found.seen.contains(seen), "{found:#?}");
    }
}

#[test]
fn a_ring_may_use_each_cable_one_way() {
    let hosts = testing::hosts(&testing::ring());
    let cluster = Cluster::of(&hosts);
    let traffic = cluster
        .between(0, 1)
        .chain(cluster.between(0, 2))
        .map(|rail| {
            let [own, peer] = &rail.ends;
            let carried = [5, 600_000_000];
            traffic::Traffic {
                host: hosts[0].name.clone(),
                name: format!("{}:1", own.device),
                rail: true,
                sent: carried[usize::from(peer.host == 1)],
                received: carried[usize::from(peer.host == 2)],
            }
        });
    let traffic: Vec<_> = traffic.collect();
    let found = traffic::judge(&cluster, 0, &traffic, 1e9);
    assert_eq!(found.status, Status::Ok, "{found:#?}");
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
    // The other counters prove enough.
    all_are(&counted(600_000_000, 0, 1e9, lose), Status::Ok);
    let lose = |host: &mut Host| netdev(host, &name).traffic = None;
    all_are(&counted(600_000_000, 0, 1e9, lose), Status::Unknown);
    let none = |host: &mut Host| host.network.netdevs.clear();
    all_are(&counted(600_000_000, 0, 1e9, none), Status::Unknown);
    // A counter that was reset does not count.
    let restart = |host: &mut Host| netdev(host, &name).traffic.as_mut().unwrap().sent = 0;
    all_are(&counted(600_000_000, 0, 1e9, restart), Status::Unknown);
}

#[test]
fn counters_of_other_hosts_may_be_anything() {
    let most = |host: &mut Host| {
        for port in host.rdma.iter_mut().flat_map(|one| &mut one.ports) {
            let counters = ["port_xmit_data", "port_rcv_data"];
            let counters = counters.map(|name| (name.to_owned(), u64::MAX));
            port.counters.extend(counters);
        }
    };
    all_are(&counted(600_000_000, 0, 1e9, most), Status::Warn);
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

/// The results of a sweep, as JSON.
fn row(nwrong: &str) -> String {
    format!(
        r#"[{{"size":8,"type":"float","redop":"sum","root":"-1",
        "out_of_place":{{"time":2.0,"bus_bw":2.0,"nwrong":{nwrong}}},"in_place":null}}]"#
    )
}

fn swept(results: &str) -> Document {
    serde_json::from_str(&format!("{{\"results\":{results}}}")).unwrap()
}

#[test]
fn results_that_nobody_verified_are_not_right() {
    let judged = |results: &str| load::judge("check.sweep", &["a"], &Ok(swept(results))).status;
    assert_eq!(judged(&row("0")), Status::Ok);
    for bad in ["[]", &row("1"), &row("\"N/A\""), &row("null")] {
        assert_eq!(judged(bad), Status::Fail, "{bad}");
    }
}

#[test]
fn names_cannot_end_an_element_of_the_page() {
    let hosts = testing::hosts(&testing::pair());
    let mut report = empty(&hosts);
    report.time = "<b>".to_owned();
    report.findings = vec![Finding::ok("a.b", &["x<script>"], "fine | \"well\"")];
    let page = html::page(&report).unwrap();
    assert!(!page.contains("<b>") && !page.contains("<script>"));
    assert!(markdown::text(&report).contains("fine \\| "));
    // A report is read back, and nothing has changed.
    assert_eq!(changes::since(&read_back(&report), &report), []);
}

#[test]
fn a_page_without_load_says_so() {
    let hosts = testing::hosts(&testing::pair());
    let mut report = empty(&hosts);
    report.sweep = Some(swept(&row("0")));
    let page = html::page(&report).unwrap();
    assert!(page.contains("<p>Nothing was measured.</p>"), "{page}");
}

#[test]
fn an_older_report_is_not_trusted() {
    let hosts = testing::hosts(&testing::pair());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("check.json");
    let report = empty(&hosts);
    let mut older: serde_json::Value = serde_json::from_str(&json(&report).unwrap()).unwrap();
    older["findings"] = serde_json::json!(
        [{"id": "a\u{1b}[2J\n# b", "hosts": ["h\r"], "status": "warn", "seen": ""}]
    );
    std::fs::write(&path, older.to_string()).unwrap();
    let found = changes::since(&Older::read(&path).unwrap(), &report);
    assert_eq!(found[0].what, "h a[2J# b");
    older["hosts"][0]["name"] = "a;b".into();
    std::fs::write(&path, older.to_string()).unwrap();
    let error = Older::read(&path).unwrap_err().to_string();
    assert!(error.contains("a;b"), "{error}");
    // It has no end.
    let error = Older::read(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(error.exit_code(), exit::USAGE, "{error}");
}

/// A report in which nothing was measured.
pub(super) fn empty(hosts: &[Host]) -> Report<'_> {
    Report {
        format: FORMAT,
        spark_ccl: "1",
        time: String::new(),
        findings: Vec::new(),
        probed: None,
        sweep: None,
        load: Vec::new(),
        traffic: Vec::new(),
        changes: Vec::new(),
        hosts,
    }
}

fn read_back(report: &Report<'_>) -> Older {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), report).unwrap();
    Older::read(&folder.path().join("check.json")).unwrap()
}

/// Measurements of two hosts over two rails, at these rates; the second host comes first if
/// `turned`.
fn probed(rates: &[f64], turned: bool) -> Probed {
    let mut sides = ["1", "2"];
    if turned {
        sides.reverse();
    }
    let rails = ["a", "b"].map(|rail| sides.map(|side| format!("{rail}{side}")));
    let rails = rails.map(|ends| serde_json::json!({"ends": ends, "round_trip_us": null}));
    let mut rows: Vec<_> = rates
        .iter()
        .enumerate()
        .map(|(rail, rate)| {
            serde_json::json!({"bytes": 8, "rails": [rail], "carried": [1], "seconds": 1.0, "gb_per_s": rate,
                "cpu_us_per_mib": 1.0, "wrong": 0})
        })
        .collect();
    if turned {
        rows.reverse();
    }
    let tcp = serde_json::json!({"Ok": {"what": "", "rails": rails, "rows": rows}});
    let pair = serde_json::json!({"hosts": [0, 1], "tcp": tcp, "rdma": null, "latency": null});
    let collective = serde_json::json!({"Err": "none"});
    serde_json::from_value(serde_json::json!({"pairs": [pair], "collective": collective})).unwrap()
}

#[test]
fn changes_are_found_by_name() {
    let hosts = testing::hosts(&testing::pair());
    let moment = |bus_bw| Moment {
        seconds: 1.0,
        bus_bw,
        bytes: 1,
    };
    let mut then = empty(&hosts);
    then.probed = Some(probed(&[12.0, 6.0], false));
    then.load = vec![moment(12.0)];
    let older = read_back(&then);
    // The other order of hosts and rows is no change.
    let turned: Vec<_> = hosts.iter().rev().cloned().collect();
    let mut now = empty(&turned);
    now.probed = Some(probed(&[12.0, 6.0], true));
    now.load = vec![moment(12.0)];
    assert_eq!(changes::since(&older, &now), []);
    // A slower rail, and a slower load.
    now.probed = Some(probed(&[12.0, 3.0], true));
    now.load = vec![moment(6.0)];
    let found = changes::since(&older, &now);
    assert!(found.iter().all(|one| one.is_worse), "{found:#?}");
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].what.contains("b1"), "{found:#?}");
    // A rail and a load that are gone.
    now.probed = Some(probed(&[12.0], true));
    now.load = Vec::new();
    now.hosts = &turned[..1];
    let found = changes::since(&older, &now);
    let missing = found
        .iter()
        .filter(|one| one.is_worse && one.now == "missing");
    assert!(missing.count() >= 3, "{found:#?}");
    assert!(older.is_about(now.hosts).is_ok());
    let mut other = hosts.clone();
    other[0].name = "else".to_owned();
    assert_eq!(older.is_about(&other).unwrap_err().exit_code(), 6);
}

#[test]
fn statuses_have_an_order() {
    let hosts = testing::hosts(&testing::pair());
    let with = |status: Option<Status>| {
        let mut report = empty(&hosts);
        report.findings.extend(status.map(|status| Finding {
            status,
            ..Finding::ok("a.b", &["x"], "seen")
        }));
        report
    };
    let (fail, warn, ok) = (Some(Status::Fail), Some(Status::Warn), Some(Status::Ok));
    let cases = [
        (fail, warn, Some(("warn", false))),
        (warn, fail, Some(("fail", true))),
        (ok, warn, Some(("warn", true))),
        (None, warn, Some(("warn", true))),
        (fail, None, Some(("missing", false))),
        (fail, ok, Some(("ok", false))),
        (ok, None, None),
        (warn, warn, None),
    ];
    for (then, now, expected) in cases {
        let found = changes::since(&read_back(&with(then)), &with(now));
        let found: Vec<_> = found.iter().map(|one| (&*one.now, one.is_worse)).collect();
        assert_eq!(found, Vec::from_iter(expected), "{then:?} {now:?}");
    }
}
