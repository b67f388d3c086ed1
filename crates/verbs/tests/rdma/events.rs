//! Tests of asynchronous events. They are provoked only on software devices, on a machine made for
//! these tests, where the network interface may be changed.

use std::process::Command;
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};
use spark_ccl_verbs::{AsyncEvent, Context, Gid};

use crate::ends::{TestPort, test_ports};

/// The next event, which must come within seconds.
pub(crate) fn next(context: &Context) -> AsyncEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = context.next_event().unwrap() {
            return event;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no event");
        crate::waiting::readable(context, 100);
    }
}

fn ip(test_port: &TestPort, change: &str) {
    let interface = test_port.gid.netdev.as_ref().unwrap();
    let arguments = ["addr", change, "10.99.99.99/32", "dev", interface];
    assert!(
        Command::new("ip")
            .args(arguments)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_change_of_addresses_is_told() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    // Elsewhere the test would change an interface that is in use.
    if !has(Need::Rails) {
        return;
    }
    // Opened separately, so that no other test takes its events.
    let library = spark_ccl_verbs::Library::open().unwrap();
    let devices = library.devices().unwrap();
    let device = devices
        .iter()
        .find(|device| device.name() == test_port.context.name())
        .unwrap();
    let context = device.open().unwrap();
    assert_eq!(context.next_event().unwrap(), None);
    let added: Gid = "::ffff:10.99.99.99".parse().unwrap();
    let listed = || {
        context
            .gids(1)
            .unwrap()
            .iter()
            .any(|entry| entry.gid == added)
    };
    assert!(!listed());
    ip(&test_port, "add");
    assert_eq!(next(&context), AsyncEvent::GidChange(1));
    assert!(listed());
    ip(&test_port, "del");
    assert_eq!(next(&context), AsyncEvent::GidChange(1));
    assert!(!listed());
}
