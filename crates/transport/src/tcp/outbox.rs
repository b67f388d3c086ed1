//! The messages that a link over TCP has to send: which socket carries each, and until when it is
//! kept. Knows sockets and headers; knows neither operations nor peers' ranks.
//!
//! A link between hosts keeps a message until the peer's host has acknowledged it. A rail may fall
//! silent before; then the other rails carry the message, too, and the receiver drops what comes
//! twice. The silent connection stays open: it carries again once it gets through.

mod direct;
mod lending;

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::io::Errno;

use super::buffers::{Buffers, PAYLOAD};
use super::ended_by;
use super::ending::{Connected, end_of};
use super::frame::Frame;
use super::header::{HEADER_BYTES, Header};
use super::part::Part;
use super::stream::Stream;
use crate::{Geometry, LinkError};

/// The most parts in one system call.
const BATCH: usize = 16;
/// The most messages in one system call: each has a header and a payload.
const AT_ONCE: usize = BATCH / 2;
/// Before a message from this size on, the kernel is asked which buffers are free again: they are
/// still in the caches. Asking costs much less than sending that message.
const ASK_FROM: usize = 64 << 10;

/// The messages that are not sent, or not known to have arrived.
pub(super) struct Outbox {
    geometry: Geometry,
    /// Messages take turns on the first `homes`; the others are spare.
    pub(super) sockets: Vec<Outgoing>,
    pub(super) homes: usize,
    /// The messages from number `first` on.
    frames: VecDeque<Frame>,
    first: u64,
    /// The number of the next message.
    next: u64,
    /// How many messages the kernel has not accepted completely.
    unsent: usize,
    /// Messages are kept until they are acknowledged.
    pub(super) retains: bool,
    /// From this number of kept messages on, the kernel is asked for acknowledgements, also of
    /// small ones.
    ask_at: usize,
    pub(super) buffers: Buffers,
    pub(super) ended: Option<LinkError>,
}

/// A socket, and the messages that it sends.
pub(super) struct Outgoing {
    pub(super) stream: Arc<dyn Stream>,
    /// The end of a message that was begun here before other sockets took it over. It comes before
    /// `queue`.
    rest: Vec<u8>,
    /// The messages that the kernel has not accepted completely.
    queue: VecDeque<u64>,
    /// How many bytes of the first one's frame the kernel has accepted.
    written: usize,
    /// How many bytes the kernel has accepted in all.
    accepted: u64,
    /// The messages that it has accepted and that are kept, and `accepted` at the end of each.
    unacknowledged: VecDeque<(u64, u64)>,
    is_silent: bool,
    /// Why the kernel has given the connection up.
    lost: Option<LinkError>,
}

impl Connected for Outgoing {
    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn ended(&self) -> Option<&LinkError> {
        self.lost.as_ref()
    }

    fn is_silent(&self) -> bool {
        self.is_silent
    }
}

impl Outgoing {
    fn new(stream: Arc<dyn Stream>) -> Self {
        Self {
            stream,
            rest: Vec::new(),
            queue: VecDeque::new(),
            written: 0,
            accepted: 0,
            unacknowledged: VecDeque::new(),
            is_silent: false,
            lost: None,
        }
    }

    /// The kernel has given the connection up.
    fn lose(&mut self, error: LinkError) {
        self.lost.get_or_insert(error);
        self.is_silent = true;
        self.rest.clear();
    }

    /// Leaves nothing to be sent, nor to be acknowledged.
    fn forget(&mut self) {
        self.rest.clear();
        self.queue.clear();
        self.written = 0;
        self.unacknowledged.clear();
    }
}

impl Outbox {
    pub(super) fn new(streams: &[Arc<dyn Stream>], geometry: Geometry, retains: bool) -> Self {
        Self {
            geometry,
            sockets: streams.iter().cloned().map(Outgoing::new).collect(),
            homes: streams.len(),
            frames: VecDeque::new(),
            first: 0,
            next: 0,
            unsent: 0,
            retains,
            ask_at: geometry.slots,
            buffers: Buffers::default(),
            ended: None,
        }
    }

