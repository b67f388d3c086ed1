//! What the monitor knows, and what it does with news. One lock guards it; nothing here blocks.

mod farewell;
mod repair;
mod telling;

pub(crate) use repair::Attempt;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::fault::Fault;
use crate::flood::Seen;
use crate::link::{End, Link};
use crate::outbound::Class;
use crate::repair::Redial;
use crate::roll::Roll;
use crate::strays::{Stray, Strays};
use crate::view::View;
use crate::wire::{self, Flood, Frame, News};

pub(crate) struct State {
    pub(crate) links: Vec<Link>,
    pub(crate) names: Arc<[Arc<str>]>,
    pub(crate) me: u32,
    seen: Seen,
    rolls: HashMap<u64, Roll>,
    strays: Strays,
    gone: HashMap<u32, Departure>,
    /// How streams are made anew, where they are.
    redial: Option<Redial>,
    /// When this rank last gave a sign of life.
    beaten: Option<Instant>,
    /// How much this rank has told.
    telling: u64,
    /// Until when the monitor sleeps, unless something happens.
    asleep_until: Option<Instant>,
}

/// How a rank left the world.
#[derive(Clone)]
enum Departure {
    Goodbye,
    Died,
    Lost(String),
}

impl State {
    pub(crate) fn new(
        me: u32,
        names: Arc<[Arc<str>]>,
        links: Vec<Link>,
        redial: Option<Redial>,
    ) -> Self {
        Self {
            seen: Seen::new(names.len()),
            links,
            names,
            me,
            rolls: HashMap::new(),
            strays: Strays::default(),
            gone: HashMap::new(),
            redial,
            beaten: None,
            telling: 0,
            asleep_until: None,
        }
    }

    /// Reads from a neighbour whose stream has something.
    pub(crate) fn serve(&mut self, link: usize, now: Instant) {
        let (frames, end) = self.links[link].read(self.names.len() as u32, now);
        self.digest(link, frames, now);
        // Acknowledgements, if any are due.
        self.links[link].flush();
        if let Some(end) = end {
            self.ended(link, end, now);
        }
    }

    /// Takes note of what a neighbour has sent.
    pub(crate) fn digest(&mut self, link: usize, frames: Vec<Frame>, now: Instant) {
        for frame in frames {
            match frame {
                Frame::Flood(flood) => self.receive(link, &flood, now),
                Frame::Told { to, told } => self.hear(to, told, now),
                Frame::Ack { .. } | Frame::Beat(_) => {}
            }
        }
    }

    fn receive(&mut self, link: usize, flood: &Flood, now: Instant) {
        if flood.news == News::Goodbye && flood.origin == self.links[link].peer {
            // It stays until it hears that its goodbye was heard, from whomever that came first.
            let hears = self.hears(now);
            self.links[link].beat(&hears, now);
        }
        // What comes back from this rank is no news to it, whatever number it bears.
        let own = flood.origin == self.me;
        if own || !self.seen.is_new(flood) || self.is_known(&flood.news) {
            return;
        }
        self.send(flood, Some(link));
        self.deliver(flood);
    }

    /// A death that several notice is passed on once.
    fn is_known(&self, news: &News) -> bool {
        matches!(news, News::Gone { rank, .. } if self.gone.contains_key(rank))
    }

    fn ended(&mut self, index: usize, end: End, now: Instant) {
        if self.mend(index, &end, now) {
            return;
        }
        let link = &mut self.links[index];
        link.open = false;
        let error = match end {
            End::Closed => {
                link.close();
                None
            }
            // Not closed: the neighbour may live, and is to hear the reason, not a mere end.
            End::Failed(error) | End::Garbled(error) => Some(error),
        };
        let peer = link.peer;
        self.lose(peer, error);
    }

    /// A neighbour cannot be heard any more.
    fn lose(&mut self, peer: u32, error: Option<String>) {
        if !self.gone.contains_key(&peer) {
            self.originate(News::Gone {
                rank: peer,
                error: error.clone(),
            });
            self.gone(self.me, peer, error);
        }
    }

    /// News from this rank.
    fn originate(&mut self, news: News) {
        let flood = self.seen.originate(self.me, news);
        self.send(&flood, None);
    }

    fn send(&mut self, flood: &Flood, except: Option<usize>) {
        let frame: Arc<[u8]> = wire::encode(&Frame::Flood(flood.clone())).into();
        let class = match &flood.news {
            News::Leave { .. } => Class::Departure,
            News::Goodbye | News::Gone { .. } | News::Fault { .. } => Class::Fault,
        };
        for (index, link) in self.links.iter_mut().enumerate() {
            if Some(index) != except && !link.closed() {
                link.outbound.push(class, &frame);
                link.flush();
            }
        }
    }

