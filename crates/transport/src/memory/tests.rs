//! Tests of shared memory and its descriptors.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use socket2::{Domain, Socket, Type};

use super::*;

fn streams() -> (Socket, Socket) {
    Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn write(memory: &SharedMemory, at: usize, value: u8) {
    assert!(at < memory.len());
    // SAFETY: `at` is within the mapping, and each test uses its memory from one thread.
    unsafe { memory.as_ptr().add(at).write_volatile(value) };
}

fn read(memory: &SharedMemory, at: usize) -> u8 {
    assert!(at < memory.len());
    // SAFETY: `at` is within the mapping, and each test uses its memory from one thread.
    unsafe { memory.as_ptr().add(at).read_volatile() }
}

#[test]
fn both_mappings_show_the_same_bytes() {
    let (mine, fd) = SharedMemory::create(100_000, 100_000).unwrap();
    let theirs = SharedMemory::from_fd(&fd, 100_000, 100_000).unwrap();
    drop(fd);
    assert_eq!((mine.len(), theirs.len()), (100_000, 100_000));
    assert_eq!(read(&theirs, 99_999), 0);
    write(&mine, 99_999, 7);
    assert_eq!(read(&theirs, 99_999), 7);
    drop(mine);
    assert_eq!(read(&theirs, 99_999), 7);
}

#[test]
fn no_bytes_are_memory_too() {
    let (mine, fd) = SharedMemory::create(0, 0).unwrap();
    assert!(mine.is_empty());
    assert!(SharedMemory::from_fd(&fd, 0, 0).is_ok());
    mine.make_private(0..mine.len()).unwrap();
}

#[test]
fn nobody_can_resize_it() {
    let (_mine, fd) = SharedMemory::create(8192, 8192).unwrap();
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fd, 1 << 20), Err(Errno::PERM));
    assert_eq!(
        rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE),
        Err(Errno::PERM)
    );
}

#[test]
fn more_than_there_is_is_an_error_before_anything_is_taken() {
    // If the available memory were unknown, the kernel would fill all of the machine's memory.
    assert!(available_bytes().unwrap() < 1 << 60);
    let error = SharedMemory::create(1 << 62, 1 << 62).unwrap_err();
    assert!(
        matches!(error, MemoryError::Exhausted { bytes, .. } if bytes == 1 << 62),
        "{error}"
    );
    assert!(
        error.to_string().contains("4611686018427387904 bytes"),
        "{error}"
    );
}

#[test]
fn a_little_is_left_to_others() {
    assert!(check_available(3100, Some(3200)).is_ok());
    let error = check_available(3101, Some(3200)).unwrap_err();
    assert!(
        error.to_string().contains("3200 bytes are available"),
        "{error}"
    );
    assert!(check_available(usize::MAX, None).is_ok());
}

#[test]
fn strange_descriptors_are_refused() {
    let (_mine, fd) = SharedMemory::create(8192, 8192).unwrap();
    let error = SharedMemory::from_fd(&fd, 4096, 4096).unwrap_err();
    assert!(
        error.to_string().contains("expected 4096 bytes, saw 8192"),
        "{error}"
    );

    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert!(matches!(
        SharedMemory::from_fd(&unsealed, 4096, 4096),
        Err(MemoryError::Refused(_))
    ));

    let (socket, _other) = streams();
    assert!(matches!(
        SharedMemory::from_fd(&socket, 4096, 4096),
        Err(MemoryError::Refused(_))
    ));
}

#[test]
fn a_private_copy_keeps_the_address_and_the_contents() {
    let (mine, fd) = SharedMemory::create(3 * 4096 + 5, 3 * 4096 + 5).unwrap();
    let theirs = SharedMemory::from_fd(&fd, 3 * 4096 + 5, 3 * 4096 + 5).unwrap();
    for at in 0..mine.len() {
        write(&theirs, at, (at % 251) as u8);
    }
    let address = mine.as_ptr();
    mine.make_private(0..mine.len()).unwrap();
    assert_eq!(mine.as_ptr(), address);
    for at in 0..mine.len() {
        assert_eq!(read(&mine, at), (at % 251) as u8);
    }

    write(&theirs, 4096, 255);
    assert_eq!(read(&mine, 4096), (4096 % 251) as u8);
    write(&mine, 0, 254);
    assert_eq!(read(&theirs, 0), 0);
    mine.make_private(0..mine.len()).unwrap();
    assert_eq!(read(&mine, 0), 254);
}