    /// Adds a spare socket.
    pub(super) fn add_spare(&mut self, stream: Arc<dyn Stream>) {
        self.sockets.push(Outgoing::new(stream));
    }

    pub(super) fn check_open(&self) -> Result<(), LinkError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    pub(super) fn end<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if let Err(error) = &result {
            self.ended = Some(error.clone());
        }
        result
    }

    /// Whether the next message's slot is free: the kernel has the message that was in it, and all
    /// before that.
    pub(super) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// How many messages there is room for.
    fn room(&self) -> usize {
        let end = self.first_unsent() + self.geometry.slots as u64;
        end.saturating_sub(self.next) as usize
    }

    /// Whether there is room for a message without a slot.
    pub(super) fn may_begin(&self, is_slot_reserved: bool) -> Result<bool, LinkError> {
        self.check_open()?;
        if is_slot_reserved {
            return Err(LinkError::Misuse(
                "a message without a slot while a slot is reserved".to_owned(),
            ));
        }
        Ok(self.has_room())
    }

    /// The first message that the kernel has not accepted completely.
    fn first_unsent(&self) -> u64 {
        let queues = self.sockets.iter().map(|socket| &socket.queue);
        // Older ones may be behind one that was begun.
        let heads = queues.flat_map(|queue| queue.iter().take(2).copied());
        heads.min().unwrap_or(self.next)
    }

    /// Whether the kernel has not accepted all messages.
    pub(super) fn holds_back(&self) -> bool {
        self.unsent > 0
    }

    /// Whether nothing is left to wait for: all messages are known to have arrived, or cannot
    /// arrive any more.
    pub(super) fn is_settled(&self) -> bool {
        !self.retains || self.frames.is_empty() || self.ended.is_some()
    }

    /// Whether some of the peer's acknowledgements are missing, not just late.
    pub(super) fn is_in_doubt(&self) -> bool {
        let mut sockets = self.sockets.iter();
        sockets.any(|socket| matches!(socket.stream.silence(), Ok(Some(_))))
    }

    /// Whether a spare socket is lost, and the others have taken over what it did not deliver.
    pub(super) fn is_spent(&self, socket: usize) -> bool {
        let outgoing = &self.sockets[socket];
        let holds_none = outgoing.queue.is_empty() && outgoing.unacknowledged.is_empty();
        socket >= self.homes && outgoing.lost.is_some() && holds_none
    }

    /// Whether no connection carries what is kept.
    pub(super) fn is_cut(&self) -> bool {
        self.retains && self.ended.is_none() && self.sockets.iter().all(|one| one.is_silent)
    }

    /// A buffer for a message of that length.
    pub(super) fn buffer(&mut self, len: usize) -> Result<Vec<u8>, LinkError> {
        if len >= ASK_FROM || self.frames.len() >= self.ask_at {
            self.ask();
        }
        self.buffers.take(len)
    }

    /// Asks the kernel for acknowledgements, where they matter.
    fn ask(&mut self) {
        if self.retains {
            self.note_acknowledged();
            self.ask_at = self.frames.len() + self.geometry.slots;
        }
    }

    /// Sends a message that is in a buffer, as far as the kernel accepts it now.
    pub(super) fn send(
        &mut self,
        mut bytes: Vec<u8>,
        len: usize,
        tag: u64,
    ) -> Result<(), LinkError> {
        bytes[..PAYLOAD].copy_from_slice(&self.header(len, tag));
        self.begin(Frame::new(bytes, PAYLOAD + len))
    }

    /// Sends a message as far as the kernel accepts it now.
    fn begin(&mut self, frame: Frame) -> Result<(), LinkError> {
        let message = self.next;
        self.enqueue(frame);
        self.write_from(message)
    }

    /// Makes a message the last one of its socket.
    fn enqueue(&mut self, frame: Frame) {
        let (message, socket) = (self.next, self.socket_of(self.next));
        self.add(frame);
        self.sockets[socket].queue.push_back(message);
        self.unsent += 1;
    }

    /// Writes the messages from this number on, as far as the kernel accepts them now.
    fn write_from(&mut self, message: u64) -> Result<(), LinkError> {
        (0..self.sockets.len()).try_for_each(|socket| {
            // If an earlier message is still unsent, the kernel's buffer is full, so another call
            // would be useless.
            match self.sockets[socket].queue.front() {
                Some(&oldest) if oldest >= message => self.write_to(socket),
                _ => Ok(()),
            }
        })
    }

    /// Writes what the sockets accept now.
    pub(super) fn write(&mut self) -> Result<(), LinkError> {
        (0..self.sockets.len()).try_for_each(|socket| self.write_to(socket))
    }

    /// The sockets with unsent bytes, which may take more of them later.
    pub(super) fn blocked(&self) -> impl Iterator<Item = &Arc<dyn Stream>> {
        // A lost socket is always ready, so it is left out.
        let is_blocked = |socket: &&Outgoing| !socket.queue.is_empty() && socket.lost.is_none();
        let blocked = self.sockets.iter().filter(is_blocked);
        blocked.map(|socket| &socket.stream)
    }

    /// Takes note of which sockets' rails are silent, or lost, and why. The others carry what these
    /// have not delivered.
    pub(super) fn heed(&mut self, silent: &[rustix::io::Result<bool>]) {
        for (socket, silent) in self.sockets.iter_mut().zip(silent) {
            match silent.map_err(|error| ended_by("send", error)) {
                Ok(is_silent) => socket.is_silent = is_silent || socket.lost.is_some(),
                Err(error) => error.into_iter().for_each(|error| socket.lose(error)),
            }
        }
        if self.retains && self.ended.is_none() {
            let written = self.detour().and_then(|()| self.write());
            let _ = self.end(written);
        }
    }

    /// Forgets the messages that the peer's host has acknowledged.
    pub(super) fn note_acknowledged(&mut self) {
        for socket in 0..self.sockets.len() {
            let outgoing = &mut self.sockets[socket];
            if outgoing.unacknowledged.is_empty() {
                continue;
            }
            let Ok(on_its_way) = outgoing.stream.unacknowledged() else {
                continue;
            };
            let arrived = outgoing.accepted.saturating_sub(on_its_way);
            while let Some(&(message, end)) = self.sockets[socket].unacknowledged.front()
                && end <= arrived
            {
                self.sockets[socket].unacknowledged.pop_front();
                self.finish(message);
            }
        }
    }

    /// Has the other sockets carry what the silent ones have not delivered.
    ///
    /// # Errors
    /// The link has ended.
    fn detour(&mut self) -> Result<(), LinkError> {
        if let Some(error) = end_of(&self.sockets, self.homes) {
            return Err(error);
        }
        self.note_acknowledged();
        let live = self.live();
        if live.is_empty() {
            return Ok(());
        }
        for socket in 0..self.sockets.len() {
            if !self.sockets[socket].is_silent {
                continue;
            }
            for message in self.take_over(socket) {
                let target = live[message as usize % live.len()];
                self.sockets[target].queue.push_back(message);
            }
        }
        for target in live {
            let outgoing = &mut self.sockets[target];
            let begun = usize::from(outgoing.written > 0);
            // The receiver waits for the oldest.
            outgoing.queue.make_contiguous()[begun..].sort_unstable();
        }
        Ok(())
    }

    /// Takes its messages from a socket, which keeps only the end of the one that it has begun.
    fn take_over(&mut self, socket: usize) -> Vec<u64> {
        let lost = &mut self.sockets[socket];
        let written = std::mem::take(&mut lost.written);
        let goes_on = written > 0 && lost.lost.is_none();
        if let Some(begun) = lost.queue.front().filter(|_| goes_on) {
            let frame = &self.frames[(begun - self.first) as usize];
            lost.rest = frame.copy(written);
        }
        self.unsent += lost.unacknowledged.len();
        let sent = lost.unacknowledged.drain(..).map(|(message, _)| message);
        sent.chain(lost.queue.drain(..)).collect()
    }

    /// The sockets that carry: all that are not silent, but spare ones only if all others are
    /// silent.
    fn live(&self) -> Vec<usize> {
        let is_live = |socket: &usize| !self.sockets[*socket].is_silent;
        let homes: Vec<_> = (0..self.homes).filter(is_live).collect();
        if homes.is_empty() {
            return (self.homes..self.sockets.len()).filter(is_live).collect();
        }
        homes
    }

    /// Writes what a socket accepts now.
    fn write_to(&mut self, socket: usize) -> Result<(), LinkError> {
        while self.sockets[socket].lost.is_none() {
            let mut parts = [Part::new(&[]); BATCH];
            let count = self.offer(socket, &mut parts);
            if count == 0 {
                return Ok(());
            }
            let offered: usize = parts[..count].iter().map(Part::len).sum();
            let sent = match self.sockets[socket].stream.send(&parts[..count]) {
                Ok(sent) => sent,
                Err(error) => return self.give_up(socket, error),
            };
            self.note_sent(socket, sent);
            if sent < offered {
                // The kernel's buffer is full.
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next bytes that a socket has to send: in how many parts.
    fn offer<'a>(&'a self, socket: usize, parts: &mut [Part<'a>; BATCH]) -> usize {
        let outgoing = &self.sockets[socket];
        let mut skip = outgoing.written;
        let frames = outgoing.queue.iter().flat_map(|message| {
            let frame = &self.frames[(message - self.first) as usize];
            frame.parts(std::mem::take(&mut skip))
        });
        let all = std::iter::once(Part::new(&outgoing.rest)).chain(frames);
        let some = all.filter(|part| part.len() > 0);
        let places = parts.iter_mut().zip(some);
        places.map(|(place, part)| *place = part).count()
    }

    /// Accounts for bytes that the kernel accepted.
    fn note_sent(&mut self, socket: usize, bytes: usize) {
        let outgoing = &mut self.sockets[socket];
        outgoing.accepted += bytes as u64;
        let rest = bytes.min(outgoing.rest.len());
        outgoing.rest.drain(..rest);
        outgoing.written += bytes - rest;
        while let Some(&message) = self.sockets[socket].queue.front() {
            let frame = self.frames[(message - self.first) as usize].len();
            let outgoing = &mut self.sockets[socket];
            if outgoing.written < frame {
                return;
            }
            outgoing.written -= frame;
            outgoing.queue.pop_front();
            self.unsent -= 1;
            if self.retains {
                let end = outgoing.accepted - outgoing.written as u64;
                outgoing.unacknowledged.push_back((message, end));
            } else {
                self.finish(message);
            }
        }
    }

    /// Handles an error of `send`: the connection is lost, and maybe the link.
    fn give_up(&mut self, socket: usize, error: Errno) -> Result<(), LinkError> {
        let Some(error) = ended_by("send", error) else {
            return Ok(());
        };
        // The kernel may refuse the bytes, and keep the connection.
        if !self.retains || self.sockets[socket].stream.silence().is_ok() {
            return Err(error);
        }
        self.sockets[socket].lose(error);
        self.detour()
    }

    /// Adds the next message.
    fn add(&mut self, frame: Frame) {
        self.frames.push_back(frame);
        self.next += 1;
    }

    /// Forgets a message, once those before are forgotten.
    fn finish(&mut self, message: u64) {
        let frame = &mut self.frames[(message - self.first) as usize];
        // At once: those before may be of a rail that is silent.
        self.buffers.put(frame.forget());
        while self.frames.front().is_some_and(|frame| frame.is_done) {
            self.frames.pop_front();
            self.first += 1;
        }
    }

    /// The header of the next message.
    fn header(&self, len: usize, tag: u64) -> [u8; HEADER_BYTES] {
        let header = Header {
            sequence: self.next,
            len: len as u32,
            tag,
        };
        header.encode()
    }

    /// The socket that carries a new message.
    fn socket_of(&self, message: u64) -> usize {
        let home = (message % self.homes as u64) as usize;
        if !self.sockets[home].is_silent || !self.retains {
            return home;
        }
        let live = self.live();
        let around = live.get(message as usize % live.len().max(1));
        around.copied().unwrap_or(home)
    }
}
