//! The most likely meaning of an error number, by call: the attribute that is wrong, and the
//! remedy. Devices differ: if several causes give one number, the text names all of them.

use rustix::process::{Resource, getrlimit};

use crate::pair::AddressVector;
use crate::{Access, GidClass, Limits};

const ACCESS: &str = "/dev/infiniband/uverbs* is not accessible: use a user who may open it, or \
                      pass /dev/infiniband into the container";

pub(crate) fn devices(errno: i32) -> String {
    match errno {
        libc::EPERM | libc::EACCES => ACCESS.into(),
        libc::ENOMEM => "there is no memory left".into(),
        _ => String::new(),
    }
}

pub(crate) fn open(errno: i32) -> String {
    match errno {
        libc::EPERM | libc::EACCES | libc::ENOENT => ACCESS.into(),
        libc::EMFILE | libc::ENFILE => "there are no file descriptors left".into(),
        _ => gone(errno),
    }
}

pub(crate) fn gone(errno: i32) -> String {
    match errno {
        libc::EIO | libc::ENODEV => {
            "the device has failed or was removed; see the kernel's log".into()
        }
        _ => String::new(),
    }
}

pub(crate) fn port(errno: i32) -> String {
    match errno {
        libc::EINVAL => "the device has no such port".into(),
        _ => gone(errno),
    }
}

pub(crate) fn resources(errno: i32) -> String {
    match errno {
        libc::ENOMEM => format!("the device has no more of them, or {}", locked_memory()),
        libc::EMFILE | libc::ENFILE => "there are no file descriptors left".into(),
        _ => gone(errno),
    }
}

pub(crate) fn register(errno: i32, bytes: usize, access: Access) -> String {
    let on_demand = access.contains(Access::ON_DEMAND);
    match errno {
        libc::EINVAL if bytes == 0 => "a region has at least one byte".into(),
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL if on_demand => {
            "the device or the kernel has no paging on demand".into()
        }
        libc::ENOMEM | libc::EAGAIN => {
            format!("{}, or the device has no more regions", locked_memory())
        }
        libc::EFAULT => "the memory is not mapped, is not memory of this host (a mapping of a \
                         device or of a dma-buf), or is mapped for reading but registered for \
                         writing"
            .into(),
        libc::EACCES => "the memory is mapped for reading but registered for writing".into(),
        libc::EINVAL => "the range or the combination of access flags is not valid".into(),
        _ => gone(errno),
    }
}

/// A hint about the limit of locked memory, which includes registered memory.
fn locked_memory() -> String {
    let limit = match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "not set".into(),
    };
    format!(
        "the limit of locked memory, which is {limit} here, is too low: raise it (`ulimit -l \
         unlimited`, LimitMEMLOCK= of a service, `docker run --ulimit memlock=-1`)"
    )
}

pub(crate) fn dmabuf(errno: i32) -> String {
    match errno {
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS => {
            "the device's driver or the kernel cannot register a dma-buf (mlx5 can from Linux 5.12 \
             on): copy through memory of the host instead"
                .into()
        }
        libc::EBADF => "the descriptor is not that of a dma-buf".into(),
        libc::EINVAL => {
            "the range is not in the dma-buf, the address is not the offset modulo the \
                         page size, or the descriptor is not that of a dma-buf"
                .into()
        }
        libc::ENOMEM => "the device cannot map the dma-buf, or has no more regions".into(),
        _ => gone(errno),
    }
}

pub(crate) fn create_queue(errno: i32, limits: Option<Limits>) -> String {
    match (errno, limits) {
        (libc::EINVAL, Some(Limits { completions, .. })) => {
            format!("the depth must be from 1 to {completions}")
        }
        _ => resources(errno),
    }
}

pub(crate) fn create_pair(errno: i32, limits: Option<Limits>) -> String {
    match (errno, limits) {
        (
            libc::EINVAL | libc::ENOMEM,
            Some(Limits {
                work_requests,
                pieces,
                ..
            }),
        ) => format!(
            "the device holds at most {work_requests} work requests of {pieces} pieces per queue, \
             and few bytes inline; or {}",
            resources(libc::ENOMEM)
        ),
        _ => resources(errno),
    }
}

pub(crate) fn poll(errno: i32) -> String {
    match errno {
        libc::EINVAL => "the completion queue has overflowed".into(),
        _ => gone(errno),
    }
}

pub(crate) fn post(errno: i32) -> String {
    match errno {
        libc::ENOMEM => "the queue is full: poll completions first, or make it deeper".into(),
        libc::EINVAL => "a request has more pieces or inline bytes than the queue pair was made \
                         with, or its state does not allow posting"
            .into(),
        _ => gone(errno),
    }
}

pub(crate) fn to_init(errno: i32, port: u8) -> String {
    match errno {
        libc::EINVAL => format!("port_num: the device has no port {port}"),
        _ => gone(errno),
    }
}

pub(crate) fn to_rtr(errno: i32, path: &AddressVector) -> String {
    let AddressVector {
        port,
        own,
        own_index,
        peer,
        mtu,
        ..
    } = path;
    let here = format!("GID index {own_index} of port {port} ({own} when it was looked up)");
    let unresolved = match own.class() {
        GidClass::Ipv4Mapped => "ping it, and compare the addresses and netmasks of both ends",
        _ => "ping it through the same interface",
    };
    match errno {
        libc::ENODATA | libc::ENOENT => format!(
            "sgid_index: {here} is not in use any more: its interface has lost the address; look \
             the GIDs up again"
        ),
        libc::EINVAL => format!(
            "sgid_index: {here} cannot reach the peer's {} ({}), most likely because another kind \
             of address is at that index now; or path_mtu: {mtu} is more than the port carries \
             now; or dest_qp_num: {:#x} is not valid",
            peer.gid,
            peer.gid.class(),
            peer.qp_num
        ),
        libc::ETIMEDOUT | libc::EHOSTUNREACH => format!(
            "dgid: the peer's address {} does not resolve on the interface of {here}: the peer is \
             down, or on another network; {unresolved}",
            peer.gid
        ),
        libc::ENETUNREACH => format!(
            "dgid: there is no route from {here} to the peer's address {}: is the port on the \
             peer's network?",
            peer.gid
        ),
        _ => gone(errno),
    }
}

pub(crate) fn to_rts(errno: i32, reads_started: u8) -> String {
    match errno {
        libc::EINVAL => format!(
            "max_rd_atomic: {reads_started} is more than the device starts, or timeout, retry_cnt \
             or rnr_retry is not valid"
        ),
        _ => gone(errno),
    }
}
