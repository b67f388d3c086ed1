//! The thread that is the sending device of a queue pair.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::super::posts::completion;
use super::end::{Address, PAUSE, PairEnd, Rules, lock};
use super::memory::{self, OWN_READ, OWN_WRITE};
use super::random::Random;
use super::request::{Data, Request};
use super::stray::Stray;
use crate::raw;

/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// The sending device of a queue pair.
struct Carrier<'a> {
    own: &'a PairEnd,
    to: Address,
    /// Looked up once: the lock of all queue pairs would order memory that no device orders.
    peer: Option<Arc<PairEnd>>,
    random: Random,
    /// How many requests before the current one ended without a completion.
    unsaid: u32,
}

/// The bytes of a read that are not yet in their place.
struct Lagging {
    request: Request,
    bytes: Vec<u8>,
}

/// Carries out requests in order, until the queue pair is destroyed.
pub(super) fn carry(own: &PairEnd, to: Address, random: Random, requests: &Receiver<Request>) {
    let mut carrier = Carrier {
        own,
        to,
        peer: None,
        random,
        unsaid: 0,
    };
    let mut lagging = None;
    loop {
        let next = match &lagging {
            None => requests.recv(),
            // A read's bytes may reach their place after later requests have been carried out.
            Some(_) => requests
                .recv_timeout(carrier.random.delay())
                .map_err(|_| std::sync::mpsc::RecvError),
        };
        if next.as_ref().map_or(true, Request::is_behind_reads)
            && let Some(read) = lagging.take()
        {
            carrier.place(read);
            if next.is_err() {
                continue;
            }
        }
        let Ok(request) = next else { return };
        match carrier.deliver(&request) {
            Ok(Some(bytes)) => lagging = Some(Lagging { request, bytes }),
            result => {
                if let Some(read) = lagging.take() {
                    carrier.place(read);
                }
                carrier.end(&request, result.map(drop));
            }
        }
    }
}

