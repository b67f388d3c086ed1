//! `discover`: a host that announces itself by LLDP.

use std::process::{Command, Stdio};

use crate::cluster::{Cluster, Host, address};
use crate::discover::{announce, discover};
use crate::program::Run;

/// Sends the frame in a file from the interface `cable`, again and again: a packet socket's address
/// is its family, the type of frames, and the interface's index.
const SEND: &str = r#"
open F, "<", $ARGV[0]; binmode F; local $/; $frame = <F>;
open I, "<", "/sys/class/net/cable/ifindex"; $index = <I>;
socket S, 17, 3, 0 or die $!;
while (1) {
    send S, $frame, 0, pack("S n i S C C a8", 17, 0x88cc, $index, 0, 0, 0, "") or die $!;
    select undef, undef, undef, 0.2;
}
"#;

#[test]
fn a_host_is_known_by_what_it_says_over_lldp() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let says = [
        value(5, b"spark-1.lab"),
        value(6, b"Linux\x1b[2J\n aarch64"),
    ];
    let _speaker = speak(&cluster, &says.concat());
    let run = discover(&cluster, &[]);
    let line = run.stdout.lines().find(|line| line.contains("LLDP"));
    let line = line.unwrap_or_else(|| panic!("{}\n{}", run.stdout, run.stderr));
    // Its neighbour's address is known to be its own by the server's key.
    let known = "10.88.0.1 # spark-1.lab, 10.88.0.1, fe80::";
    let described = "%bridge, \"Linux[2J aarch64\"; by LLDP, neighbours";
    assert!(
        line.starts_with(known) && line.ends_with(described),
        "{line}"
    );
    assert!(!run.stderr.contains("LLDP"), "{}", run.stderr);
}

#[test]
fn who_may_not_listen_to_lldp_is_told_once() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let _speaker = speak(&cluster, &[]);
    let _announcer = announce(&cluster, "spark-1", &[address(1)]);
    let all = cluster.command(&["discover", "--seconds", "2"]);
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"])
        .arg(all.get_program())
        .args(all.get_args())
        .stdin(Stdio::null());
    let run = Run::from(command.output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("by mDNS"), "{}", run.stdout);
    let mut lines = run.stderr.lines().filter(|line| line.contains("LLDP"));
    let (line, further) = (lines.next().unwrap_or_default(), lines.next());
    assert!(
        line.contains("sudo") && line.contains("not listened to"),
        "{line}"
    );
    assert_eq!(further, None);
    assert!(!run.stdout.contains("LLDP"), "{}", run.stdout);
}

/// Has the first host send frames with its address, and with these values, until the returned
/// process is dropped.
fn speak(cluster: &Cluster, values: &[u8]) -> Host {
    let mac = [0x4c, 0xbb, 0x47, 0, 0, 1];
    let header = [&[0x01, 0x80, 0xc2, 0, 0, 0x0e], &mac, &[0x88, 0xcc][..]].concat();
    let address = [&[5, 1], &address(1).octets()[..], &[2, 0, 0, 0, 1, 0]].concat();
    let frame = [
        header,
        value(1, &[&[4], &mac[..]].concat()),
        value(2, b"\x05cable"),
        value(3, &[0, 120]),
        values.to_vec(),
        value(8, &address),
        value(0, &[]),
    ];
    let file = cluster.programs().join("frame");
    std::fs::write(&file, frame.concat()).unwrap();
    cluster.start_on(1, "perl", &["-e", SEND, &file.display().to_string()])
}

/// A value of a frame, with its type and length.
fn value(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind << 1, value.len() as u8], value].concat()
}
