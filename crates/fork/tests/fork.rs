//! Tests of what a forked child can and cannot use of its parent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use spark_ccl_fork::{Owned, PerProcess, Process, Unshared, UnsharedMemory, peer_process};
use spark_ccl_testing::{Need, has};

/// Runs `work` in a child and returns its pid, for `waitpid`. The child exits with 0 if `work`
/// returns true.
fn fork(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs only `work`, which needs no thread or lock of its parent, and exits
    // without unwinding into the test harness.
    match unsafe { libc::fork() } {
        0 => {
            let fine =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => child,
    }
}

fn ended_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `waitpid` only writes to `status`, a local.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    waited == child && status == 0
}

/// Like `ended_well`, for a child that may hang: it is killed after 20 s.
fn ends_well_soon(child: libc::pid_t) -> bool {
    let mut status = 0;
    let watchdog = Instant::now() + Duration::from_secs(20);
    while Instant::now() < watchdog {
        // SAFETY: `waitpid` only writes to `status`, a local.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return status == 0;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: `kill` accesses no memory. The child has not been waited for, so its pid has not been
    // reused.
    unsafe { libc::kill(child, libc::SIGKILL) };
    ended_well(child)
}

struct Noisy<'a>(&'a UnixStream);

impl Drop for Noisy<'_> {
    fn drop(&mut self) {
        use std::io::Write;
        self.0.write_all(b"dropped").unwrap();
    }
}

#[test]
fn a_child_is_told_apart_and_so_is_its_child() {
    let process = Process::here();
    let child = fork(|| {
        let error = process.check().unwrap_err();
        let own = Process::here();
        let named = error.owner != error.here && error.here == std::process::id();
        let grandchild = fork(|| !process.is_here() && !own.is_here() && Process::here().is_here());
        named && own.is_here() && ended_well(grandchild)
    });
    assert!(ended_well(child));
    assert!(process.is_here() && process.check().is_ok());
}

#[test]
fn only_the_owner_drops() {
    let (here, mut there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let mut owned = Some(Owned::new(Noisy(&here)));
    let child = fork(|| {
        drop(owned.take());
        true
    });
    assert!(ended_well(child));
    assert!(there.read(&mut [0; 9]).is_err(), "the child has dropped it");
    drop(owned);
    assert_eq!(there.read(&mut [0; 9]).unwrap(), 7);
}

#[test]
fn a_child_has_statics_of_its_own_though_the_parents_are_locked() {
    static SHARED: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
    let mut held = SHARED.get().lock().unwrap();
    held.push(1);
    let child = fork(|| SHARED.get().try_lock().is_ok_and(|own| own.is_empty()));
    assert!(ended_well(child));
    drop(held);
    assert_eq!(*SHARED.get().lock().unwrap(), [1]);
}

#[test]
fn the_parents_connections_end_though_a_child_lives() {
    let (here, mut there) = UnixStream::pair().unwrap();
    there
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut here = Some(Unshared::new(here));
    let (mut orders, order) = UnixStream::pair().unwrap();
    let child = fork(|| {
        // The child lives until it is told to exit. Its copy is a dead end, which it may close.
        let copy = here.take().unwrap();
        let dead = (&*copy).read(&mut [0]).is_ok_and(|read| read == 0);
        drop(copy);
        dead && orders.read(&mut [0]).is_ok_and(|read| read == 1)
    });
    drop(here);
    assert_eq!(there.read(&mut [0]).unwrap(), 0, "the stream is still open");
    std::io::Write::write_all(&mut &order, b"x").unwrap();
    assert!(ended_well(child));
}

/// When dropped, in the middle of dropping an `Unshared`, forks a child that lives until it is told
/// to exit.
struct Forks<'a> {
    stream: UnixStream,
    order: &'a UnixStream,
    child: &'a AtomicI32,
}

impl AsFd for Forks<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Forks<'_> {
    fn drop(&mut self) {
        let mut order = self.order;
        let child = fork(|| order.read(&mut [0]).is_ok_and(|read| read == 1));
        self.child.store(child, Ordering::Relaxed);
    }
}

#[test]
fn a_connection_that_is_being_closed_ends_though_a_child_is_forked() {
    let (stream, mut there) = UnixStream::pair().unwrap();
    there
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let (order, orders) = UnixStream::pair().unwrap();
    let child = AtomicI32::new(0);
    drop(Unshared::new(Forks {
        stream,
        order: &order,
        child: &child,
    }));
    assert_eq!(there.read(&mut [0]).unwrap(), 0, "the stream is still open");
    std::io::Write::write_all(&mut &orders, b"x").unwrap();
    assert!(ended_well(child.load(Ordering::Relaxed)));
}