#[test]
fn a_part_is_made_private_and_the_rest_stays_shared() {
    let page = rustix::param::page_size();
    let (mine, fd) = SharedMemory::create(3 * page, 0).unwrap();
    let theirs = SharedMemory::from_fd(&fd, 3 * page, 0).unwrap();
    mine.set_aside(page..3 * page).unwrap();
    mine.prefer_large_pages();
    write(&theirs, page, 7);
    mine.make_private(page..2 * page).unwrap();
    assert_eq!(read(&mine, page), 7);
    for at in [0, page, 2 * page] {
        write(&theirs, at, 9);
    }
    assert_eq!([0, page, 2 * page].map(|at| read(&mine, at)), [9, 7, 9]);
    mine.discard(2 * page..3 * page).unwrap();
    assert_eq!((read(&mine, 2 * page), read(&theirs, 2 * page)), (0, 9));
}

#[test]
fn readers_see_the_address_mapped_all_the_while() {
    let (mine, _fd) = SharedMemory::create(1 << 20, 1 << 20).unwrap();
    write(&mine, 12_345, 9);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..200_000).all(|_| read(&mine, 12_345) == 9));
        for _ in 0..20 {
            mine.make_private(0..mine.len()).unwrap();
        }
        assert!(reader.join().unwrap());
    });
}

#[test]
fn a_descriptor_travels_with_its_name() {
    let (here, there) = streams();
    let (mine, fd) = SharedMemory::create(8192, 8192).unwrap();
    write(&mine, 17, 42);
    send_fd(&here, fd.as_fd(), 0xfeed, 8192, soon()).unwrap();
    send_fd(&here, fd.as_fd(), 0xbeef, 8192, soon()).unwrap();
    let first = recv_fd(&there, soon()).unwrap();
    let second = recv_fd(&there, soon()).unwrap();
    assert_eq!((first.id, first.len), (0xfeed, 8192));
    assert_eq!(second.id, 0xbeef);
    let flags = rustix::io::fcntl_getfd(&first.fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(
        read(&SharedMemory::from_fd(first.fd, 8192, 8192).unwrap(), 17),
        42
    );
}

#[test]
fn receiving_ends_at_the_deadline_or_with_the_peer() {
    let (here, there) = streams();
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(matches!(
        recv_fd(&there, deadline),
        Err(MemoryError::TimedOut { .. })
    ));
    here.send(&[1, 2, 3]).unwrap();
    drop(here);
    assert!(matches!(
        recv_fd(&there, soon()),
        Err(MemoryError::Closed { .. })
    ));
}

#[test]
fn sending_ends_at_the_deadline_or_with_the_peer() {
    let (here, there) = streams();
    let (_mine, fd) = SharedMemory::create(1, 1).unwrap();
    here.set_nonblocking(true).unwrap();
    while here.send(&[0; 4096]).is_ok() {}
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(matches!(
        send_fd(&here, fd.as_fd(), 1, 1, deadline),
        Err(MemoryError::TimedOut { .. })
    ));
    drop(there);
    assert!(matches!(
        send_fd(&here, fd.as_fd(), 1, 1, soon()),
        Err(MemoryError::Closed { .. })
    ));
}

#[test]
fn other_messages_are_refused() {
    let (here, there) = streams();
    here.send(&[0x55; 24]).unwrap();
    let error = recv_fd(&there, soon()).unwrap_err();
    assert!(error.to_string().contains("0x5555555555555555"), "{error}");

    let mut no_descriptor = *b"sparkmem................";
    no_descriptor[8..].fill(0);
    here.send(&no_descriptor).unwrap();
    let error = recv_fd(&there, soon()).unwrap_err();
    assert!(error.to_string().contains("without one"), "{error}");
}

/// A child may write to memory that it takes for its own.
#[test]
fn a_forked_child_shares_nothing() {
    let (mine, _fd) = SharedMemory::create(100_000, 100_000).unwrap();
    write(&mine, 99_999, 7);
    // SAFETY: the child makes only async-signal-safe calls, and exits at once.
    let child = match unsafe { libc::fork() } {
        0 => {
            let inherited = read(&mine, 99_999);
            write(&mine, 99_999, 9);
            let fine = inherited == 0 && read(&mine, 99_999) == 9;
            // SAFETY: `_exit` accesses no memory.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: `status` is a local that may be written.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert_eq!(read(&mine, 99_999), 7);
}
