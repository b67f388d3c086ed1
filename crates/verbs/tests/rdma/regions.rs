//! Tests of registrations that a device may not support.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use spark_ccl_testing::{Need, dma_buf, has};
use spark_ccl_verbs::Access;

use crate::ends::{connected, memory, test_ports};
use crate::kernel::soft_roce;

const BYTES: usize = 1 << 16;

#[test]
fn a_dmabuf_is_registered_or_refused_by_name() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    if !has(Need::Udmabuf) {
        return;
    }
    let fd = dma_buf(BYTES).unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: nothing maps the dma-buf, so nothing conflicts with accesses of the device.
    let region = unsafe { domain.register_dmabuf(fd.as_fd(), 0, BYTES, 0, access) };
    match region {
        Ok(region) => {
            assert_eq!(
                soft_roce(&test_port),
                None,
                "soft-RoCE registers no dma-buf"
            );
            assert_eq!((region.start(), region.bytes()), (0, BYTES));
        }
        Err(error) => {
            assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}");
            assert!(error.is_unsupported());
            let error = error.to_string();
            for words in ["ibv_reg_dmabuf_mr", "65536 bytes", "EOPNOTSUPP"] {
                assert!(error.contains(words), "{error}");
            }
            assert!(error.contains("copy through memory of the host"), "{error}");
        }
    }
}

#[test]
fn a_mapped_dmabuf_is_no_memory_of_the_host() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    if !has(Need::Udmabuf) {
        return;
    }
    let fd = dma_buf(BYTES).unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
    let start = unsafe { mmap(null_mut(), BYTES, access, MapFlags::SHARED, &fd, 0) }.unwrap();
    let start = NonNull::new(start.cast()).unwrap();
    // SAFETY: the mapping stays as long as the process, and nothing borrows it.
    let error = unsafe { domain.register(start, BYTES, Access::LOCAL_WRITE) }.unwrap_err();
    assert_eq!(error.errno(), Some(libc::EFAULT), "{error}");
    assert!(error.to_string().contains("of a dma-buf"), "{error}");
}

#[test]
fn what_is_no_dmabuf_is_refused() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let file = File::open("/dev/null").unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    // SAFETY: the file has no memory that a device could access.
    let region = unsafe { domain.register_dmabuf(file.as_fd(), 0, 4096, 0, Access::LOCAL_WRITE) };
    assert!(region.unwrap_err().to_string().contains("dma-buf"));
}

#[test]
fn relaxed_ordering_may_be_asked_of_any_device() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let access = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
    let start = memory(64);
    // SAFETY: the memory is never freed, and is only accessed through the raw pointer.
    let region = unsafe { other.pair.domain().register(start, 64, access) }.unwrap();
    one.put(0, b"relaxed");
    one.write(1, one.piece(0, 7), region.remote(0..7).unwrap());
    one.next().unwrap();
    // SAFETY: the memory is never freed, and nothing borrows it.
    assert_eq!(unsafe { start.read_volatile() }, b'r');
}

#[test]
fn paging_on_demand_works_or_is_refused_by_name() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let domain = test_port.context.protection_domain().unwrap();
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    // SAFETY: the memory is never freed, and nothing accesses it.
    if let Err(error) = unsafe { domain.register(memory(4096), 4096, access) } {
        assert!(error.to_string().contains("no paging on demand"), "{error}");
    }
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let Some((test_port, _)) = test_ports() else {
        return;
    };
    let domain = test_port.context.protection_domain().unwrap();
    let nowhere = NonNull::without_provenance(4096.try_into().unwrap());
    // SAFETY: nothing is mapped at the address, so the device can access no memory there.
    let error = unsafe { domain.register(nowhere, 4096, Access::LOCAL_WRITE) }.unwrap_err();
    assert_eq!(error.errno(), Some(libc::EFAULT), "{error}");
    assert!(
        error.to_string().contains("the memory is not mapped"),
        "{error}"
    );
}
