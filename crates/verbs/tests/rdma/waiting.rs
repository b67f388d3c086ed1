//! Tests of waiting on a completion channel.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use spark_ccl_verbs::PollRoom;

use crate::ends::{End, test_ports};

/// Whether `source` becomes readable in time.
pub(crate) fn readable(source: &impl AsFd, milliseconds: i64) -> bool {
    let fd = source.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    poll(&mut fds, Some(&limit)).unwrap() == 1
}

#[test]
fn a_completion_wakes_a_waiter() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    let channel = there.context.completion_channel().unwrap();
    let queue = channel.completion_queue(16).unwrap();
    let domain = there.context.protection_domain().unwrap();
    let other = End::in_domain(&there, &domain, queue);
    let one = End::new(&here);
    let (to_other, to_one) = (other.peer(), one.peer());
    let (mut one, mut other) = (one.connect(&to_other), other.connect(&to_one));
    other.receive(1, other.piece(0, 8));

    assert_eq!(channel.next().unwrap(), None);
    other.queue.arm(false).unwrap();
    assert!(!readable(&channel, 20));
    one.send(2, one.piece(0, 8));
    assert!(readable(&channel, 5000));
    assert_eq!(channel.next().unwrap(), Some(other.queue.id()));
    assert_eq!(channel.next().unwrap(), None);
    let mut room = PollRoom::default();
    let done: Vec<_> = other.queue.poll(&mut room).unwrap().collect();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].unwrap().wr_id, 1);
    // Each `arm` asks for one notification only.
    assert!(!readable(&channel, 20));
}
