//! Lent messages, which are read in place. The sender announces their address, and the receiver has
//! its device read them, into registered memory of its own or into their slots.
//!
//! Only registered memory is lent or borrowed into. After the link was abandoned
//! ([`Core::abandon`]), the memory may be reused: no peer reads it any more, and no device writes
//! to it.

use std::collections::VecDeque;
use std::ptr::NonNull;

use spark_ccl_verbs::Remote;

use super::{Core, Rail, UNRESERVED};
use crate::LinkError;
use crate::rdma::Registry;
use crate::rdma::link::lent::Lent;

/// Messages shorter than this arrive sooner through a slot than by a read.
pub(in super::super) const LEND_LEAST: usize = 32 << 10;

/// The messages that are being read, from the next one on.
pub(in super::super) type Loans = VecDeque<Loan>;

/// A message that is read from the peer's memory.
#[derive(Debug)]
pub(in super::super) struct Loan {
    lent: Lent,
    /// The destination is the message's slot, not the reader's memory.
    in_slot: bool,
    to: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not requested yet.
    Waiting,
    /// Requested over a rail, by the work request with this id.
    Asked { rail: usize, id: u64 },
    /// Read over this rail; `None` if that has been dropped since.
    Here { by: Option<usize> },
}

/// A message that has been read.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Here {
    pub(in super::super) bytes: usize,
    pub(in super::super) at: u64,
    pub(in super::super) in_slot: bool,
}

/// The destination of lent messages.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Destination {
    /// Each goes to its slot.
    Slots,
    /// The messages with this tag go one after the other to registered memory.
    Room { start: u64, bytes: usize, tag: u64 },
}

impl Core {
    /// Tells the peer where to read the payload; `None` if it cannot be lent, or lending does not
    /// pay.
    pub(in super::super) fn lendable(&self, payload: NonNull<[u8]>) -> Option<Lent> {
        let most = self.outgoing.geometry().slot_bytes;
        let fits =
            Lent::len(self.rails.len()) <= most && (LEND_LEAST..=most).contains(&payload.len());
        if !fits || !self.reads() {
            return None;
        }
        let address = payload.cast::<u8>().as_ptr() as u64;
        // Dropped rails are included: they may be back in use when the message is read.
        let keys = (0..self.rails.len()).map(|rail| {
            let keys = self
                .plan(rail)?
                .keys(&self.registry, address, payload.len())?;
            Some(keys.remote)
        });
        Some(Lent {
            address,
            bytes: payload.len() as u32,
            keys: keys.collect::<Option<_>>()?,
        })
    }

    /// Whether any rail can read; if so, the peer's end of it can, too.
    fn reads(&self) -> bool {
        self.rails().any(|rail| rail.reads.most > 0)
    }

    /// Whether the memory is registered for the rails.
    pub(in super::super) fn reaches(&self, start: u64, bytes: usize) -> bool {
        let mut rails = self.rails();
        rails.all(|rail| rail.plan.keys(&self.registry, start, bytes).is_some())
    }

    /// Whether the next message is lent and has not been read: it arrives only on request.
    pub(in super::super) fn is_awaited(&self) -> bool {
        let first = self.loans.front();
        first.is_some_and(|loan| !loan.is_here())
    }

    /// Requests the next messages, as far as they are lent and have a destination. Returns the next
    /// one, once it has been read.
    pub(in super::super) fn read_lent(
        &mut self,
        destination: Destination,
    ) -> Result<Option<Here>, LinkError> {
        if self.is_awaited() {
            self.poll()?;
        }
        self.take_on(destination)?;
        self.ask();
        let first = self.loans.front();
        let here = first.filter(|loan| loan.is_here());
        Ok(here.map(|loan| Here {
            bytes: loan.lent.bytes as usize,
            at: loan.to,
            in_slot: loan.in_slot,
        }))
    }

    /// Whether there is something to peek at, including an error.
    pub(in super::super) fn has_news(&mut self) -> bool {
        match self.next_to_read() {
            Ok(None) => false,
            Ok(Some(_)) if self.is_awaited() => self.poll().is_err() || !self.is_awaited(),
            _ => true,
        }
    }

