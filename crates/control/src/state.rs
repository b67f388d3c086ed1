//! The monitor's state, and how it handles frames. One mutex guards it; nothing here blocks.

mod claims;
mod farewell;
mod inquiry;
mod notices;
mod reopening;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

pub(crate) use reopening::Attempt;

use crate::board::Board;
use crate::fault::Fault;
use crate::flood::Seen;
use crate::leave::Leave;
use crate::member_table::MemberTable;
use crate::neighbour::{Neighbour, StreamEnding};
use crate::outbound::Class;
use crate::proposal::Proposal;
use crate::repair::Redial;
use crate::strays::{Stray, Strays};
use crate::view::View;
use crate::wire::{self, Failure, Flood, Frame, News};

pub(crate) struct ControlState {
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) names: Arc<[Arc<str>]>,
    pub(crate) me: u32,
    /// In place of neighbours, where all ranks are in this process; `None` also once this rank has
    /// left.
    board: Option<Arc<Board>>,
    seen: Seen,
    tables: HashMap<u64, MemberTable>,
    strays: Strays,
    departures: HashMap<u32, Departure>,
    /// The means by which broken streams are reopened; `None` if they are not.
    redial: Option<Redial>,
    /// When this rank last sent heartbeats.
    last_heartbeat: Option<Instant>,
    /// How many notices this rank has originated; the number of the last one.
    notices_sent: u64,
    /// When the monitor thread wakes up if nothing happens before.
    wakes_at: Option<Instant>,
}

/// How a rank left the world.
#[derive(Clone)]
enum Departure {
    Goodbye,
    /// Its process ended. That is not sure if only its host's refusals say so.
    Died {
        is_sure: bool,
    },
    Lost(String),
}

impl Departure {
    /// Whether the rank has ended for sure.
    fn is_sure(&self) -> bool {
        matches!(self, Self::Goodbye | Self::Died { is_sure: true })
    }
}

impl ControlState {
    pub(crate) fn new(
        me: u32,
        names: Arc<[Arc<str>]>,
        neighbours: Vec<Neighbour>,
        redial: Option<Redial>,
    ) -> Self {
        Self {
            seen: Seen::new(names.len()),
            neighbours,
            names,
            me,
            board: None,
            tables: HashMap::new(),
            strays: Strays::default(),
            departures: HashMap::new(),
            redial,
            last_heartbeat: None,
            notices_sent: 0,
            wakes_at: None,
        }
    }

    /// A rank that needs no streams: all ranks are in this process.
    pub(crate) fn on_board(me: u32, names: Arc<[Arc<str>]>, board: Arc<Board>) -> Self {
        Self {
            board: Some(board),
            ..Self::new(me, names, Vec::new(), None)
        }
    }

    /// Reads from a neighbour whose stream is ready, and handles what has arrived.
    pub(crate) fn serve(&mut self, neighbour: usize, now: Instant) {
        let (frames, end) = self.neighbours[neighbour].read(self.names.len() as u32, now);
        self.handle_frames(neighbour, frames, now);
        // Sends acknowledgements, if any are due.
        self.neighbours[neighbour].flush();
        if let Some(end) = end {
            self.ended(neighbour, end, now);
        }
    }

    /// Handles the frames of a neighbour.
    pub(crate) fn handle_frames(&mut self, neighbour: usize, frames: Vec<Frame>, now: Instant) {
        for frame in frames {
            match frame {
                Frame::Flood(flood) => self.receive(Some(neighbour), &flood, now),
                Frame::Notice { to, notice } => self.route_notice(to, notice, now),
                Frame::Ack { .. } | Frame::Heartbeat(_) => {}
            }
        }
    }

    /// Handles the posts of ranks of this process, unless this one has left.
    pub(crate) fn handle_posts(&mut self, frames: &[Frame], now: Instant) {
        if self.board.is_none() {
            return;
        }
        for frame in frames {
            match frame {
                Frame::Flood(flood) => self.receive(None, flood, now),
                Frame::Notice { to, notice } if *to == self.me => {
                    self.route_notice(*to, notice.clone(), now);
                }
                Frame::Notice { .. } | Frame::Ack { .. } | Frame::Heartbeat(_) => {}
            }
        }
    }

