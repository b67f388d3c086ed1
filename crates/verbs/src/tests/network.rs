//! Tests of the devices that carry data within this process: they keep RDMA's rules, and promise no
//! more.

use std::time::{Duration, Instant};

use super::*;
use crate::{Completion, CompletionError, CompletionQueue, Exposed, PostError};

const BYTES: usize = 512;

struct End {
    pair: QueuePair<Rts>,
    queue: CompletionQueue,
    memory: Exposed,
}

/// Two connected queue pairs of one device.
fn ends() -> [End; 2] {
    let context = testing::network(7).devices().unwrap()[0].open().unwrap();
    let domain = context.protection_domain().unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let created = [(); 2].map(|()| {
        // Room for all completions of a queue pair.
        let queue = context.completion_queue(256).unwrap();
        let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        let memory = domain.expose(BYTES, access).unwrap();
        (pair, queue, memory)
    });
    let numbers = created.each_ref().map(|(pair, ..)| pair.number());
    let (port, gid) = (context.port(1).unwrap(), context.gids(1).unwrap().remove(0));
    let mut peers = [numbers[1], numbers[0]].into_iter();
    created.map(|(pair, queue, memory)| {
        let peer = Peer {
            gid: gid.gid,
            kind: gid.kind,
            qp_num: peers.next().unwrap(),
        };
        let way = AddressVector::new(&port, &gid, &peer, Mtu::B4096).unwrap();
        let pair = pair.init(1, access).unwrap();
        let pair = pair
            .ready_to_receive(&way, ReceiveOptions::default())
            .unwrap();
        let pair = pair.ready_to_send(SendOptions::default()).unwrap();
        End {
            pair,
            queue,
            memory,
        }
    })
}

/// Waits for `count` completions; meanwhile, calls `look`.
fn ended(
    queue: &CompletionQueue,
    count: usize,
    mut look: impl FnMut(),
) -> Vec<Result<Completion, CompletionError>> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut room = PollRoom::default();
    let mut ended = Vec::new();
    while ended.len() < count {
        ended.extend(queue.poll(&mut room).unwrap());
        look();
        assert!(Instant::now() < until, "{ended:?}");
    }
    assert_eq!(ended.len(), count, "{ended:?}");
    ended
}

fn next(queue: &CompletionQueue) -> Completion {
    ended(queue, 1, || ()).remove(0).unwrap()
}

/// The errors of the next requests.
fn failures(queue: &CompletionQueue, count: usize) -> Vec<Status> {
    let ended = ended(queue, count, || ());
    ended
        .into_iter()
        .map(|ended| ended.unwrap_err().status)
        .collect()
}

fn write(from: &mut End, id: u64, to: Remote) {
    let pieces = [from.memory.piece(0..BYTES).unwrap()];
    let mut batch = from.pair.batch();
    let request = Request::new(id).signalled();
    // SAFETY: the memory is exposed, so devices may access it at any time, and it lives as long as
    // the queue pair.
    unsafe { batch.write_with_imm(request, &pieces, to, 9).unwrap() };
    batch.post().unwrap();
}

/// Sends only a number.
fn say(end: &mut End, id: u64) -> Result<(), PostError> {
    let mut batch = end.pair.batch();
    let request = Request::new(id).signalled();
    // SAFETY: a send without pieces has no memory.
    unsafe { batch.send_with_imm(request, &[], 5).unwrap() };
    batch.post()
}

fn receive(end: &mut End, id: u64) {
    let mut batch = end.pair.receives();
    // SAFETY: a receive without pieces has no memory.
    unsafe { batch.receive(id, &[]).unwrap() };
    batch.post().unwrap();
}

#[test]
fn bytes_arrive_in_any_order_and_all_before_the_completion() {
    let [mut from, mut to] = ends();
    let target = to.memory.remote(0..BYTES).unwrap();
    let mut disorders = 0;
    for round in 1..=100_u8 {
        from.memory.write(0, &[round; BYTES]).unwrap();
        receive(&mut to, 1);
        write(&mut from, 2, target);
        let mut was_disordered = false;
        let arrived = ended(&to.queue, 1, || {
            let [first, last] = [0, BYTES - 8].map(|at| to.memory.load(at).unwrap());
            was_disordered |= first.to_ne_bytes()[0] != round && last.to_ne_bytes()[7] == round;
        });
        let arrived = arrived[0].unwrap();
        disorders += u32::from(was_disordered);
        assert_eq!((arrived.imm, arrived.bytes as usize), (Some(9), BYTES));
        let mut seen = [0; BYTES];
        to.memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [round; BYTES]);
        assert_eq!(next(&from.queue).wr_id, 2);
    }
    assert!(
        disorders > 0,
        "each message arrived from its start to its end"
    );
}

