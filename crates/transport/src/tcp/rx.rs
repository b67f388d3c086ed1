//! The receiving half of a link over TCP: whose socket is next. The bytes are read in `inbox.rs`.

use std::sync::Arc;

use rustix::event::PollFlags;

use super::SLOTLESS_BYTES;
use super::detours::Detours;
use super::ending::{Connected, end_of};
use super::inbox::{Expected, Inbox};
use super::rail::silence_of;
use super::stream::Stream;
use crate::{Arrival, Direct, Geometry, LinkError, LinkRx, Wait};

/// The receiving half of a link over TCP.
pub struct Rx {
    geometry: Geometry,
    /// Messages take turns on the first `homes`; the others are spare.
    sockets: Vec<Incoming>,
    homes: usize,
    /// The number of the next message.
    next: u64,
    /// Where `peek` has found the message at the head, if `release` was not called yet.
    peeked: Option<Place>,
    /// Whether the next message was looked for since the last [`arm`](LinkRx::arm) and was not
    /// there.
    missed: bool,
    /// `None` within a host.
    detours: Option<Detours>,
    /// Set when the peer violated the protocol: nothing after that can be trusted.
    ended: Option<LinkError>,
}

/// A socket, and what was read of it.
struct Incoming {
    stream: Arc<dyn Stream>,
    inbox: Inbox,
    /// Its messages come over other sockets, or none come any more.
    is_detoured: bool,
}

impl Incoming {
    fn new(stream: Arc<dyn Stream>) -> Self {
        Self {
            stream,
            inbox: Inbox::default(),
            is_detoured: false,
        }
    }

    /// Whether the kernel has given it up, and it has no more bytes.
    fn is_spent(&self) -> bool {
        self.ended().is_some() && self.stream.silence().is_err()
    }
}

impl Connected for Incoming {
    fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    fn ended(&self) -> Option<&LinkError> {
        self.inbox.ended.as_ref()
    }

    fn is_silent(&self) -> bool {
        matches!(silence_of(&*self.stream), Ok(Some(_))) && self.stream.unread() == 0
    }
}

/// Where the next message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At its own socket.
    Home,
    /// Among the messages that have come over other sockets.
    Detours,
}

impl Rx {
    pub(super) fn new(
        streams: &[Arc<dyn Stream>],
        geometry: Geometry,
        detours: Option<Detours>,
    ) -> Self {
        Self {
            geometry,
            sockets: streams.iter().cloned().map(Incoming::new).collect(),
            homes: streams.len(),
            next: 0,
            peeked: None,
            missed: false,
            detours,
            ended: None,
        }
    }

    fn home(&self) -> usize {
        (self.next % self.homes as u64) as usize
    }