    fn receive(&mut self, from: Option<usize>, flood: &Flood, now: Instant) {
        if let Some(neighbour) = from
            && flood.news == News::Goodbye
            && flood.origin == self.neighbours[neighbour].peer
        {
            // The leaving rank waits for this confirmation, even if its goodbye came here by way of
            // another rank first.
            let hears = self.hears(now);
            self.neighbours[neighbour].heartbeat(&hears, now);
        }
        // This rank's own floods may come back. They are dropped, whatever their number.
        let own = flood.origin == self.me;
        if own || !self.seen.is_new(flood) || self.is_known(&flood.news) {
            return;
        }
        self.send(flood, from);
        self.deliver(flood);
    }

    /// Whether `news` is a death that is already known with the same certainty. A death that
    /// several ranks notice is forwarded once, or twice where some were not sure.
    fn is_known(&self, news: &News) -> bool {
        let News::Gone { rank, failure } = news else {
            return false;
        };
        let known = self.departures.get(rank);
        known.is_some_and(|known| known.is_sure() || *failure != Failure::Died)
    }

    fn ended(&mut self, index: usize, end: StreamEnding, now: Instant) {
        if self.start_repair(index, &end, now) {
            return;
        }
        let neighbour = &mut self.neighbours[index];
        neighbour.is_reading = false;
        let failure = match end {
            StreamEnding::Closed => {
                neighbour.close();
                Failure::Died
            }
            // Not closed: the neighbour may be alive, and should receive the reason, not a mere end
            // of the stream.
            StreamEnding::Failed(error) | StreamEnding::Garbled(error) => Failure::Lost(error),
        };
        let peer = neighbour.peer;
        self.report_gone(peer, failure);
    }

    /// Floods that a neighbour is gone.
    fn report_gone(&mut self, peer: u32, failure: Failure) {
        let rank = peer;
        let news = News::Gone {
            rank,
            failure: failure.clone(),
        };
        if !self.is_known(&news) {
            self.originate(news);
            self.handle_gone(self.me, rank, failure);
        }
    }

    /// Floods news from this rank.
    fn originate(&mut self, news: News) {
        let flood = self.seen.originate(self.me, news);
        self.send(&flood, None);
    }

    fn send(&mut self, flood: &Flood, except: Option<usize>) {
        if let Some(board) = &self.board {
            // All ranks have what is posted: nobody forwards it.
            if flood.origin == self.me {
                board.post(Frame::Flood(flood.clone()));
            }
            return;
        }
        let frame: Arc<[u8]> = wire::encode(&Frame::Flood(flood.clone())).into();
        let class = match &flood.news {
            News::Leave { .. } => Class::Bounded,
            News::Goodbye | News::Gone { .. } | News::Fault { .. } | News::Proposal { .. } => {
                Class::Unbounded
            }
        };
        for (index, neighbour) in self.neighbours.iter_mut().enumerate() {
            if Some(index) != except && !neighbour.is_done_writing() {
                neighbour.outbound.push(class, &frame);
                neighbour.flush();
            }
        }
    }

    fn deliver(&mut self, flood: &Flood) {
        match &flood.news {
            News::Goodbye => self.record_departure(flood.origin, &Departure::Goodbye),
            News::Gone { rank, failure } => self.handle_gone(flood.origin, *rank, failure.clone()),
            News::Leave { context, .. }
            | News::Fault { context, .. }
            | News::Proposal { context, .. } => {
                if self.tables.contains_key(context) {
                    self.deliver_to(*context, flood);
                } else {
                    self.strays.keep(*context, Stray::Flood(flood.clone()));
                }
            }
        }
    }

