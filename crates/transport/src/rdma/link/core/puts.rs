//! Puts: copies from registered memory here into memory that the peer has opened. The peer does
//! nothing for them: a part that comes last tells it that the others are there.
//!
//! The parts of a put are writes of one queue pair, which become visible in their order. A rail
//! that fails may deliver its writes at any time until the peer has stopped it, too. Other rails do
//! its puts again only after that, when the peer's report has come. Otherwise a late write could
//! replace what the peer has got in the same place since. Writing the same bytes twice does no
//! harm: until a put has ended here, its user puts nothing else in its place.

use std::collections::VecDeque;

use spark_ccl_verbs::Piece;

use super::{Core, Rail, UNRESERVED, unload};
use crate::rdma::Registry;
use crate::rdma::link::opened::Opened;
use crate::rdma::link::order::Load;
use crate::rdma::link::rail::PutRequest;
use crate::{LinkError, PUT_PARTS, PutPart};

/// The puts of an end of a link.
#[derive(Debug, Default)]
pub(in super::super) struct Puts {
    /// The memory that the peer has opened.
    opened: Vec<Opened>,
    /// The number of the last put.
    last: u64,
    under_way: Vec<Put>,
    ended: VecDeque<u64>,
    /// Both halves of this end were dropped.
    is_closed: bool,
}

#[derive(Debug)]
struct Put {
    number: u64,
    /// The first `count` of these.
    parts: [PutPart; PUT_PARTS],
    count: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Posted over a rail; the work request with this id is its last one.
    Posted { rail: usize, id: u64 },
    /// The rail was stopped here before the put had ended.
    Lost { rail: usize },
    /// The peer has stopped that rail, too.
    Again,
}

impl Core {
    /// Describes these ranges to the peer, which writes into them; empty if one is not registered.
    pub(in super::super) fn opening(&self, ranges: &[(u64, usize)]) -> Vec<u8> {
        let open = |&(start, bytes): &(u64, usize)| {
            // Dropped rails are included: they may return.
            let keys = (0..self.rails.len()).map(|rail| {
                let keys = self.plan(rail)?.keys(&self.registry, start, bytes)?;
                Some(keys.remote)
            });
            let keys = keys.collect::<Option<_>>()?;
            let bytes = bytes as u64;
            Some(Opened { start, bytes, keys }.encode())
        };
        let all: Option<Vec<_>> = ranges.iter().map(open).collect();
        all.unwrap_or_default().concat()
    }

    /// Takes the peer's opening.
    pub(in super::super) fn take_opening(&mut self, told: &[u8]) -> Result<(), LinkError> {
        let opened = Opened::decode_all(told, self.rails.len());
        // Puts under way name ranges of the first opening.
        let opened = opened.filter(|_| self.puts.opened.is_empty());
        self.puts.opened = opened.ok_or_else(|| {
            LinkError::Protocol("the peer does not say, once, where to write".to_owned())
        })?;
        Ok(())
    }

    /// Begins with a put, if a rail has room for it.
    ///
    /// # Safety
    /// Nothing writes the parts until the put has ended, or the link was abandoned or dropped.
    pub(in super::super) unsafe fn put(
        &mut self,
        parts: &[PutPart],
    ) -> Result<Option<u64>, LinkError> {
        if self.failed.is_some() || self.order.receiver_gone {
            return self.poll().and(Err(LinkError::Closed));
        }
        self.check_parts(parts)?;
        let Some(rail) = self.rail_for_put(parts.len()) else {
            return Ok(None);
        };
        let number = self.puts.last + 1;
        self.puts.last = number;
        self.puts.under_way.push(Put::new(number, parts));
        // SAFETY: nothing writes the parts until the put has ended, or the link was abandoned or
        // dropped, as this function requires.
        unsafe { self.post_put(self.puts.under_way.len() - 1, rail) };
        Ok(Some(number))
    }

    fn check_parts(&self, parts: &[PutPart]) -> Result<(), LinkError> {
        let opened = &self.puts.opened;
        let fits = |part: &PutPart| {
            opened
                .get(part.range)
                .is_some_and(|range| range.holds(part))
        };
        if !(1..=PUT_PARTS).contains(&parts.len()) || !parts.iter().all(fits) {
            return Err(LinkError::Misuse(format!(
                "a put of {parts:?} into {} ranges that the peer has opened",
                opened.len()
            )));
        }
        let mut parts = parts.iter();
        match parts.find(|part| !self.reaches(part.from, part.bytes as usize)) {
            None => Ok(()),
            Some(part) => Err(LinkError::Misuse(format!(
                "a put of {part:?} out of memory that is not registered"
            ))),
        }
    }

    /// The rail with the fewest bytes in flight that has room for a put.
    fn rail_for_put(&self, parts: usize) -> Option<usize> {
        let live = self.rails.iter().enumerate();
        let live = live.filter_map(|(index, rail)| Some((index, rail.as_ref()?)));
        let free = live.filter(|(_, rail)| rail.has_room(UNRESERVED - 1 + parts as u64));
        free.min_by_key(|(_, rail)| rail.load)
            .map(|(index, _)| index)
    }