    /// The expected contents of the next header; an error if the link has ended.
    fn expected(&self) -> Result<Expected, LinkError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        Ok(Expected {
            sequence: self.next,
            slot_bytes: self.geometry.slot_bytes,
            may_detour: self.detours.is_some(),
        })
    }

    /// The next message, if it has come over another socket before.
    fn detoured(&self) -> Option<(u64, &[u8])> {
        self.detours.as_ref()?.get(self.next)
    }

    /// Where the next message is.
    fn find(&mut self, expected: Expected) -> Result<Option<Place>, LinkError> {
        if self.detoured().is_some() {
            return Ok(Some(Place::Detours));
        }
        let home = self.home();
        let Incoming { stream, inbox, .. } = &mut self.sockets[home];
        match inbox.message(&**stream, expected) {
            Ok(Some((header, _))) if header.sequence == self.next => {
                self.sockets[home].is_detoured = false;
                Ok(Some(Place::Home))
            }
            Ok(_) => self.look_elsewhere(expected, None),
            Err(error) => self.look_elsewhere(expected, Some(error)),
        }
    }

    /// Looks for the next message at the other sockets, where it may come over them. `error` is why
    /// it will not come over its own.
    fn look_elsewhere(
        &mut self,
        expected: Expected,
        error: Option<LinkError>,
    ) -> Result<Option<Place>, LinkError> {
        let home = self.home();
        let Incoming {
            inbox, is_detoured, ..
        } = &mut self.sockets[home];
        let may_come = error.as_ref().is_none_or(|error| inbox.is_end(error));
        let Some(detours) = self.detours.as_mut().filter(|_| may_come) else {
            return error.map_or(Ok(None), Err);
        };
        let is_ahead = inbox.is_ahead(expected);
        *is_detoured |= error.is_some() || is_ahead;
        *is_detoured = *is_detoured || detours.is_overdue(self.next);
        if !*is_detoured {
            return Ok(None);
        }
        let spares = detours.spares.take();
        self.sockets.extend(spares.into_iter().map(Incoming::new));
        // A rail that was silent in between may have the message behind later ones.
        let others = (0..self.sockets.len()).filter(|&socket| socket != home || is_ahead);
        for socket in others {
            self.drain(socket, expected)?;
            if self.detoured().is_some() {
                return Ok(Some(Place::Detours));
            }
        }
        let end = end_of(&self.sockets, self.homes);
        if self.detours.as_mut().is_some_and(Detours::may_prune) {
            let spares = self.sockets.split_off(self.homes);
            let open = spares.into_iter().filter(|spare| !spare.is_spent());
            self.sockets.extend(open);
        }
        let has_more = || {
            self.detours
                .as_ref()
                .is_some_and(|one| one.spares.have_come())
        };
        end.filter(|_| !has_more()).map_or(Ok(None), Err)
    }

    /// Takes what another socket has, up to the next message.
    fn drain(&mut self, socket: usize, expected: Expected) -> Result<(), LinkError> {
        let Incoming { stream, inbox, .. } = &mut self.sockets[socket];
        let Some(detours) = &mut self.detours else {
            return Ok(());
        };
        loop {
            match inbox.message(&**stream, expected) {
                Ok(Some((header, payload))) => {
                    let is_next = header.sequence == expected.sequence;
                    if !is_next && detours.is_full() {
                        return Ok(());
                    }
                    detours.put(header, payload);
                    inbox.release();
                    if is_next {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    let is_end = inbox.is_end(&error);
                    return if is_end { Ok(()) } else { Err(error) };
                }
            }
        }
    }

    /// Notes the outcome of a look for the next message.
    fn note<T>(&mut self, found: Result<T, LinkError>, missed: bool) -> Result<T, LinkError> {
        self.missed = missed;
        if let Err(error @ LinkError::Protocol(_)) = &found {
            self.ended = Some(error.clone());
        }
        found
    }

    /// Receives the next message from where messages wait that have come over other sockets.
    fn take_detoured(&mut self, payload: &mut [u8], tag: u64) -> Direct {
        match self.detoured() {
            Some((its_tag, bytes)) if its_tag == tag && bytes.len() == payload.len() => {
                payload.copy_from_slice(bytes);
                self.pass(Place::Detours);
                Direct::Done
            }
            Some(_) => Direct::Unable,
            None => Direct::NotYet,
        }
    }

    /// Goes on to the message after this one.
    fn pass(&mut self, place: Place) {
        if place == Place::Detours
            && let Some(detours) = &mut self.detours
        {
            detours.remove(self.next);
        }
        self.peeked = None;
        self.next += 1;
    }
}

impl LinkRx for Rx {
    fn peek(&mut self) -> Result<Option<Arrival<'_>>, LinkError> {
        let expected = self.expected()?;
        let found = self.find(expected);
        let missed = matches!(found, Ok(None));
        let Some(place) = self.note(found, missed)? else {
            return Ok(None);
        };
        self.peeked = Some(place);
        let home = self.home();
        let (tag, payload) = match place {
            Place::Detours => self.detoured().unzip(),
            Place::Home => {
                let Incoming { stream, inbox, .. } = &mut self.sockets[home];
                let message = inbox.message(&**stream, expected)?;
                message
                    .map(|(header, payload)| (header.tag, payload))
                    .unzip()
            }
        };
        Ok(tag
            .zip(payload)
            .map(|(tag, payload)| Arrival { tag, payload }))
    }

    fn receive_into(&mut self, payload: &mut [u8], tag: u64) -> Result<Direct, LinkError> {
        let expected = self.expected()?;
        if payload.len() < SLOTLESS_BYTES {
            return Ok(Direct::Unable);
        }
        if self.detoured().is_some() {
            return Ok(self.take_detoured(payload, tag));
        }
        let home = self.home();
        let Incoming { stream, inbox, .. } = &mut self.sockets[home];
        let received = inbox.message_into(&**stream, expected, payload, tag);
        let received = match received {
            Ok(Direct::NotYet) => self.look_elsewhere(expected, None),
            Err(error) => self.look_elsewhere(expected, Some(error)),
            Ok(done) => {
                self.sockets[home].is_detoured = false;
                self.missed = false;
                if done == Direct::Done {
                    self.pass(Place::Home);
                }
                return Ok(done);
            }
        };
        let missed = matches!(received, Ok(None));
        self.note(received, missed)?;
        Ok(self.take_detoured(payload, tag))
    }

    fn release(&mut self) {
        if let Some(place) = self.peeked {
            if place == Place::Home {
                let home = self.home();
                self.sockets[home].inbox.release();
            }
            self.pass(place);
        }
    }

    fn arm(&mut self, _wait: &mut Wait) {
        self.missed = false;
    }

    /// Adds only sockets that are being read: messages for later operations would end every wait at
    /// once.
    fn watch(&self, wait: &mut Wait) {
        if !self.missed {
            return;
        }
        let home = self.home();
        let looks_elsewhere = self.sockets[home].is_detoured;
        for (number, socket) in self.sockets.iter().enumerate() {
            if (number == home || looks_elsewhere) && socket.ended().is_none() {
                wait.add(Arc::clone(&socket.stream) as _, PollFlags::IN);
            }
        }
    }
}
