//! Tests of requests that own their buffers, and of exposed memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::{Registered, Requests};

const REMOTE: Remote = Remote {
    addr: 0x9000,
    rkey: 9,
};

fn requests() -> (ProtectionDomain, Requests<Vec<u8>>) {
    let pair = ready(pair(|_| ()));
    (pair.domain().clone(), Requests::new(pair))
}

fn buffer(domain: &ProtectionDomain, bytes: usize) -> Registered<Vec<u8>> {
    domain.register_buffer(vec![7; bytes]).unwrap()
}

#[test]
fn a_buffer_keeps_its_bytes_and_room() {
    let mut bytes = Vec::with_capacity(100);
    bytes.extend_from_slice(b"abc");
    let start = bytes.as_ptr();
    let mut registered = domain().register_buffer(bytes).unwrap();
    assert_eq!(registered.region().access(), Access::LOCAL_WRITE);
    registered[0] = b'x';
    let bytes = registered.into_inner().unwrap();
    assert_eq!(
        (&bytes[..], bytes.capacity(), bytes.as_ptr()),
        (&b"xbc"[..], 100, start)
    );
    let boxed: Box<[u8]> = Box::from(&b"boxed"[..]);
    let registered = domain().register_buffer(boxed).unwrap();
    assert_eq!(&registered.into_inner().unwrap()[..], b"boxed");
}

#[test]
fn a_buffer_that_is_not_registered_comes_back() {
    testing::fail_next(0, libc::EFAULT);
    let refused = domain().register_buffer(vec![1, 2, 3]).unwrap_err();
    assert_eq!(refused.value, [1, 2, 3]);
    assert_eq!(refused.error.errno(), Some(libc::EFAULT));
}

#[test]
fn buffers_come_back_with_their_completions() {
    let (domain, mut requests) = requests();
    let first = requests.send(buffer(&domain, 64), 0..40).unwrap();
    let second = requests.read(buffer(&domain, 8), 0..8, REMOTE).unwrap();
    let third = requests.fetch_add(buffer(&domain, 8), REMOTE, 1).unwrap();
    let fourth = requests
        .compare_swap(buffer(&domain, 8), REMOTE, 1, 2)
        .unwrap();
    let fifth = requests.write(buffer(&domain, 8), 2..4, REMOTE).unwrap();
    assert_eq!(requests.in_flight(), 5);
    let ended = requests.poll().unwrap();
    let tickets: Vec<_> = ended.iter().map(|ended| ended.ticket).collect();
    assert_eq!(tickets, [first, second, third, fourth, fifth]);
    assert!(ended.iter().all(|ended| ended.result.is_ok()));
    assert_eq!(ended[0].buffer.len(), 64);
    assert_eq!(requests.in_flight(), 0);
}

#[test]
fn short_requests_are_inline() {
    let (domain, mut requests) = requests();
    let flags = |requests: &Requests<Vec<u8>>| testing::last_posted(requests.pair())[0].flags;
    requests.send(buffer(&domain, 64), 0..32).unwrap();
    assert_eq!(
        flags(&requests),
        raw::IBV_SEND_SIGNALED | raw::IBV_SEND_INLINE
    );
    requests.send(buffer(&domain, 64), 0..33).unwrap();
    assert_eq!(flags(&requests), raw::IBV_SEND_SIGNALED);
    requests.read(buffer(&domain, 64), 0..8, REMOTE).unwrap();
    assert_eq!(flags(&requests), raw::IBV_SEND_SIGNALED);
}

#[test]
fn a_request_that_cannot_be_posted_gives_its_buffer_back() {
    let (domain, mut requests) = requests();
    let refused = requests.send(buffer(&domain, 8), 0..9).unwrap_err();
    assert!(refused.to_string().contains("end of a range"), "{refused}");
    testing::fail_next(0, libc::ENOMEM);
    let refused = requests.send(refused.value, 0..8).unwrap_err();
    assert!(
        refused.to_string().contains("poll completions first"),
        "{refused}"
    );
    assert_eq!(&refused.value[..], [7; 8]);
    assert_eq!(requests.in_flight(), 0);
}

#[test]
fn a_buffer_of_another_domain_is_refused() {
    let (own, mut requests) = requests();
    let other = own.context().protection_domain().unwrap();
    assert_ne!(own, other);
    for refused in [
        requests.send(buffer(&other, 8), 0..8).unwrap_err(),
        requests.receive(buffer(&other, 8)).unwrap_err(),
    ] {
        assert!(matches!(refused.error, Error::OtherDomain { .. }));
        assert!(refused.to_string().contains("queue pair's own domain"));
        assert_eq!(&refused.value[..], [7; 8]);
    }
    assert_eq!(requests.in_flight(), 0);
    requests.send(buffer(&own, 8), 0..8).unwrap();
}

#[test]
fn failed_requests_give_their_buffers_back() {
    let (domain, mut requests) = requests();
    testing::end_as(Some(Status::Flushed));
    let sent = requests.send(buffer(&domain, 8), 0..8).unwrap();
    let received = requests.receive(buffer(&domain, 8)).unwrap();
    let ended = requests.poll().unwrap();
    assert_eq!((ended[0].ticket, ended[1].ticket), (sent, received));
    assert_eq!(ended[1].result.unwrap_err().status, Status::Flushed);
    testing::end_as(None);
}

