//! Tests of devices, ports and GIDs.

use spark_ccl_verbs::{Access, AsyncEvent, Error, Library, LinkLayer, Mtu, PairOptions};

use crate::ends::test_ports;

#[test]
fn devices_ports_and_gids_are_listed() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let library = Library::open().unwrap();
    let devices = library.devices().unwrap();
    let device = devices
        .iter()
        .find(|device| device.name() == test_port.context.name())
        .unwrap();
    assert_ne!(device.node_guid(), 0);
    assert!(
        device
            .netdevs()
            .contains(test_port.gid.netdev.as_ref().unwrap()),
        "{:?}",
        device.netdevs()
    );
    let limits = test_port.context.limits().unwrap();
    assert!(
        limits.ports >= 1 && limits.work_requests > 0 && limits.pieces > 0,
        "{limits:?}"
    );
    assert_eq!(test_port.port.link_layer, LinkLayer::Ethernet);
    assert!(
        test_port.port.active_mtu >= Mtu::B256
            && test_port.port.active_mtu <= test_port.port.max_mtu
    );
    assert!(test_port.port.gid_table_len > test_port.gid.index);
    assert!(test_port.gid.netdev.is_some());
    let gids = test_port.context.gids(1).unwrap();
    assert!(gids.iter().all(|entry| entry.port == 1));
    assert!(gids.is_sorted_by_key(|entry| entry.index));
}

#[test]
fn what_is_not_there_is_named() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let error = test_port.context.port(200).unwrap_err();
    assert!(error.to_string().contains("no such port"), "{error}");
    let error = test_port.context.completion_queue(u32::MAX).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert!(
        error.to_string().contains("the depth must be from 1 to"),
        "{error}"
    );
    let queue = test_port.context.completion_queue(1).unwrap();
    let options = PairOptions {
        send_depth: 1 << 30,
        ..PairOptions::new(&queue)
    };
    let error = test_port
        .context
        .protection_domain()
        .unwrap()
        .queue_pair(&options)
        .unwrap_err();
    assert!(error.to_string().contains("work requests of"), "{error}");
    let error = queue.arm(false).unwrap_err();
    assert!(error.to_string().contains("without a channel"), "{error}");
}

#[test]
fn a_queue_of_another_opening_is_refused() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let library = Library::open().unwrap();
    let other = library.devices().unwrap()[0].open().unwrap();
    let queue = other.completion_queue(1).unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    let error = domain.queue_pair(&PairOptions::new(&queue)).unwrap_err();
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
}

#[test]
fn a_port_that_does_not_exist_cannot_be_used() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let queue = test_port.context.completion_queue(1).unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
    let error = pair.init(77, Access::LOCAL_READ).unwrap_err();
    assert!(error.to_string().contains("no port 77"), "{error}");
}

#[test]
fn events_do_not_block() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    while let Some(event) = test_port.context.next_event().unwrap() {
        assert_ne!(event, AsyncEvent::DeviceFatal);
    }
}

#[test]
fn parts_keep_what_they_need() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let queue = test_port.context.completion_queue(4).unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
    drop((queue, domain, test_port));
    let pair = pair.init(1, Access::LOCAL_READ).unwrap();
    pair.destroy().unwrap();
}