impl Carrier<'_> {
    /// Carries out a request. Returns the bytes of a read instead of storing them.
    fn deliver(&mut self, request: &Request) -> Result<Option<Vec<u8>>, raw::ibv_wc_status> {
        let needed = request.needs()?;
        let mut read = request.is_read().then(|| vec![0; request.bytes()]);
        let pieces = self.random.pieces(request.bytes());
        for (place, &[start, end]) in pieces.iter().enumerate() {
            self.random.pause();
            let delivered = self.with_peer(|own, peer, rules| {
                let there = request.there(start..end);
                let keys = lock(&peer.peer_keys);
                let found = if rules.access & needed != needed {
                    None
                } else if let Some(read) = &mut read {
                    // SAFETY: the peer's user has registered the memory for its peers to read, and
                    // so leaves it to them.
                    let bytes = unsafe { memory::read(&keys, there, needed) };
                    bytes.map(|bytes| read[start..end].copy_from_slice(&bytes))
                } else {
                    let bytes = own.bytes_of(request.here(start..end))?;
                    // SAFETY: the peer's user has registered the memory for its peers to write, and
                    // so leaves it to them.
                    unsafe { memory::write(&keys, there, needed, &bytes) }
                };
                found.map(Some).ok_or(raw::IBV_WC_REM_ACCESS_ERR)
            });
            if delivered == Err(raw::IBV_WC_RETRY_EXC_ERR) && read.is_none() {
                self.hold_back(request, &pieces[place..], needed);
            }
            delivered?;
        }
        if let Some(opcode) = request.arrives_as() {
            self.random.pause();
            self.with_peer(|_, peer, _| {
                let is_delivered = peer.deliver(opcode, request.bytes(), request.imm);
                Ok(is_delivered.then_some(()))
            })?;
        }
        // The acknowledgement is late, too, and may be lost.
        self.random.pause();
        self.with_peer(|_, _, _| Ok(Some(())))?;
        Ok(read)
    }

    /// Leaves the rest of a write to the cable.
    fn hold_back(&self, request: &Request, rest: &[[usize; 2]], needed: u32) {
        let piece = |&[start, end]: &[usize; 2]| {
            let bytes = self.own.bytes_of(request.here(start..end)).ok()?;
            Some((request.there(start..end), bytes))
        };
        let pieces: Option<Vec<_>> = rest.iter().map(piece).collect();
        if let (Some(peer), Some(pieces)) = (&self.peer, pieces) {
            let stray = Stray {
                from: self.own.address,
                peer: Arc::clone(peer),
                cable: Arc::clone(&self.own.cable),
                needed,
                pieces,
            };
            stray.start();
        }
    }

    /// Stores a read's bytes, and ends the request.
    fn place(&mut self, Lagging { request, bytes }: Lagging) {
        let result = match request.here(0..bytes.len()) {
            _ if !self.own.is_up() => Err(raw::IBV_WC_WR_FLUSH_ERR),
            Data::At(span) => {
                let keys = lock(&self.own.own_keys);
                // SAFETY: the user has posted the read, and so leaves its destination to devices
                // until the request has ended.
                let placed = unsafe { memory::write(&keys, span, OWN_WRITE, &bytes) };
                placed.ok_or(raw::IBV_WC_LOC_PROT_ERR)
            }
            Data::Inline(_) => Err(raw::IBV_WC_LOC_QP_OP_ERR),
            Data::None => Ok(()),
        };
        self.end(&request, result);
    }

    /// Ends a request, and reports it to its user.
    fn end(&mut self, request: &Request, result: Result<(), raw::ibv_wc_status>) {
        let status = result.err().unwrap_or(raw::IBV_WC_SUCCESS);
        let has_failed = status != raw::IBV_WC_SUCCESS;
        if status == raw::IBV_WC_REM_ACCESS_ERR
            && let Some(peer) = &self.peer
        {
            peer.set(raw::IBV_QPS_ERR);
            peer.flush_if_failed();
        }
        if has_failed && self.own.is_up() {
            self.own.set(raw::IBV_QPS_ERR);
        }
        self.unsaid += 1;
        if has_failed || request.is_signalled() {
            let number = self.own.address.number;
            let mut ended = completion(request.id, number, request.ends_as(), status);
            ended.byte_len = request.bytes() as u32;
            let queues = &self.own.queues;
            let covered = std::mem::take(&mut self.unsaid);
            queues.sends.push(ended, queues.posted_sends.ended(covered));
        }
        // Only after the completion of the request that has failed.
        self.own.flush_if_failed();
    }

    /// Calls `act` whenever the peer answers, with its rules locked, until there is a result.
    fn with_peer(
        &mut self,
        mut act: impl FnMut(&PairEnd, &PairEnd, &Rules) -> Result<Option<()>, raw::ibv_wc_status>,
    ) -> Result<(), raw::ibv_wc_status> {
        let mut until = Instant::now() + PATIENCE;
        while self.own.is_up() {
            if self.peer.is_none() {
                self.peer = PairEnd::at(self.to);
            }
            if let Some(peer) = &self.peer
                && !self.own.is_cut()
                && !peer.is_cut()
            {
                let rules = peer.rules();
                if peer.answers() && rules.peer == Some(self.own.address) {
                    until = Instant::now() + PATIENCE;
                    if let Some(()) = act(self.own, peer, &rules)? {
                        return Ok(());
                    }
                }
            }
            if Instant::now() > until {
                return Err(raw::IBV_WC_RETRY_EXC_ERR);
            }
            std::thread::sleep(PAUSE);
        }
        Err(raw::IBV_WC_WR_FLUSH_ERR)
    }
}

impl PairEnd {
    /// The bytes that a request sends.
    fn bytes_of(&self, data: Data) -> Result<Vec<u8>, raw::ibv_wc_status> {
        match data {
            Data::Inline(bytes) => Ok(bytes),
            Data::None => Ok(Vec::new()),
            Data::At(span) => {
                let keys = lock(&self.own_keys);
                // SAFETY: the user does not write memory that is posted to be sent until the
                // request has ended.
                let bytes = unsafe { memory::read(&keys, span, OWN_READ) };
                bytes.ok_or(raw::IBV_WC_LOC_PROT_ERR)
            }
        }
    }
}
