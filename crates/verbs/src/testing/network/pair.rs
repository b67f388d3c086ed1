//! Queue pairs of the network.
//!
//! # Safety
//!
//! Every function here requires the arguments that the function of the same name in libibverbs
//! requires, with objects that were made by the functions of this network.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::super::calls::{self, boxed};
use super::super::posts::each;
use super::carrier::carry;
use super::devices::{cable_of, gid_of, next_seed};
use super::end::{Address, PairEnd, Queues};
use super::queue::{Posted, arrivals};
use super::random::Random;
use super::registration;
use super::request::Request;
use crate::{Gid, raw};

#[repr(C)]
struct Pair {
    raw: raw::ibv_qp,
    capacity: raw::ibv_qp_cap,
    end: Arc<PairEnd>,
    requests: Sender<Request>,
    /// Requests that are kept until the pair is ready to send.
    unsent: Option<Receiver<Request>>,
    receives: Sender<u64>,
    carrier: Option<JoinHandle<()>>,
    /// The seed of its device.
    seed: u64,
}

impl Pair {
    /// Starts its device.
    fn start(&mut self) {
        let peer = self.end.rules().peer;
        if let (Some(peer), Some(requests)) = (peer, self.unsent.take()) {
            let end = Arc::clone(&self.end);
            let random = Random(self.seed);
            self.carrier = Some(std::thread::spawn(move || {
                carry(&end, peer, random, &requests);
            }));
        }
    }
}

pub(super) unsafe extern "C" fn create_qp(
    domain: *mut raw::ibv_pd,
    options: *mut raw::ibv_qp_init_attr,
) -> *mut raw::ibv_qp {
    // SAFETY: `ibv_create_qp` demands of its caller that the domain exists and the options are
    // initialised.
    let (pair, options) = unsafe { (calls::raw_pair(domain, options), &*options) };
    let (receives, waiting) = channel();
    let (requests, unsent) = channel();
    // SAFETY: both queues are from `create_cq`, and are destroyed only after the queue pairs that
    // use them.
    let [sends, arrived] = unsafe { [arrivals(options.send_cq), arrivals(options.recv_cq)] };
    // SAFETY: a domain keeps its context open.
    let (gid, cable, seed) = unsafe {
        let context = pair.context;
        (gid_of(context), cable_of(context), next_seed(context))
    };
    let address = Address {
        gid,
        number: pair.qp_num,
    };
    let queues = Queues {
        sends,
        arrived,
        posted_sends: Posted::new(options.cap.max_send_wr),
        posted_receives: Posted::new(options.cap.max_recv_wr),
    };
    let end = Arc::new(PairEnd::new(address, domain.addr(), cable, waiting, queues));
    registration::join(&end);
    boxed(Pair {
        raw: pair,
        capacity: options.cap,
        end,
        requests,
        unsent: Some(unsent),
        receives,
        carrier: None,
        seed,
    })
    .cast()
}

pub(super) unsafe extern "C" fn modify_qp(
    pair: *mut raw::ibv_qp,
    attributes: *mut raw::ibv_qp_attr,
    _mask: c_int,
) -> c_int {
    // SAFETY: the queue pair exists: `create_qp` boxed it as the first field of a `Pair`, which is
    // `repr(C)`. Nothing else uses it meanwhile: `QueuePair` is consumed in order to modify it.
    // `ibv_modify_qp` demands of its caller that the attributes are initialised.
    let (pair, to) = unsafe { (&mut *pair.cast::<Pair>(), &*attributes) };
    let end = &pair.end;
    let is_next = match to.qp_state {
        raw::IBV_QPS_ERR => {
            end.set(raw::IBV_QPS_ERR);
            end.flush_if_failed();
            true
        }
        raw::IBV_QPS_INIT => end.advance([raw::IBV_QPS_RESET, raw::IBV_QPS_INIT], |rules| {
            rules.access = to.qp_access_flags;
        }),
        raw::IBV_QPS_RTR => end.advance([raw::IBV_QPS_INIT, raw::IBV_QPS_RTR], |rules| {
            rules.peer = Some(Address {
                // SAFETY: both forms of a GID are its 16 bytes.
                gid: Gid(unsafe { to.ah_attr.grh.dgid.raw }),
                number: to.dest_qp_num,
            });
        }),
        raw::IBV_QPS_RTS => end.advance([raw::IBV_QPS_RTR, raw::IBV_QPS_RTS], |_| ()),
        _ => false,
    };
    if is_next && to.qp_state == raw::IBV_QPS_RTS {
        pair.start();
    }
    if is_next { 0 } else { libc::EINVAL }
}