/// A device writes the memory of a dma-buf whose descriptor was closed, until it is deregistered.
#[test]
fn bytes_go_into_a_dmabuf() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const AT: u64 = 8192 + 8;
    const ADDRESS: u64 = 0x7000_0008;
    let [mut from, mut to] = ends();
    let file = tempfile::tempfile().unwrap();
    file.set_len(AT + BYTES as u64).unwrap();
    let copy = file.try_clone().unwrap();
    let (domain, access) = (to.pair.domain(), Access::REMOTE_WRITE | Access::REMOTE_READ);
    // SAFETY: this process has no mapping of the file.
    let region = unsafe { domain.register_dmabuf(copy.as_fd(), AT, BYTES, ADDRESS, access) };
    let region = region.unwrap();
    drop(copy);
    from.memory.write(0, &[7; BYTES]).unwrap();
    receive(&mut to, 1);
    write(&mut from, 2, region.remote(0..BYTES).unwrap());
    assert_eq!(next(&to.queue).bytes as usize, BYTES);
    let mut seen = [0; BYTES];
    file.read_exact_at(&mut seen, AT).unwrap();
    assert_eq!(seen, [7; BYTES]);
    assert_eq!(next(&from.queue).wr_id, 2);
    let place = region.remote(0..BYTES).unwrap();
    region.deregister().unwrap();
    write(&mut from, 3, place);
    assert_eq!(failures(&from.queue, 1).len(), 1);
}

#[test]
fn a_message_waits_for_a_receive() {
    let [mut from, mut to] = ends();
    let target = to.memory.remote(0..BYTES).unwrap();
    write(&mut from, 1, target);
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        from.queue
            .poll(&mut PollRoom::default())
            .unwrap()
            .next()
            .is_none()
    );
    receive(&mut to, 2);
    assert_eq!(next(&to.queue).wr_id, 2);
    assert_eq!(next(&from.queue).wr_id, 1);
}

#[test]
fn what_is_read_has_arrived_with_the_completion() {
    let [mut from, mut to] = ends();
    to.memory.write(0, &[3; BYTES]).unwrap();
    let source = to.memory.remote(0..BYTES).unwrap();
    read(&mut from, 1, source);
    let ended = next(&from.queue);
    assert_eq!((ended.opcode, ended.bytes as usize), (Opcode::Read, BYTES));
    let mut seen = [0; BYTES];
    from.memory.read(0, &mut seen).unwrap();
    assert_eq!(seen, [3; BYTES]);
}

fn read(into: &mut End, id: u64, from: Remote) {
    let pieces = [into.memory.piece(0..BYTES).unwrap()];
    let mut batch = into.pair.batch();
    let request = Request::new(id).signalled();
    // SAFETY: the memory is exposed, so devices may access it at any time, and it lives as long as
    // the queue pair.
    unsafe { batch.read(request, &pieces, from).unwrap() };
    batch.post().unwrap();
}

#[test]
fn what_is_read_may_come_after_what_was_posted_behind_it() {
    let [mut here, mut there] = ends();
    let mut late = 0;
    for round in 1..=100_u8 {
        there.memory.write(0, &[round; BYTES]).unwrap();
        receive(&mut there, 1);
        let all = there.memory.remote(0..BYTES).unwrap();
        read(&mut here, 2, all);
        say(&mut here, 3).unwrap();
        assert_eq!(next(&there.queue).wr_id, 1);
        late += u32::from(here.memory.load(0).unwrap() != u64::from_ne_bytes([round; 8]));
        let ended = ended(&here.queue, 2, || ());
        let ids: Vec<_> = ended
            .into_iter()
            .map(|ended| ended.unwrap().wr_id)
            .collect();
        assert_eq!(ids, [2, 3]);
        let mut seen = [0; BYTES];
        here.memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [round; BYTES]);
    }
    assert!(late > 0, "what was read always came first");
}

#[test]
fn what_has_arrived_can_end_as_a_failure() {
    for _ in 0..100 {
        let [mut from, mut to] = ends();
        receive(&mut to, 1);
        write(&mut from, 2, to.memory.remote(0..BYTES).unwrap());
        assert_eq!(next(&to.queue).wr_id, 1);
        testing::cut(0, true);
        let ended = ended(&from.queue, 1, || ()).remove(0);
        testing::cut(0, false);
        if let Err(error) = ended {
            assert_eq!(error.status, Status::RetryExceeded);
            return;
        }
    }
    panic!("no acknowledgement was lost");
}

#[test]
fn a_key_is_good_for_its_own_domain_and_side_only() {
    let [_, stranger] = ends();
    for is_stranger in [true, false] {
        let [mut from, to] = ends();
        let target = if is_stranger {
            stranger.memory.remote(0..BYTES).unwrap()
        } else {
            let own = to.memory.piece(0..BYTES).unwrap();
            Remote {
                rkey: own.0.lkey,
                ..to.memory.remote(0..BYTES).unwrap()
            }
        };
        write(&mut from, 1, target);
        assert_eq!(failures(&from.queue, 1), [Status::RemoteAccess]);
    }
}