    fn deliver(&mut self, flood: &Flood) {
        match &flood.news {
            News::Goodbye => self.departed(flood.origin, &Departure::Goodbye),
            News::Gone { rank, error } => self.gone(flood.origin, *rank, error.clone()),
            News::Leave { context, .. } | News::Fault { context, .. } => {
                if self.rolls.contains_key(context) {
                    self.deliver_to(*context, flood);
                } else {
                    self.strays.keep(*context, Stray::Flood(flood.clone()));
                }
            }
        }
    }

    fn deliver_to(&mut self, context: u64, flood: &Flood) {
        let Some(roll) = self.rolls.get_mut(&context) else {
            return;
        };
        let Some(rank) = roll.view.rank(flood.origin) else {
            return;
        };
        match &flood.news {
            News::Leave { last_sequence, .. } => {
                let fault = roll.leave(rank, *last_sequence);
                self.raise_some(context, fault);
            }
            News::Fault { fault, .. } => {
                roll.view.fail(roll.view.localise(fault.clone()));
            }
            News::Goodbye | News::Gone { .. } => {}
        }
    }

    /// `noticed_by` lost its stream to `rank`.
    fn gone(&mut self, noticed_by: u32, rank: u32, error: Option<String>) {
        let name = |rank: u32| Arc::clone(&self.names[rank as usize]);
        let departure = if rank == self.me {
            let error = error.unwrap_or_else(|| "it was closed".into());
            Departure::Lost(format!(
                "{} lost its control connection to this process: {error}",
                name(noticed_by)
            ))
        } else {
            match error {
                None => Departure::Died,
                Some(error) => Departure::Lost(format!(
                    "the control connection between it and {} failed: {error}",
                    name(noticed_by)
                )),
            }
        };
        self.departed(rank, &departure);
    }

    fn departed(&mut self, rank: u32, departure: &Departure) {
        if self.gone.contains_key(&rank) {
            return;
        }
        self.gone.insert(rank, departure.clone());
        self.rolls
            .values_mut()
            .for_each(|roll| apply(roll, rank, departure));
    }

    /// Starts to follow a communicator, with what is already known of it.
    pub(crate) fn watch(&mut self, view: &Arc<View>, now: Instant) {
        let context = view.context;
        if self
            .rolls
            .insert(context, Roll::new(Arc::clone(view), now))
            .is_some()
        {
            tracing::warn!(
                context,
                "a second communicator with the same context replaces the first"
            );
        }
        // First, since those who left the world had left the communicator before.
        for stray in self.strays.take(context) {
            match stray {
                Stray::Flood(flood) => self.deliver_to(context, &flood),
                Stray::Told(told) => self.listen(told, now),
            }
        }
        if let Some(roll) = self.rolls.get_mut(&context) {
            self.gone
                .iter()
                .for_each(|(&rank, departure)| apply(roll, rank, departure));
        }
    }

    pub(crate) fn unwatch(&mut self, view: &Arc<View>) {
        let context = view.context;
        if self
            .rolls
            .get(&context)
            .is_some_and(|roll| Arc::ptr_eq(&roll.view, view))
        {
            self.rolls.remove(&context);
            self.strays.close(context);
        }
    }

    pub(crate) fn roll(&self, context: u64) -> Option<&Roll> {
        self.rolls.get(&context)
    }

    pub(crate) fn inspect(&mut self, context: u64, sequence: u64, signature: [u64; 2]) {
        let fault = self
            .rolls
            .get(&context)
            .and_then(|roll| roll.inspect(sequence, signature));
        self.raise_some(context, fault);
    }

    pub(crate) fn leave(&mut self, context: u64, last_sequence: u64) {
        self.originate(News::Leave {
            context,
            last_sequence,
        });
    }

    /// This rank's own fault: kept and passed on, unless there was one before.
    pub(crate) fn raise(&mut self, context: u64, fault: Fault) {
        let first = self
            .rolls
            .get(&context)
            .is_some_and(|roll| roll.view.fail(fault.clone()));
        // That a rank left concerns only those who still need it, and they know it themselves.
        if first && !matches!(fault, Fault::Left { .. }) {
            self.originate(News::Fault { context, fault });
        }
    }

    fn raise_some(&mut self, context: u64, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.raise(context, fault);
        }
    }
}

/// A departure from the world, as it concerns one communicator.
fn apply(roll: &mut Roll, world: u32, departure: &Departure) {
    let view = Arc::clone(&roll.view);
    let Some(rank) = view.rank(world) else { return };
    let fault = match departure {
        Departure::Goodbye => roll.leave(rank, 0),
        // Whoever had left properly before owed nothing any more.
        Departure::Died => roll.left(rank).is_none().then(|| Fault::Died {
            rank: view.member(world),
        }),
        Departure::Lost(error) => Some(Fault::Lost {
            rank: view.member(world),
            error: error.clone(),
        }),
    };
    if let Some(fault) = fault {
        view.fail(fault);
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
