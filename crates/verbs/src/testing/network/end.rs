//! The devices' knowledge of the queue pairs of this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::posts::completion;
use super::Cable;
use super::memory::{Keys, Region};
use super::queue::{Arrivals, Posted};
use crate::{Gid, raw};

/// The pause before looking again at a peer that has no receive.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// All ends, by number.
static ENDS: Mutex<BTreeMap<u32, Arc<PairEnd>>> = Mutex::new(BTreeMap::new());

/// The devices' knowledge of a queue pair. Its own device and that of its peer share no lock: that
/// would order memory that no device orders.
pub(super) struct PairEnd {
    pub(super) address: Address,
    /// Its protection domain.
    pub(super) domain: usize,
    pub(super) cable: Cable,
    /// Its state, changed with `rules` locked. Relaxed, since it orders no other memory, except for
    /// receives, as `flush_if_failed` says.
    is: AtomicU32,
    /// Locked while the peer's device acts here, and to change the state.
    rules: Mutex<Rules>,
    /// The regions that its own requests may name.
    pub(super) own_keys: Mutex<Keys>,
    /// The regions that its peer's requests may name.
    pub(super) peer_keys: Mutex<Keys>,
    /// The ids of posted receives.
    receives: Mutex<Receiver<u64>>,
    pub(super) queues: Queues,
}

/// The completion queues of an end, and how many posted requests of each kind occupy them.
pub(super) struct Queues {
    pub(super) sends: Arc<Arrivals>,
    pub(super) arrived: Arc<Arrivals>,
    pub(super) posted_sends: Posted,
    pub(super) posted_receives: Posted,
}

/// The address of an end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) gid: Gid,
    pub(super) number: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// The peer whose requests are answered.
    pub(super) peer: Option<Address>,
    /// The accesses that its requests are allowed.
    pub(super) access: u32,
}

impl PairEnd {
    pub(super) fn new(
        address: Address,
        domain: usize,
        cable: Cable,
        receives: Receiver<u64>,
        queues: Queues,
    ) -> Self {
        Self {
            address,
            domain,
            cable,
            is: AtomicU32::new(raw::IBV_QPS_RESET),
            rules: Mutex::new(Rules {
                peer: None,
                access: 0,
            }),
            own_keys: Mutex::default(),
            peer_keys: Mutex::default(),
            receives: Mutex::new(receives),
            queues,
        }
    }

    /// Lets other devices find this end.
    pub(super) fn add(self: &Arc<Self>) {
        lock(&ENDS).insert(self.address.number, Arc::clone(self));
    }

    pub(super) fn remove(&self) {
        self.set(raw::IBV_QPS_RESET);
        lock(&ENDS).remove(&self.address.number);
    }

    /// The end at this address, if it exists.
    pub(super) fn at(address: Address) -> Option<Arc<Self>> {
        let end = lock(&ENDS).get(&address.number).cloned();
        end.filter(|end| end.address == address)
    }

    /// All ends of a protection domain.
    pub(super) fn all_in(domain: usize) -> Vec<Arc<Self>> {
        let ends = lock(&ENDS);
        let own = ends.values().filter(|end| end.domain == domain);
        own.cloned().collect()
    }

    /// Lets requests of this end and of its peer name a region by these keys.
    pub(super) fn admit(&self, [own, peers]: [u32; 2], region: Region) {
        lock(&self.own_keys).insert(own, region);
        lock(&self.peer_keys).insert(peers, region);
    }

    /// The opposite of [`admit`](Self::admit). Waits for devices that access the region.
    pub(super) fn dismiss(&self, [own, peers]: [u32; 2]) {
        lock(&self.own_keys).remove(&own);
        lock(&self.peer_keys).remove(&peers);
    }

    /// While held, the state does not change, and devices do not act here for others.
    pub(super) fn rules(&self) -> MutexGuard<'_, Rules> {
        lock(&self.rules)
    }

    pub(super) fn state(&self) -> raw::ibv_qp_state {
        self.is.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, state: raw::ibv_qp_state) {
        let _rules = self.rules();
        self.is.store(state, Ordering::Relaxed);
    }

    /// Advances to another state and changes the rules, if the end is in state `from`. Returns
    /// whether it was.
    pub(super) fn advance(
        &self,
        [from, to]: [raw::ibv_qp_state; 2],
        change: impl FnOnce(&mut Rules),
    ) -> bool {
        let mut rules = self.rules();
        let may = self.state() == from;
        if may {
            change(&mut rules);
            self.is.store(to, Ordering::Relaxed);
        }
        may
    }

    /// Whether the end sends.
    pub(super) fn is_up(&self) -> bool {
        self.state() == raw::IBV_QPS_RTS
    }

    /// Whether the end answers.
    pub(super) fn answers(&self) -> bool {
        matches!(self.state(), raw::IBV_QPS_RTR | raw::IBV_QPS_RTS)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cable.is_cut.load(Ordering::Relaxed)
    }

    /// Ends the receives if the end has failed.
    pub(super) fn flush_if_failed(&self) {
        // Sequentially consistent: one fence is between the change of state and this, the other
        // between a post and this. So either the thread that changes the state finds the receive
        // here, or the thread that posts it finds the state.
        fence(Ordering::SeqCst);
        if self.state() != raw::IBV_QPS_ERR {
            return;
        }
        for id in lock(&self.receives).try_iter() {
            let status = raw::IBV_WC_WR_FLUSH_ERR;
            let ended = completion(id, self.address.number, raw::IBV_WC_RECV, status);
            let Queues {
                arrived,
                posted_receives,
                ..
            } = &self.queues;
            arrived.push(ended, posted_receives.ended(1));
        }
    }

    /// Gives a message to a receive, if there is one. The rules are locked.
    pub(super) fn deliver(&self, opcode: raw::ibv_wc_opcode, bytes: usize, imm: u32) -> bool {
        let Ok(id) = lock(&self.receives).try_recv() else {
            return false;
        };
        let mut arrival = completion(id, self.address.number, opcode, raw::IBV_WC_SUCCESS);
        arrival.byte_len = bytes as u32;
        arrival.wc_flags = raw::IBV_WC_WITH_IMM;
        arrival.__bindgen_anon_1.imm_data = imm;
        let Queues {
            arrived,
            posted_receives,
            ..
        } = &self.queues;
        arrived.push(arrival, posted_receives.ended(1));
        true
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