    fn deliver_to(&mut self, context: u64, flood: &Flood) {
        let Some(table) = self.tables.get_mut(&context) else {
            return;
        };
        let Some(rank) = table.view.rank(flood.origin) else {
            return;
        };
        match &flood.news {
            News::Leave { leave, .. } => {
                let fault = table.leave(rank, (**leave).clone());
                self.raise_some(context, fault);
            }
            News::Fault { fault, .. } => {
                table.view.fail(table.view.localise(fault.clone()));
            }
            News::Proposal { proposal, .. } => {
                // The control streams keep the order of its frames.
                table.proposals.insert(flood.origin, proposal.clone());
            }
            News::Goodbye | News::Gone { .. } => {}
        }
    }

    /// Records that `rank` is gone, as `noticed_by` has found.
    fn handle_gone(&mut self, noticed_by: u32, rank: u32, failure: Failure) {
        let name = |rank: u32| Arc::clone(&self.names[rank as usize]);
        let departure = if rank == self.me {
            let error = match failure {
                Failure::Died | Failure::Refused => "it was closed".into(),
                Failure::Lost(error) => error,
            };
            Departure::Lost(format!(
                "{} lost its control connection to this process: {error}",
                name(noticed_by)
            ))
        } else {
            match failure {
                Failure::Died => Departure::Died { is_sure: true },
                Failure::Refused => Departure::Died { is_sure: false },
                Failure::Lost(error) => Departure::Lost(format!(
                    "the control connection between it and {} failed: {error}",
                    name(noticed_by)
                )),
            }
        };
        self.record_departure(rank, &departure);
    }

    fn record_departure(&mut self, rank: u32, departure: &Departure) {
        let known = self.departures.get(&rank);
        let is_surer = |known: &Departure| departure.is_sure() && !known.is_sure();
        if !known.is_none_or(is_surer) {
            return;
        }
        let is_first = self.departures.insert(rank, departure.clone()).is_none();
        if !is_first {
            // The communicators have their faults already.
            return;
        }
        let faults = self.tables.iter_mut().filter_map(|(&context, table)| {
            fault_of(table, rank, departure).map(|fault| (context, fault))
        });
        let faults: Vec<(u64, Fault)> = faults.collect();
        for (context, fault) in faults {
            self.fail(context, fault);
        }
    }

    /// Starts to follow a communicator, and applies what is known of it already.
    pub(crate) fn watch(&mut self, view: &Arc<View>, now: Instant) {
        let context = view.context;
        if self
            .tables
            .insert(context, MemberTable::new(Arc::clone(view)))
            .is_some()
        {
            spark_ccl_log::warn!("a second communicator with context {context} replaces the first");
        }
        // Before the departures: a rank that left the world had left the communicator earlier.
        for stray in self.strays.take(context) {
            match stray {
                Stray::Flood(flood) => self.deliver_to(context, &flood),
                Stray::Notice(notice) => self.receive_notice(notice, now),
            }
        }
        if let Some(table) = self.tables.get_mut(&context) {
            let departures = self.departures.iter();
            let faults =
                departures.filter_map(|(&rank, departure)| fault_of(table, rank, departure));
            let faults: Vec<Fault> = faults.collect();
            for fault in faults {
                self.fail(context, fault);
            }
        }
    }

    pub(crate) fn unwatch(&mut self, view: &Arc<View>) {
        let context = view.context;
        if self
            .tables
            .get(&context)
            .is_some_and(|table| Arc::ptr_eq(&table.view, view))
        {
            self.tables.remove(&context);
            self.strays.close(context);
        }
    }

    pub(crate) fn table(&self, context: u64) -> Option<&MemberTable> {
        self.tables.get(&context)
    }

    pub(crate) fn inspect(&mut self, context: u64, sequence: u64, signature: [u64; 2]) {
        let fault = self
            .tables
            .get(&context)
            .and_then(|table| table.inspect(sequence, signature));
        self.raise_some(context, fault);
    }

    /// Tells all ranks that this one leaves a communicator, unless it has said as much before.
    pub(crate) fn leave_once(&mut self, view: &View, leave: Leave) {
        if view.begins_to_leave(leave.is_in_flight) {
            self.leave(view.context, leave);
        }
    }

