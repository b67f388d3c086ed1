//! Tests of unusable addresses: this crate refuses some, and only the kernel refuses others, for
//! which the tests forge table entries.

use spark_ccl_testing::{Need, has};
use spark_ccl_verbs::{
    AddressError, AddressVector, Error, GidClass, GidEntry, GidKind, Mtu, Peer, ReceiveOptions,
    SendOptions,
};

use crate::ends::{End, TestPort, nobody, test_ports};

/// The kernel's error for a connection from `own` to `peer`.
fn refused(test_port: &TestPort, own: &GidEntry, peer: &Peer) -> Error {
    let way = AddressVector::new(&test_port.port, own, peer, test_port.port.active_mtu).unwrap();
    let end = End::new(test_port);
    end.pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap_err()
}

fn someone(test_port: &TestPort) -> Peer {
    let GidEntry { gid, kind, .. } = test_port.gid;
    Peer {
        gid,
        kind,
        qp_num: 5,
    }
}

#[test]
fn an_index_that_is_not_in_use() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    let used: Vec<_> = here
        .context
        .gids(1)
        .unwrap()
        .iter()
        .map(|entry| entry.index)
        .collect();
    let unused = (0..here.port.gid_table_len)
        .find(|index| !used.contains(index))
        .unwrap();
    let forged = GidEntry {
        index: unused,
        ..here.gid.clone()
    };
    let error = refused(&here, &forged, &someone(&there));
    assert_eq!(error.errno(), Some(libc::ENODATA), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("sgid_index: GID index {unused}")),
        "{error}"
    );
    assert!(error.to_string().contains("not in use"), "{error}");
}

#[test]
fn an_index_of_another_class() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    if !has(Need::LinkLocalGid) {
        return;
    }
    let gids = here.context.gids(1).unwrap();
    let mut gids = gids.iter();
    let link_local = gids.find(|entry| entry.gid.class() == GidClass::LinkLocal);
    let link_local = link_local.unwrap();
    let way = AddressVector::new(&here.port, link_local, &someone(&there), Mtu::B1024);
    assert!(matches!(way.unwrap_err(), AddressError::Class { .. }));
    let forged = GidEntry {
        index: link_local.index,
        ..here.gid.clone()
    };
    let error = refused(&here, &forged, &someone(&there));
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert!(
        error
            .to_string()
            .contains("another kind of address is at that index"),
        "{error}"
    );
}

#[test]
fn a_peer_that_nobody_is() {
    let Some((here, _)) = test_ports() else {
        return;
    };
    let peer = Peer {
        gid: nobody(&here),
        ..someone(&here)
    };
    let error = refused(&here, &here.gid, &peer);
    let expected = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];
    assert!(expected.contains(&error.errno().unwrap()), "{error}");
    assert!(error.to_string().contains("dgid: "), "{error}");
    assert!(error.to_string().contains(&peer.gid.to_string()), "{error}");
}

#[test]
fn differences_are_named_before_the_kernel_is_asked() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    let peer = Peer {
        kind: GidKind::RoceV1,
        ..someone(&there)
    };
    let error = AddressVector::new(&here.port, &here.gid, &peer, Mtu::B1024).unwrap_err();
    assert!(
        matches!(
            error,
            AddressError::Kind {
                own: GidKind::RoceV2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn options_beyond_their_fields_are_named() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    let way = AddressVector::new(
        &here.port,
        &here.gid,
        &someone(&there),
        here.port.active_mtu,
    )
    .unwrap();
    let pair = End::new(&here).pair;
    let pair = pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap();
    let error = pair.ready_to_send(SendOptions {
        timeout: 32,
        ..SendOptions::default()
    });
    assert!(error.unwrap_err().to_string().contains("timeout is 0x20"));
}
