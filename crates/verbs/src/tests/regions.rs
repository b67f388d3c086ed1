//! Tests of the arguments of registrations, on the fake device: they check the arithmetic, not that
//! a real device accepts them.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use super::*;
use crate::MemoryRegion;
use crate::testing::Registration;

pub(super) fn memory() -> NonNull<u8> {
    NonNull::from(vec![0_u64; 512].leak()).cast()
}

fn region(access: Access) -> MemoryRegion {
    // SAFETY: the fake device does not access registered memory.
    unsafe { domain().register(memory(), 4096, access) }.unwrap()
}

/// A domain of each device that carries data.
fn on_network() -> [ProtectionDomain; 2] {
    let devices = testing::network(3).devices().unwrap();
    [0, 1].map(|device| devices[device].open().unwrap().protection_domain().unwrap())
}

#[test]
fn memory_of_the_host_keeps_its_addresses() {
    let region = region(Access::REMOTE_WRITE | Access::REMOTE_READ);
    let start = region.start();
    let access =
        raw::IBV_ACCESS_LOCAL_WRITE | raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_REMOTE_READ;
    let expected = Registration {
        start,
        bytes: 4096,
        iova: start,
        fd: None,
        access,
    };
    assert_eq!(testing::last_registration(), Some(expected));
    let piece = region.piece(100..300).unwrap();
    assert_eq!(
        (piece.0.addr, piece.0.length, piece.0.lkey),
        (start + 100, 200, region.lkey())
    );
    let remote = region.remote(4096..4096).unwrap();
    assert_eq!(
        remote,
        Remote {
            addr: start + 4096,
            rkey: region.rkey()
        }
    );
    assert_ne!(region.lkey(), region.rkey());
    region.deregister().unwrap();
}

#[test]
fn a_dmabuf_has_the_addresses_asked_for() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let access = Access::LOCAL_WRITE;
    // SAFETY: the fake device does not access registered memory.
    let region =
        unsafe { domain().register_dmabuf(file.as_fd(), 0x3_0010, 70_000, 0x7000_0010, access) };
    let region = region.unwrap();
    let expected = Registration {
        start: 0x3_0010,
        bytes: 70_000,
        iova: 0x7000_0010,
        fd: Some(file.as_raw_fd()),
        access: raw::IBV_ACCESS_LOCAL_WRITE,
    };
    assert_eq!(testing::last_registration(), Some(expected));
    assert_eq!((region.start(), region.bytes()), (0x7000_0010, 70_000));
    let piece = region.piece(69_999..70_000).unwrap();
    assert_eq!(piece.0.addr, 0x7000_0010 + 69_999);
}

#[test]
fn a_device_says_whether_it_takes_dmabufs() {
    assert!(domain().takes_dmabufs().unwrap());
    let [domain, ..] = on_network();
    assert!(domain.takes_dmabufs().unwrap());
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT] {
        testing::refuse_dmabufs(errno);
        assert!(!domain.takes_dmabufs().unwrap());
    }
    testing::refuse_dmabufs(libc::ENODEV);
    let error = domain.takes_dmabufs().unwrap_err();
    testing::refuse_dmabufs(0);
    assert_eq!(error.errno(), Some(libc::ENODEV));
    let old = testing::old_library().devices().unwrap()[0].open().unwrap();
    let error = old.protection_domain().unwrap().takes_dmabufs();
    assert!(error.unwrap_err().is_unsupported());
}

/// The range in whole pages, the address alike within a page, the descriptor a file that may be
/// closed.
#[test]
fn a_dmabuf_is_checked_and_outlives_its_descriptor() {
    let [domain, ..] = on_network();
    let page = rustix::param::page_size() as u64;
    let file = tempfile::tempfile().unwrap();
    file.set_len(3 * page).unwrap();
    let register = |offset, bytes, iova| {
        let access = Access::REMOTE_WRITE;
        // SAFETY: nothing else has this file.
        unsafe { domain.register_dmabuf(file.as_fd(), offset, bytes, iova, access) }
    };
    let whole = 3 * page as usize;
    for (offset, bytes, iova) in [
        (page, whole, 0),
        (8, 100, page),
        (0, 0, 0),
        (u64::MAX, 1, 7),
    ] {
        let error = register(offset, bytes, iova).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EINVAL), "{offset} {bytes} {iova}");
    }
    let region = register(page + 8, 100, 7 * page + 8).unwrap();
    let expected = Registration {
        start: page + 8,
        bytes: 100,
        iova: 7 * page + 8,
        fd: Some(file.as_raw_fd()),
        access: raw::IBV_ACCESS_LOCAL_WRITE | raw::IBV_ACCESS_REMOTE_WRITE,
    };
    assert_eq!(testing::last_registration(), Some(expected));
    drop(file);
    assert_eq!(region.start(), 7 * page + 8);
    region.deregister().unwrap();
}

#[test]
fn ranges_beyond_a_region_are_refused() {
    let region = region(Access::LOCAL_WRITE);
    let error = region.piece(4000..4097).unwrap_err();
    let expected = "the end of a range of a region is 4097, but must be at most 4096";
    assert_eq!(error.to_string(), expected);
    assert!(region.remote(4097..4097).is_err());
    let reversed = std::ops::Range {
        start: 5000,
        end: 0,
    };
    assert!(region.piece(reversed).is_err());
}

#[test]
fn relaxed_ordering_is_asked_for_where_a_device_may_ignore_it() {
    let region = region(Access::LOCAL_WRITE | Access::RELAXED_ORDERING);
    let access = testing::last_registration().unwrap().access;
    assert_eq!(
        access,
        raw::IBV_ACCESS_LOCAL_WRITE | raw::IBV_ACCESS_RELAXED_ORDERING
    );
    assert!(region.access().contains(Access::RELAXED_ORDERING));
    assert!(!region.access().contains(Access::REMOTE_READ));
}

#[test]
fn what_cannot_be_deregistered_is_an_error() {
    let region = region(Access::LOCAL_WRITE);
    testing::fail_next(0, libc::EBUSY);
    assert_eq!(region.deregister().unwrap_err().errno(), Some(libc::EBUSY));
}
