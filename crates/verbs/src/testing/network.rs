//! Devices that carry data between the queue pairs of this process, as badly as the rules of RDMA
//! allow. Data come late, and a request's bytes in pieces and in any order. The results of reads
//! come after later requests. Each queue pair has its own speed. A cut cable may lose an
//! acknowledgement. It holds back parts of a write, which arrive once it is mended, also if the
//! sender has given up meanwhile. A seed decides.
//!
//! Each queue pair has a thread as its sending device. It hands over only what a real device does:
//! a completion comes after its bytes, and the two directions share no lock. So a thread sanitizer
//! reports a user that does not wait for the completion.
//!
//! Missing: data in sends, atomics, limits of concurrent reads, a limit of waits for a receive, and
//! reordering of the bytes of two writes.

mod carrier;
mod context;
mod devices;
mod end;
mod mapped;
mod memory;
mod pair;
mod queue;
mod random;
mod registration;
mod request;
mod stray;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::API;
use crate::Library;
use crate::library::Api;

static NETWORK: Api = Api {
    ibv_get_device_list: devices::get_device_list,
    ibv_free_device_list: devices::free_device_list,
    ibv_get_device_name: devices::get_device_name,
    ibv_get_device_guid: devices::get_device_guid,
    ibv_open_device: context::open_device,
    _ibv_query_gid_table: Some(devices::query_gid_table),
    ibv_reg_mr: registration::reg_mr,
    ibv_reg_mr_iova2: Some(registration::reg_mr_iova2),
    ibv_reg_dmabuf_mr: Some(registration::reg_dmabuf_mr),
    ibv_dereg_mr: registration::dereg_mr,
    ibv_get_cq_event: queue::get_cq_event,
    ibv_create_cq: queue::create_cq,
    ibv_destroy_cq: queue::destroy_cq,
    ibv_create_qp: pair::create_qp,
    ibv_modify_qp: pair::modify_qp,
    ibv_query_qp: pair::query_qp,
    ibv_destroy_qp: pair::destroy_qp,
    ..API
};

thread_local! {
    static REFUSES: Cell<i32> = const { Cell::new(0) };
}

/// Makes the drivers of this thread's devices refuse dma-bufs, with this error number; 0 switches
/// this off.
pub fn refuse_dmabufs(errno: i32) {
    REFUSES.set(errno);
}

/// Decides what the rules leave open. Only the number is shared, so relaxed ordering is enough.
static SEED: AtomicU64 = AtomicU64::new(0);
/// The number of the next network. Only the number is shared, so relaxed ordering is enough.
static NEXT: AtomicI32 = AtomicI32::new(0);
static NETWORKS: Mutex<BTreeMap<i32, Arc<Network>>> = Mutex::new(BTreeMap::new());

thread_local! {
    static OWN: i32 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// Devices that reach each other.
#[derive(Default)]
struct Network {
    /// The cable of each device, for all of its queue pairs.
    cables: [Cable; 2],
    /// The number of queue pairs so far.
    pairs: AtomicU64,
}

type Cable = Arc<CableState>;

/// Relaxed, both: they order no other memory.
#[derive(Default)]
struct CableState {
    is_cut: AtomicBool,
    /// How many writes of senders that have given up it holds back.
    strays: AtomicU64,
}

/// The library of these devices, `loop0` and `loop1`. The devices that a thread opens form a
/// network of their own. The seed is for queue pairs connected from now on.
pub fn network(seed: u64) -> Library {
    SEED.store(seed, Ordering::Relaxed);
    Library { api: &NETWORK }
}

/// Cuts or mends the cable of a device that this thread opens, now or earlier. Nothing passes a cut
/// cable; the ports do not notice.
pub fn cut(device: usize, is_cut: bool) {
    Network::of(own()).cables[device]
        .is_cut
        .store(is_cut, Ordering::Relaxed);
}

/// Waits until all that is on its way from senders that have given up has arrived. No cable is cut
/// meanwhile.
///
/// # Panics
/// If something is still on its way after 20 s.
pub fn settle() {
    let network = Network::of(own());
    let has_strays = |cable: &Cable| cable.strays.load(Ordering::Relaxed) > 0;
    let end = Instant::now() + Duration::from_secs(20);
    while network.cables.iter().any(has_strays) {
        assert!(
            Instant::now() < end,
            "writes that their senders gave up are on their way after 20 s"
        );
        std::thread::yield_now();
    }
}

impl Network {
    fn of(number: i32) -> Arc<Self> {
        let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(networks.entry(number).or_default())
    }
}

/// The network of this thread.
fn own() -> i32 {
    OWN.with(|own| *own)
}

fn seed() -> u64 {
    SEED.load(Ordering::Relaxed)
}