    /// Posts a put over a rail in use.
    ///
    /// # Safety
    /// Nothing writes the parts until the put has ended, or the link was abandoned or dropped.
    unsafe fn post_put(&mut self, place: usize, index: usize) {
        let (puts, rails) = (&mut self.puts, &mut self.rails);
        let (put, Some(rail)) = (&mut puts.under_way[place], &mut rails[index]) else {
            return;
        };
        // Where the rail fails, the put waits for the end of requests that may have been posted.
        let id = rail.posted + put.count as u64;
        put.state = State::Posted { rail: index, id };
        let problem = match put.requests(rail, index, &self.registry, &puts.opened) {
            None => Some("memory of a put is not registered".to_owned()),
            // SAFETY: nothing writes the parts until the put has ended or the link was abandoned or
            // dropped, as this function requires. All of these come after the requests have ended,
            // or their queue pair was destroyed (`stop_rail`).
            Some(requests) => match unsafe { rail.put(&requests[..put.count]) } {
                Ok(()) => None,
                Err(error) => Some(error.to_string()),
            },
        };
        rail.load += put.bytes();
        if let Some(problem) = problem {
            self.drop_rail(index, problem);
        }
    }

    /// Notes which puts have ended.
    pub(super) fn note_puts(&mut self) {
        let Self { puts, rails, .. } = self;
        let Puts {
            under_way, ended, ..
        } = puts;
        under_way.retain(|put| {
            let State::Posted { rail, id } = put.state else {
                return true;
            };
            let is_over = rails[rail]
                .as_ref()
                .is_some_and(|live| live.ended.well >= id);
            if is_over {
                let bytes = put.bytes();
                unload(rails, Load { rail, bytes });
                ended.push_back(put.number);
            }
            !is_over
        });
    }

    /// Takes a put that was found to have ended.
    pub(in super::super) fn ended_put(&mut self) -> Option<u64> {
        self.puts.ended.pop_front()
    }

    /// The last request of a rail for a put; 0 for none.
    pub(super) fn last_put(&self, of: usize) -> u64 {
        let ids = self.puts.under_way.iter().map(|put| match put.state {
            State::Posted { rail, id } if rail == of => id,
            _ => 0,
        });
        ids.max().unwrap_or(0)
    }

    /// Notes that a rail was stopped here, whose requests up to `ended` have succeeded.
    pub(super) fn lose_puts(&mut self, of: usize, ended: u64) {
        let puts = &mut self.puts;
        puts.under_way.retain_mut(|put| {
            let State::Posted { rail, id } = put.state else {
                return true;
            };
            if rail != of {
                return true;
            }
            put.state = State::Lost { rail };
            if id <= ended {
                puts.ended.push_back(put.number);
            }
            id > ended && !puts.is_closed
        });
    }

    /// Notes that the peer, too, has stopped a rail: nothing of it arrives any more.
    pub(in super::super) fn free_puts(&mut self, of: usize) {
        for put in &mut self.puts.under_way {
            if put.state == (State::Lost { rail: of }) {
                put.state = State::Again;
            }
        }
    }

    /// Repeats no put any more, since nobody at this end waits for one. Posted ones still end, so a
    /// rail that is stopped waits for its device.
    pub(super) fn close_puts(&mut self) {
        let puts = &mut self.puts;
        puts.is_closed = true;
        let is_posted = |put: &Put| matches!(put.state, State::Posted { .. });
        puts.under_way.retain(is_posted);
    }

    /// Whether puts are to be done again.
    pub(super) fn has_lost_puts(&self) -> bool {
        self.puts.next_again().is_some()
    }

    /// Does puts of failed rails again, as far as the others have room for them.
    pub(in super::super) fn repeat_puts(&mut self) {
        // Looks each time: a rail that fails on the way changes which puts there are.
        while self.failed.is_none()
            && let Some(place) = self.puts.next_again()
        {
            let parts = self.puts.under_way[place].count;
            let Some(rail) = self.rail_for_put(parts) else {
                return;
            };
            // SAFETY: the put has not ended, and this end was neither abandoned, which fails it,
            // nor dropped, after which no put waits to be done again. Until then nothing writes the
            // parts, as `put` requires.
            unsafe { self.post_put(place, rail) };
        }
    }
}

impl Puts {
    /// The place of a put that is to be done again.
    fn next_again(&self) -> Option<usize> {
        let mut puts = self.under_way.iter();
        puts.position(|put| put.state == State::Again)
    }
}

impl Put {
    /// A put of at least one part, and at most [`PUT_PARTS`].
    fn new(number: u64, of: &[PutPart]) -> Self {
        let mut parts = [of[0]; PUT_PARTS];
        parts[..of.len()].copy_from_slice(of);
        Self {
            number,
            parts,
            count: of.len(),
            state: State::Again,
        }
    }

    fn parts(&self) -> &[PutPart] {
        &self.parts[..self.count]
    }

    fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| u64::from(part.bytes)).sum()
    }

    /// Its requests over a rail, the first of which are for its parts; `None` if a part is not
    /// registered.
    fn requests(
        &self,
        rail: &Rail,
        index: usize,
        registry: &Registry,
        opened: &[Opened],
    ) -> Option<[PutRequest; PUT_PARTS]> {
        let request = |part: &PutPart| -> Option<PutRequest> {
            let keys = rail.plan.keys(registry, part.from, part.bytes as usize)?;
            Some(PutRequest {
                piece: Piece::new(part.from, part.bytes, keys.local),
                to: opened[part.range].place(part, index),
                may_be_inline: keys.is_of_host,
            })
        };
        let mut requests = [request(&self.parts[0])?; PUT_PARTS];
        for (to, part) in requests.iter_mut().zip(self.parts()).skip(1) {
            *to = request(part)?;
        }
        Some(requests)
    }
}