    /// Like [`leave_once`](Self::leave_once); also ends this rank's own calls.
    pub(crate) fn leave_now(&mut self, view: &View, leave: Leave) {
        let (last_sequence, sequence) = (leave.last_sequence, leave.last_sequence + 1);
        let words = view.history.get(sequence);
        let fault = Fault::Left {
            rank: view.me.clone(),
            last_sequence,
            sequence,
            words: words.map_or_else(|| "any".into(), view.describe),
        };
        // This comes first, since only the first leave counts: `fail` would make this rank leave
        // with a leave of its own.
        self.leave_once(view, leave);
        self.fail(view.context, fault);
    }

    pub(crate) fn leave(&mut self, context: u64, leave: Leave) {
        let leave = Box::new(leave);
        self.originate(News::Leave { context, leave });
    }

    /// Tells all ranks how this one wants to go on after a communicator.
    pub(crate) fn propose(&mut self, context: u64, proposal: Proposal) {
        self.originate(News::Proposal { context, proposal });
    }

    /// The ranks of the world that have left it, in order or not.
    pub(crate) fn gone(&self) -> BTreeSet<u32> {
        self.departures.keys().copied().collect()
    }

    /// The ranks of [`gone`](Self::gone) that have ended for sure.
    pub(crate) fn ended_ranks(&self) -> BTreeSet<u32> {
        let departures = self.departures.iter();
        let ended = departures.filter(|(_, how)| how.is_sure());
        ended.map(|(&rank, _)| rank).collect()
    }

    /// Whether a rank of the world has died, or is lost.
    pub(crate) fn is_lost(&self, world: u32) -> bool {
        let departure = self.departures.get(&world);
        departure.is_some_and(|how| !matches!(how, Departure::Goodbye))
    }

    /// Records a fault that this rank found, and floods it unless the communicator has a fault
    /// already.
    pub(crate) fn raise(&mut self, context: u64, fault: Fault) {
        // A departure concerns only ranks that still need the one that left, and they find that out
        // themselves.
        let spreads = !fault.is_departure();
        if self.fail(context, fault.clone()) && spreads {
            self.originate(News::Fault { context, fault });
        }
    }

    /// Records a fault. Returns whether it is the first of this communicator.
    ///
    /// A rank that needs a rank that has left or ended takes part in nothing further, and says so:
    /// others lack its unfinished calls.
    fn fail(&mut self, context: u64, fault: Fault) -> bool {
        let Some(table) = self.tables.get(&context) else {
            return false;
        };
        let view = Arc::clone(&table.view);
        let is_first = view.fail(fault.clone());
        if is_first && fault.is_departure() {
            let cause = Some(fault);
            let leave = Leave::after(view.finished());
            self.leave_once(&view, Leave { cause, ..leave });
        }
        is_first
    }

    fn raise_some(&mut self, context: u64, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.raise(context, fault);
        }
    }
}

/// The fault of one communicator by a departure from the world, if it needs that rank.
fn fault_of(table: &mut MemberTable, world: u32, departure: &Departure) -> Option<Fault> {
    let view = Arc::clone(&table.view);
    let rank = view.rank(world)?;
    match departure {
        Departure::Goodbye => table.leave_world(rank),
        // A rank that left the communicator before is not needed any more. Its host still delivers
        // the data that it had sent, unless the host is lost, too.
        Departure::Died { .. } if table.has_left(rank).is_some() => None,
        Departure::Lost(_) if table.has_left(rank).is_some() && !view.is_in_call() => None,
        Departure::Died { .. } => {
            let rank = view.member(world);
            end(table, Fault::Died { rank })
        }
        Departure::Lost(error) => {
            let (rank, error) = (view.member(world), error.clone());
            end(table, Fault::Lost { rank, error })
        }
    }
}

/// Handles the end of a member that has not left. Returns a fault if this rank is in a collective,
/// or is itself the lost member. Else the fault is kept for the first call that needs the member.
fn end(table: &mut MemberTable, fault: Fault) -> Option<Fault> {
    let view = &table.view;
    let member = fault.ranks().next()?.rank;
    if view.is_in_call() || member == view.me.rank {
        return Some(fault);
    }
    table.end_between_calls(member as u32, fault);
    None
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