#[test]
fn a_failure_comes_before_what_it_flushes() {
    let [mut from, to] = ends();
    receive(&mut from, 1);
    write(&mut from, 2, to.memory.remote(8..BYTES).unwrap());
    let expected = [Status::RemoteAccess, Status::Flushed];
    assert_eq!(failures(&from.queue, 2), expected);
}

#[test]
fn a_queue_takes_as_much_as_it_was_made_for() {
    let [mut from, to] = ends();
    testing::cut(0, true);
    let most = from.pair.send_depth();
    for id in 0..u64::from(most) {
        write(&mut from, id, to.memory.remote(0..BYTES).unwrap());
    }
    let refused = say(&mut from, most.into()).unwrap_err();
    assert!(refused.to_string().contains("ENOMEM"), "{refused}");
    assert_eq!(
        failures(&from.queue, most as usize)[0],
        Status::RetryExceeded
    );
    say(&mut from, 1).unwrap();
    assert_eq!(failures(&from.queue, 1), [Status::Flushed]);
    testing::cut(0, false);
}

#[test]
fn memory_that_is_not_registered_ends_both_queue_pairs() {
    let [mut from, mut to] = ends();
    receive(&mut to, 1);
    write(&mut from, 2, to.memory.remote(8..BYTES).unwrap());
    write(&mut from, 3, to.memory.remote(0..BYTES).unwrap());
    let expected = [Status::RemoteAccess, Status::Flushed];
    assert_eq!(failures(&from.queue, 2), expected);
    assert_eq!(failures(&to.queue, 1), [Status::Flushed]);
    for end in [from, to] {
        assert_eq!(end.pair.query_state().unwrap(), PairState::Error);
    }
}

#[test]
fn a_peer_that_is_gone_is_found_by_its_silence() {
    let [mut from, to] = ends();
    let target = to.memory.remote(0..BYTES).unwrap();
    to.pair.destroy().unwrap();
    write(&mut from, 1, target);
    write(&mut from, 2, target);
    let expected = [Status::RetryExceeded, Status::Flushed];
    assert_eq!(failures(&from.queue, 2), expected);
}

#[test]
fn nothing_goes_over_a_cable_that_is_cut() {
    let [mut from, mut to] = ends();
    let target = to.memory.remote(0..BYTES).unwrap();
    receive(&mut to, 1);
    receive(&mut to, 2);
    from.memory.write(0, &[1; BYTES]).unwrap();
    // Cuts the other device's cable.
    testing::cut(1, true);
    write(&mut from, 3, target);
    assert_eq!(next(&to.queue).wr_id, 1);
    assert_eq!(next(&from.queue).wr_id, 3);
    testing::cut(0, true);
    from.memory.write(0, &[2; BYTES]).unwrap();
    write(&mut from, 4, target);
    assert_eq!(failures(&from.queue, 1), [Status::RetryExceeded]);
    assert_eq!(to.memory.load(0).unwrap().to_ne_bytes(), [1; 8]);
}

#[test]
fn nothing_arrives_at_a_queue_pair_in_the_error_state() {
    let [mut from, mut to] = ends();
    let target = to.memory.remote(0..BYTES).unwrap();
    receive(&mut to, 1);
    let failed = to.pair.into_failed().unwrap();
    assert_eq!(failures(&to.queue, 1), [Status::Flushed]);
    from.memory.write(0, &[1; BYTES]).unwrap();
    write(&mut from, 2, target);
    assert_eq!(failures(&from.queue, 1), [Status::RetryExceeded]);
    assert_eq!(to.memory.load(0).unwrap(), 0);
    drop(failed);
}

#[test]
fn a_queue_that_is_armed_notifies_once() {
    let context = testing::network(7).devices().unwrap()[1].open().unwrap();
    let channel = context.completion_channel().unwrap();
    let queue = channel.completion_queue(16).unwrap();
    assert_eq!(channel.next().unwrap(), None);
    let domain = context.protection_domain().unwrap();
    let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
    let mut pair = pair.init(1, Access::REMOTE_WRITE).unwrap();
    let mut batch = pair.receives();
    for id in [1, 2] {
        // SAFETY: a receive without pieces has no memory.
        unsafe { batch.receive(id, &[]).unwrap() };
    }
    batch.post().unwrap();
    queue.arm(false).unwrap();
    // Both receives end at once.
    let failed = pair.into_failed().unwrap();
    assert_eq!(channel.next().unwrap(), Some(queue.id()));
    assert_eq!(channel.next().unwrap(), None);
    drop(failed);
}