    /// Assigns a destination to lent messages that have been announced.
    fn take_on(&mut self, destination: Destination) -> Result<(), LinkError> {
        let mut taken = 0;
        let mut first_tag = None;
        for ahead in 0.. {
            let Some((number, len)) = self.order.arrived(ahead) else {
                break;
            };
            let header = self.incoming.read_header(number)?;
            let tag = *first_tag.get_or_insert(match destination {
                Destination::Room { tag, .. } => tag,
                Destination::Slots => header.tag,
            });
            if !header.is_lent || header.tag != tag {
                break;
            }
            if let Some(known) = self.loans.get(ahead as usize) {
                taken += known.lent.bytes as usize;
                continue;
            }
            let lent = self.lent(number, len)?;
            let bytes = lent.bytes as usize;
            let to = match destination {
                Destination::Slots => self.incoming.payload(number) as u64,
                Destination::Room {
                    start, bytes: room, ..
                } if taken + bytes <= room => start + taken as u64,
                Destination::Room { .. } => break,
            };
            taken += bytes;
            self.loans.push_back(Loan {
                lent,
                in_slot: matches!(destination, Destination::Slots),
                to,
                state: State::Waiting,
            });
        }
        Ok(())
    }

    /// Decodes the message in this slot, which tells where its payload is.
    fn lent(&self, number: u64, len: usize) -> Result<Lent, LinkError> {
        let payload = self.incoming.payload(number);
        // SAFETY: `len` is at most a slot's size, and the slot belongs to this side. A peer that
        // writes there violates the protocol; the contents are checked.
        let payload = unsafe { std::slice::from_raw_parts(payload, len) };
        let most = self.incoming.geometry().slot_bytes;
        Lent::decode(payload, self.rails.len(), most).ok_or_else(|| {
            LinkError::Protocol(format!(
                "message {number} does not say where it is to be read"
            ))
        })
    }

    /// Notes which requests have ended.
    pub(super) fn note_loans(&mut self) {
        for loan in &mut self.loans {
            if let State::Asked { rail: index, id } = loan.state
                && let Some(rail) = &mut self.rails[index]
                && rail.ended.well >= id
            {
                rail.reads.end(loan.lent.bytes);
                loan.state = State::Here { by: Some(index) };
            }
        }
    }

    /// Requests waiting loans over the rails with the fewest bytes being read.
    fn ask(&mut self) {
        let mut problem = None;
        for loan in &mut self.loans {
            if loan.state != State::Waiting {
                continue;
            }
            let rails = self.rails.iter_mut().enumerate();
            let free = rails
                .filter_map(|(index, rail)| Some((index, rail.as_mut()?)))
                .filter(|(_, rail)| rail.reads.has_room() && rail.has_room(UNRESERVED));
            let Some((index, rail)) = free.min_by_key(|(_, rail)| rail.reads.bytes) else {
                break;
            };
            let Some(local) = loan.local(rail, &self.registry) else {
                problem = Some((index, "memory that was borrowed is deregistered".to_owned()));
                break;
            };
            let from = Remote {
                addr: loan.lent.address,
                rkey: loan.lent.keys[index],
            };
            // SAFETY: `loan.to` has room for the loan's bytes, and is left to the device until they
            // have been read: if it is a slot, because that is reserved, and deregistered before it
            // is unmapped; if it is other memory, because `LinkRx::borrow` required it of its
            // caller, until the link is abandoned at the latest, which waits for the device.
            match unsafe { rail.read(loan.to, loan.lent.bytes, local, from) } {
                Ok(id) => loan.state = State::Asked { rail: index, id },
                Err(error) => {
                    problem = Some((index, error.to_string()));
                    break;
                }
            }
        }
        if let Some((rail, problem)) = problem {
            self.drop_rail(rail, problem);
        }
    }

    /// The last read request of a rail; 0 for none.
    pub(super) fn last_asked(&self, of: usize) -> u64 {
        let ids = self.loans.iter().map(|loan| match loan.state {
            State::Asked { rail, id } if rail == of => id,
            _ => 0,
        });
        ids.max().unwrap_or(0)
    }

    /// Marks loans that a failed rail has not delivered: they are requested again.
    pub(super) fn ask_again(&mut self, failed: usize, ended: u64) {
        for loan in &mut self.loans {
            loan.state = match loan.state {
                State::Asked { rail, id } if rail == failed && id > ended => State::Waiting,
                State::Asked { rail, .. } if rail == failed => State::Here { by: None },
                State::Here { by: Some(rail) } if rail == failed => State::Here { by: None },
                other => other,
            };
        }
    }
}

impl Loan {
    fn is_here(&self) -> bool {
        matches!(self.state, State::Here { .. })
    }

    /// The rail that has read it, unless it has been dropped since.
    pub(super) fn reader(&self) -> Option<usize> {
        match self.state {
            State::Here { by } => by,
            _ => None,
        }
    }

    /// The rail's key for the destination.
    fn local(&self, rail: &Rail, registry: &Registry) -> Option<u32> {
        if self.in_slot {
            return Some(rail.lkeys[1]);
        }
        let keys = rail
            .plan
            .keys(registry, self.to, self.lent.bytes as usize)?;
        Some(keys.local)
    }
}
