//! Fuzz targets: descriptions of hosts by other machines, and frames on the link.

use spark_ccl_topology::{Cluster, Host, testing};

use crate::{discover, doctor, env, survey, topo};

/// A name, a function that must accept any bytes, and valid inputs to start from.
type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

const TARGETS: &[Target] = &[
    ("hosts", judged, some_hosts),
    ("lldp", discover::any_frame_is_heard, discover::some_frames),
];

/// Hosts that can be read are examined, drawn, listed, and given settings.
fn judged(bytes: &[u8]) {
    if let Ok(hosts) = survey::hosts(&String::from_utf8_lossy(bytes)) {
        doctor::judge(&hosts);
        let cluster = Cluster::of(&hosts);
        env::decide(&cluster);
        topo::show(&cluster);
    }
}

fn some_hosts() -> Vec<Vec<u8>> {
    let text = |recorded: &[testing::Recorded]| {
        let hosts: Vec<Host> = testing::hosts(recorded);
        serde_json::to_vec(&hosts).unwrap()
    };
    vec![text(&testing::pair()), text(&[testing::nvlink_server("a")])]
}

#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