/// The number of a closed descriptor may be reused, so a child must not touch it.
#[test]
fn a_closed_descriptor_is_off_the_list() {
    // Far from the numbers that concurrent tests get.
    let number = 700;
    let (stream, _there) = UnixStream::pair().unwrap();
    let duplicate = || rustix::io::fcntl_dupfd_cloexec(&stream, number).unwrap();
    drop(Unshared::new(duplicate()));
    let again = duplicate();
    assert_eq!(again.as_raw_fd(), number);
    let inode = || rustix::fs::fstat(&again).unwrap().st_ino;
    let before = inode();
    assert!(ended_well(fork(|| inode() == before)), "the child lost it");
}

/// More than fit into one segment of the list.
#[test]
fn all_of_many_descriptors_are_kept_from_children() {
    let (stream, _there) = UnixStream::pair().unwrap();
    let inode = |stream: &UnixStream| rustix::fs::fstat(stream).unwrap().st_ino;
    let kept: Vec<_> = (0..200)
        .map(|_| Unshared::new(stream.try_clone().unwrap()))
        .collect();
    let own = inode(&stream);
    let child = fork(|| inode(&stream) == own && kept.iter().all(|kept| inode(kept) != own));
    assert!(ended_well(child));
    assert!(kept.iter().all(|kept| inode(kept) == own));
}

#[test]
fn only_the_owner_takes_the_value_out() {
    let (here, mut there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let mut owned = Some(Owned::new(Noisy(&here)));
    let child = fork(|| owned.take().unwrap().into_inner().is_none());
    assert!(ended_well(child));
    assert!(there.read(&mut [0; 9]).is_err(), "the child has dropped it");
    assert!(owned.unwrap().into_inner().is_some());
    assert_eq!(there.read(&mut [0; 9]).unwrap(), 7);
}

/// One thread is initialising a static while another one forks.
#[test]
fn a_child_does_not_wait_for_an_initialiser_in_its_parent() {
    static ENTERED: Barrier = Barrier::new(2);
    static LEFT: Barrier = Barrier::new(2);
    static SLOW: PerProcess<Slow> = PerProcess::new();
    static OWNER: AtomicU32 = AtomicU32::new(0);

    struct Slow;

    impl Default for Slow {
        fn default() -> Self {
            // Waits in the parent only.
            if OWNER.load(Ordering::Relaxed) == std::process::id() {
                ENTERED.wait();
                LEFT.wait();
            }
            Self
        }
    }

    OWNER.store(std::process::id(), Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| SLOW.get());
        ENTERED.wait();
        let child = fork(|| {
            SLOW.get();
            true
        });
        let fine = ends_well_soon(child);
        LEFT.wait();
        assert!(fine, "the child waits for a thread that it does not have");
    });
}

/// The peer of a socket pair is the process that made it.
#[test]
fn a_peer_in_another_pid_namespace_has_no_id() {
    let (here, _there) = UnixStream::pair().unwrap();
    let own = std::process::id() as i32;
    let known = || peer_process(&here).map(std::num::NonZeroI32::get);
    assert_eq!(known(), Some(own));
    assert!(ended_well(fork(|| known() == Some(own))));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(peer_process(file), None, "that is no socket");
    if has(Need::Namespaces) {
        let child = fork(|| {
            // SAFETY: `unshare(CLONE_NEWPID)` only decides in which namespace the next child is; it
            // accesses no memory.
            let is_apart = unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0;
            is_apart && ended_well(fork(|| known().is_none()))
        });
        assert!(ended_well(child));
    }
}

/// More than fit into one segment of the list, and one that has been removed.
#[test]
fn a_child_finds_zeros_where_its_parent_shares_memory() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    const BYTES: usize = 8192;
    let map = || {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED) };
        std::ptr::NonNull::new(start.unwrap().cast::<u8>()).unwrap()
    };
    // SAFETY: the mappings are never unmapped, the offset is within them, and the bytes are only
    // accessed as atomics.
    let byte =
        |at: std::ptr::NonNull<u8>| unsafe { &*at.as_ptr().cast::<AtomicU8>().add(BYTES - 1) };
    let all: Vec<_> = (0..200).map(|_| map()).collect();
    for &at in &all {
        byte(at).store(7, Ordering::Relaxed);
    }
    // SAFETY: whole pages, mapped for reading and writing until the process ends; zeros are valid
    // bytes.
    let mut unshared: Vec<_> = all
        .iter()
        .map(|&at| unsafe { UnsharedMemory::new(at, BYTES) })
        .collect();
    drop(unshared.swap_remove(0));
    let child = fork(|| {
        all.iter().enumerate().all(|(number, &at)| {
            byte(at).swap(9, Ordering::Relaxed) == if number == 0 { 7 } else { 0 }
        })
    });
    assert!(ended_well(child));
    for (number, &at) in all.iter().enumerate() {
        let expected = if number == 0 { 9 } else { 7 };
        assert_eq!(byte(at).load(Ordering::Relaxed), expected);
    }
}
