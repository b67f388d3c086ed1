//! Tests of error values and their messages.

use std::os::fd::AsFd;

use super::*;

#[test]
fn the_memory_limit_is_named_with_its_value() {
    testing::fail_next(0, libc::ENOMEM);
    // SAFETY: the fake device does not access registered memory.
    let error = unsafe { domain().register(regions::memory(), 64, Access::LOCAL_WRITE) };
    let text = error.unwrap_err().to_string();
    assert!(text.contains("ibv_reg_mr (64 bytes at 0x"), "{text}");
    assert!(text.contains("limit of locked memory, which is "), "{text}");
    assert!(text.contains("ulimit -l unlimited"), "{text}");
}

#[test]
fn a_driver_without_dmabufs_is_unsupported() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let register = |errno| {
        testing::fail_next(0, errno);
        // SAFETY: the fake device does not access registered memory.
        unsafe { domain().register_dmabuf(file.as_fd(), 0, 64, 0, Access::LOCAL_WRITE) }
            .unwrap_err()
    };
    let error = register(libc::EOPNOTSUPP);
    assert!(error.is_unsupported());
    assert!(
        error
            .to_string()
            .contains("driver or the kernel cannot register"),
        "{error}"
    );
    let error = register(libc::EBADF);
    assert!(!error.is_unsupported());
    assert!(
        error.to_string().contains("not that of a dma-buf"),
        "{error}"
    );
}

#[test]
fn paging_on_demand_is_named_where_there_is_none() {
    testing::fail_next(0, libc::EINVAL);
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    // SAFETY: the fake device does not access registered memory.
    let error = unsafe { domain().register(regions::memory(), 64, access) }.unwrap_err();
    assert!(error.to_string().contains("no paging on demand"), "{error}");
}

/// The error message of a connection that fails with an error number.
fn refused(errno: i32) -> String {
    let pair = pair(|_| ()).init(1, Access::LOCAL_READ).unwrap();
    let (port, gid, peer) = own(pair.domain().context());
    let way = AddressVector::new(&port, &gid, &peer, Mtu::B2048).unwrap();
    testing::fail_next(0, errno);
    let error = pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap_err();
    assert_eq!(error.errno(), Some(errno));
    let text = error.to_string();
    assert!(
        text.starts_with("ibv_modify_qp to RTR (queue pair "),
        "{text}"
    );
    text
}

#[test]
fn a_refused_connection_names_the_attribute() {
    for (errno, words) in [
        (
            libc::ENODATA,
            "(ENODATA); sgid_index: GID index 1 of port 1",
        ),
        (libc::EINVAL, "another kind of address is at that index now"),
        (
            libc::ETIMEDOUT,
            "dgid: the peer's address ::ffff:10.0.0.1 does not resolve",
        ),
        (libc::ENETUNREACH, "no route from GID index 1"),
    ] {
        let text = refused(errno);
        assert!(text.contains(words), "{text}");
    }
    let pair = pair(|_| ());
    testing::fail_next(0, libc::EINVAL);
    let error = pair.init(3, Access::LOCAL_READ).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("port_num: the device has no port 3"),
        "{error}"
    );
}

#[test]
fn addresses_that_do_not_match_are_refused() {
    let (port, gid, peer) = own(&context());
    let local = Peer {
        gid: "fe80::2".parse().unwrap(),
        ..peer
    };
    let error = unfit(&port, &gid, &local, Mtu::B4096);
    assert!(matches!(error, AddressError::Class { index: 1, .. }));
    assert!(
        error
            .to_string()
            .contains("is IPv4-mapped, but the peer's (fe80::2) is link-local")
    );
    let old = Peer {
        kind: GidKind::RoceV1,
        ..peer
    };
    let error = unfit(&port, &gid, &old, Mtu::B4096);
    assert!(
        error
            .to_string()
            .contains("is for RoCE v2, but the peer's is for RoCE v1"),
        "{error}"
    );
    let large = Peer {
        qp_num: 1 << 24,
        ..peer
    };
    let error = unfit(&port, &gid, &large, Mtu::B1024);
    assert!(
        error.to_string().contains("queue pair number is 0x1000000"),
        "{error}"
    );
}

#[test]
fn ports_that_do_not_fit_are_refused() {
    let (port, gid, peer) = own(&context());
    let narrow = Port {
        active_mtu: Mtu::B1024,
        ..port.clone()
    };
    let error = unfit(&narrow, &gid, &peer, Mtu::B2048);
    assert!(
        error
            .to_string()
            .contains("MTU of 2048 was asked for, but port 1 carries 1024")
    );
    let down = Port {
        state: PortState::Down,
        ..port.clone()
    };
    assert!(
        unfit(&down, &gid, &peer, Mtu::B1024)
            .to_string()
            .contains("not active but Down")
    );
    let second = Port {
        number: 2,
        ..port.clone()
    };
    let error = unfit(&second, &gid, &peer, Mtu::B1024);
    assert!(
        error
            .to_string()
            .contains("is of port 1, but was named for port 2"),
        "{error}"
    );
    let infiniband = Port {
        link_layer: LinkLayer::InfiniBand,
        ..port.clone()
    };
    let error = unfit(&infiniband, &gid, &peer, Mtu::B1024);
    assert_eq!(error, AddressError::NotEthernet { port: 1 });
}

fn unfit(port: &Port, gid: &GidEntry, peer: &Peer, mtu: Mtu) -> AddressError {
    AddressVector::new(port, gid, peer, mtu).unwrap_err()
}

#[test]
fn options_beyond_their_fields_are_refused() {
    let (port, gid, peer) = own(&context());
    let way = AddressVector::new(&port, &gid, &peer, Mtu::B4096).unwrap();
    let init = || pair(|_| ()).init(1, Access::LOCAL_READ).unwrap();
    let options = ReceiveOptions {
        psn: 1 << 24,
        ..ReceiveOptions::default()
    };
    assert!(init().ready_to_receive(&way, options).is_err());
    let rtr = || {
        init()
            .ready_to_receive(&way, ReceiveOptions::default())
            .unwrap()
    };
    let send = SendOptions::default();
    for options in [
        SendOptions {
            psn: u32::MAX,
            ..send
        },
        SendOptions {
            timeout: 32,
            ..send
        },
        SendOptions { retries: 8, ..send },
        SendOptions {
            rnr_retries: 8,
            ..send
        },
    ] {
        let error = rtr().ready_to_send(options).unwrap_err();
        assert!(
            matches!(error, Error::Address(AddressError::TooLarge { .. })),
            "{error}"
        );
    }
}

#[test]
fn every_status_keeps_its_number_and_has_words() {
    for number in 0..32 {
        let status = Status::from_raw(number);
        assert_eq!(status.number(), number);
        assert!(!status.meaning().is_empty() && !status.advice().is_empty());
    }
    assert_eq!(Status::from_raw(10), Status::RemoteAccess);
    assert_eq!(Status::from_raw(99), Status::Other(99));
}