pub(super) unsafe extern "C" fn query_qp(
    pair: *mut raw::ibv_qp,
    attributes: *mut raw::ibv_qp_attr,
    _mask: c_int,
    options: *mut raw::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `ibv_query_qp` demands of its caller that both structures may be written, and the
    // queue pair exists: `create_qp` boxed it as the first field of a `Pair`, which is `repr(C)`.
    unsafe {
        let pair = &*pair.cast::<Pair>();
        (*attributes).qp_state = pair.end.state();
        (*options).cap = pair.capacity;
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(pair: *mut raw::ibv_qp) -> c_int {
    // SAFETY: the queue pair is freed once. `create_qp` boxed it as the first field of a `Pair`,
    // which is `repr(C)`.
    let pair = *unsafe { Box::from_raw(pair.cast::<Pair>()) };
    pair.end.remove();
    drop(pair.requests);
    // The device's thread has panicked if a test broke a rule for which devices have no error.
    pair.carrier
        .map_or(0, |carrier| carrier.join().map_or(libc::EIO, |()| 0))
}

pub(super) unsafe extern "C" fn post_send(
    pair: *mut raw::ibv_qp,
    request: *mut raw::ibv_send_wr,
    bad: *mut *mut raw::ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair exists during the call: `create_qp` boxed it as the first field of a
    // `Pair`, which is `repr(C)`. Only `modify_qp` borrows it exclusively, and not meanwhile:
    // `QueuePair` is borrowed in order to post.
    let pair = unsafe { &*pair.cast::<Pair>() };
    let take = |entry: &raw::ibv_send_wr| {
        if !pair.end.queues.posted_sends.add() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the user posts the request, so its pieces are valid. With this network, tests
        // post only kinds that name a peer's memory or carry nothing.
        let request = unsafe { Request::of(entry) };
        // Fails if the carrier has panicked: the request then never ends.
        let _ = pair.requests.send(request);
        Ok(())
    };
    // SAFETY: `ibv_post_send` demands of its caller that the requests are initialised, stay
    // unchanged during the call and end with null, and `bad` may be written.
    unsafe { each(request, |request| request.next, bad, take) }
}

pub(super) unsafe extern "C" fn post_recv(
    pair: *mut raw::ibv_qp,
    receive: *mut raw::ibv_recv_wr,
    bad: *mut *mut raw::ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue pair exists during the call: `create_qp` boxed it as the first field of a
    // `Pair`, which is `repr(C)`. Only `modify_qp` borrows it exclusively, and not meanwhile:
    // `QueuePair` is borrowed in order to post.
    let pair = unsafe { &*pair.cast::<Pair>() };
    let take = |entry: &raw::ibv_recv_wr| {
        if !pair.end.queues.posted_receives.add() {
            return Err(libc::ENOMEM);
        }
        // Cannot fail: the receiver is in `pair.end`.
        let _ = pair.receives.send(entry.wr_id);
        Ok(())
    };
    // SAFETY: `ibv_post_recv` demands of its caller that the receives are initialised, stay
    // unchanged during the call and end with null, and `bad` may be written.
    let result = unsafe { each(receive, |receive| receive.next, bad, take) };
    if result == 0 {
        pair.end.flush_if_failed();
    }
    result
}
