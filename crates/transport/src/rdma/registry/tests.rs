//! Tests with the fake device: they check which numbers are passed to a device, not that a real
//! device accepts them.

use std::os::fd::{AsFd, AsRawFd};

use spark_ccl_verbs::testing;

use super::*;

const PAGE: usize = 4096;

fn registry(domains: usize) -> Arc<Registry> {
    let device = testing::library().devices().unwrap().remove(0);
    let context = device.open().unwrap();
    let domains = (0..domains).map(|_| context.protection_domain().unwrap());
    Arc::new(Registry::new(domains.collect()))
}

fn host(memory: &mut [u8]) -> RegisteredMemory<'static> {
    RegisteredMemory::Host {
        start: NonNull::from(&mut *memory).cast(),
        bytes: memory.len(),
    }
}

#[test]
fn memory_has_its_own_keys_in_each_domain() {
    let registry = registry(2);
    let mut memory = vec![0; PAGE];
    let start = memory.as_ptr() as u64;
    // SAFETY: the fake device does not access registered memory.
    let registration = unsafe { registry.register(host(&mut memory), Reach::Lent) }.unwrap();
    let keys = |start, bytes, domain| registry.keys(start, bytes, domain);
    let [first, second] = [0, 1].map(|domain| keys(start, PAGE, domain).unwrap());
    assert_ne!(first, second);
    assert!(first.is_of_host && second.is_of_host);
    assert_eq!(keys(start + 5, 7, 0), Some(first));
    assert_eq!(keys(start, PAGE, 2), None);
    registration.deregister().unwrap();
    assert_eq!(keys(start, PAGE, 0), None);
    registration.deregister().unwrap();
}

#[test]
fn memory_must_be_registered_as_a_whole() {
    let registry = registry(1);
    let mut memory = vec![0; 3 * PAGE];
    let start = memory.as_ptr() as u64 + PAGE as u64;
    // SAFETY: the fake device does not access registered memory.
    let registration =
        unsafe { registry.register(host(&mut memory[PAGE..2 * PAGE]), Reach::Lent) }.unwrap();
    let page = PAGE as u64;
    for (at, bytes, is_known) in [
        (start, PAGE, true),
        (start + page, 0, true),
        (start + page - 1, 1, true),
        (start + page - 1, 2, false),
        (start - 1, 1, false),
        (start - 1, PAGE, false),
        (start, PAGE + 1, false),
        (start, usize::MAX, false),
        (u64::MAX, 1, false),
    ] {
        let keys = registry.keys(at, bytes, 0);
        assert_eq!(keys.is_some(), is_known, "{at} {bytes}");
    }
    drop(registration);
    assert_eq!(registry.keys(start, 1, 0), None);
}

#[test]
fn a_dmabuf_is_known_by_the_addresses_of_its_mapping() {
    let registry = registry(1);
    let file = std::fs::File::open("/dev/null").unwrap();
    let start = NonNull::new(0x7000_0010 as *mut u8).unwrap();
    let memory = RegisteredMemory::DmaBuf {
        fd: file.as_fd(),
        offset: 0x3_0010,
        start,
        bytes: 70_000,
    };
    // SAFETY: the fake device does not access registered memory.
    let _registration = unsafe { registry.register(memory, Reach::Lent) }.unwrap();
    let seen = testing::last_registration().unwrap();
    assert_eq!(
        (seen.start, seen.bytes, seen.iova),
        (0x3_0010, 70_000, 0x7000_0010)
    );
    assert_eq!(seen.fd, Some(file.as_raw_fd()));
    let last = registry.keys(0x7000_0010 + 69_999, 1, 0).unwrap();
    assert!(!last.is_of_host);
    assert!(registry.keys(0x7000_0010 + 69_999, 2, 0).is_none());
    assert!(registry.keys(0x3_0010, 1, 0).is_none());
}

#[test]
fn a_device_that_takes_no_dmabufs_is_named() {
    let device = testing::network(1).devices().unwrap().remove(0);
    let domain = device.open().unwrap().protection_domain().unwrap();
    let registry = Registry::new(vec![domain]);
    assert_eq!(registry.lacks_dmabufs(), None);
    testing::refuse_dmabufs(libc::EOPNOTSUPP);
    let said = registry.lacks_dmabufs();
    testing::refuse_dmabufs(0);
    let said = said.unwrap();
    assert!(said.contains("registers no dma-bufs"), "{said}");
}

#[test]
fn what_one_device_refuses_is_registered_with_none() {
    let registry = registry(2);
    let mut memory = vec![0; PAGE];
    testing::fail_next(0, libc::ENOMEM);
    // SAFETY: the fake device does not access registered memory.
    let error = unsafe { registry.register(host(&mut memory), Reach::Lent) }.unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert_eq!(registry.keys(memory.as_ptr() as u64, 1, 0), None);
}

#[test]
fn what_cannot_be_deregistered_is_an_error() {
    let registry = registry(1);
    let mut memory = vec![0; PAGE];
    // SAFETY: the fake device does not access registered memory.
    let registration = unsafe { registry.register(host(&mut memory), Reach::Lent) }.unwrap();
    testing::fail_next(0, libc::EBUSY);
    // A second call must not report the memory as free.
    for _ in 0..2 {
        assert_eq!(
            registration.deregister().unwrap_err().errno(),
            Some(libc::EBUSY)
        );
    }
}