#[test]
fn what_has_ended_comes_back_before_the_error_of_another_queue() {
    unsafe extern "C" fn gone(_: *mut raw::ibv_cq, _: i32, _: *mut raw::ibv_wc) -> i32 {
        -libc::EIO
    }
    let domain = domain();
    let context = domain.context();
    let mut options = PairOptions::new(&context.completion_queue(16).unwrap());
    change(context, |ops| ops.poll_cq = Some(gone));
    options.receive_queue = context.completion_queue(16).unwrap();
    let mut requests = Requests::new(ready(domain.queue_pair(&options).unwrap()));
    let sent = requests.send(buffer(&domain, 8), 0..8).unwrap();
    let received = requests.receive(buffer(&domain, 8)).unwrap();
    let ended = requests.poll().unwrap();
    assert_eq!((ended.len(), ended[0].ticket), (1, sent));
    for _ in 0..2 {
        assert_eq!(requests.poll().unwrap_err().errno(), Some(libc::EIO));
    }
    let left = requests.give_up().unwrap();
    assert_eq!((left.len(), left[0].0), (1, received));
}

#[test]
fn what_is_given_up_comes_back_deregistered() {
    let (domain, mut requests) = requests();
    let first = requests.receive(buffer(&domain, 8)).unwrap();
    let second = requests.receive(buffer(&domain, 9)).unwrap();
    assert!(requests.poll().unwrap().is_empty());
    let mut buffers = requests.give_up().unwrap();
    buffers.sort_by_key(|(_, buffer)| buffer.len());
    let tickets: Vec<_> = buffers.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(tickets, [first, second]);
    assert_eq!(buffers[1].1, [7; 9]);
}

#[test]
fn nothing_comes_back_from_a_pair_that_cannot_be_stopped() {
    let (domain, mut requests) = requests();
    requests.receive(buffer(&domain, 8)).unwrap();
    testing::fail_next(0, libc::EIO);
    assert_eq!(requests.give_up().unwrap_err().errno(), Some(libc::EIO));
}

#[test]
fn another_pairs_completions_end_nothing() {
    let domain = domain();
    let queue = domain.context().completion_queue(16).unwrap();
    let two = || ready(domain.queue_pair(&PairOptions::new(&queue)).unwrap());
    let mut one = Requests::new(two());
    let mut other = Requests::new(two());
    one.send(buffer(&domain, 8), 0..8).unwrap();
    assert!(other.poll().unwrap().is_empty());
    assert_eq!(one.in_flight(), 1);
    other.receive(buffer(&domain, 8)).unwrap();
    assert!(one.poll().unwrap().is_empty());
}

#[test]
fn exposed_memory_is_copied() {
    let domain = domain();
    let mut exposed = domain.expose(20, Access::REMOTE_WRITE).unwrap();
    assert_eq!(exposed.bytes(), 24);
    exposed.write(8, &5_u64.to_ne_bytes()).unwrap();
    assert_eq!(exposed.load(8).unwrap(), 5);
    let mut bytes = [1; 3];
    exposed.read(20, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 3]);
    assert!(exposed.read(22, &mut bytes).is_err());
    assert!(exposed.write(usize::MAX, &[1]).is_err());
    assert!(exposed.load(4).is_err() && exposed.load(24).is_err());
    assert!(exposed.load(usize::MAX - 7).is_err());
    let remote = exposed.remote(8..24).unwrap();
    assert_eq!(remote.addr % 8, 0);
    assert!(exposed.remote(0..25).is_err());
}

/// Memory that records when it is dropped.
#[derive(Debug)]
struct Noted {
    words: Vec<AtomicU64>,
    dropped: Arc<AtomicBool>,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

#[test]
fn exposed_memory_has_an_owner_until_it_is_deregistered() {
    // Miri cannot ask for the limit of memory, which the message of ENOMEM has.
    for (registers, deregisters) in [(0, 0), (libc::EFAULT, 0), (0, libc::EBUSY)] {
        let dropped = Arc::new(AtomicBool::new(false));
        let mut owner = Noted {
            words: (0..3).map(AtomicU64::new).collect(),
            dropped: Arc::clone(&dropped),
        };
        let words = NonNull::from(owner.words.as_mut_slice());
        let is_dropped = || dropped.load(Ordering::Relaxed);
        if registers != 0 {
            testing::fail_next(0, registers);
        }
        // SAFETY: the vector's words stay where they are until `owner` is dropped, and nothing else
        // refers to them.
        let exposed = unsafe { domain().expose_owned(words, owner, Access::REMOTE_WRITE) };
        if registers != 0 {
            assert_eq!(exposed.unwrap_err().errno(), Some(registers));
            assert!(is_dropped());
            continue;
        }
        let exposed = exposed.unwrap();
        assert_eq!((exposed.bytes(), exposed.load(16).unwrap()), (24, 2));
        assert!(!is_dropped());
        if deregisters != 0 {
            testing::fail_next(0, deregisters);
        }
        drop(exposed);
        // The device may still access memory that it has not released.
        assert_eq!(is_dropped(), deregisters == 0);
    }
}
