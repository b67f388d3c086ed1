//! Runs the schedules of all ranks together, over links that hold a limited number of messages.
//!
//! Each rank and channel is a sequential process. It blocks on FIFO links. Each of them has one
//! sender and one receiver. The outcome of such networks does not depend on the order in which
//! their processes run, so one run without a deadlock proves that no order deadlocks.

use std::collections::{HashMap, VecDeque};

use crate::defect::{Defect, Stuck};
use crate::step::{Kind, Rank, Step};
use crate::steps::Steps;

/// How much a link holds until its receiver takes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The most elements of one message, at least 1.
    pub slice: u64,
    /// The most messages in flight, at least 1.
    pub slots: usize,
}

impl Window {
    /// The smallest window for which schedules of this `chunk` are made: two chunks.
    pub(crate) fn for_chunk(chunk: u64, slice: u64) -> Self {
        let slice = slice.clamp(1, chunk.max(1));
        Self {
            slice,
            slots: chunk.max(1).div_ceil(slice).saturating_mul(2) as usize,
        }
    }
}

/// The counts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The non-empty steps of all ranks.
    pub steps: u64,
    /// Messages between all ranks.
    pub messages: u64,
}

/// One channel of one rank: identifies a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) rank: Rank,
    pub(crate) channel: u32,
}

/// A part of a step's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The effects of a run's steps.
pub(crate) trait Model {
    type Message;

    /// Does one slice of a step (all of it, if the step moves no message): takes the received
    /// message, and returns the one to send. The halves of a [`Kind::SendRecv`] are passed as
    /// separate steps.
    fn act(
        &mut self,
        at: ProcessId,
        step: &Step,
        slice: Slice,
        received: Option<Self::Message>,
    ) -> Result<Option<Self::Message>, Defect>;
}

/// Runs the steps of all ranks to the end. Entry `r` of `ranks` belongs to rank `r`.
///
/// # Errors
///
/// [`Defect::Deadlock`], [`Defect::Length`], [`Defect::Leftover`] or [`Defect::Peer`].
pub fn run<S: Steps>(ranks: &[S], window: Window) -> Result<Totals, Defect> {
    run_model(ranks, window, &mut MessagesOnly)
}

/// Checks only the order and the lengths of messages.
struct MessagesOnly;

impl Model for MessagesOnly {
    type Message = ();

    fn act(
        &mut self,
        _: ProcessId,
        step: &Step,
        _: Slice,
        _: Option<()>,
    ) -> Result<Option<()>, Defect> {
        Ok(step.kind.sends().then_some(()))
    }
}

pub(crate) fn run_model<S: Steps, M: Model>(
    ranks: &[S],
    window: Window,
    model: &mut M,
) -> Result<Totals, Defect> {
    let mut network = Network::new(ranks, window, model);
    while let Some(process) = network.ready.pop_front() {
        network.processes[process].is_ready = false;
        network.advance(process)?;
    }
    network.finish()
}

struct Network<'a, S, M: Model> {
    ranks: &'a [S],
    window: Window,
    model: &'a mut M,
    processes: Vec<Process>,
    ready: VecDeque<usize>,
    links: Vec<Link<M::Message>>,
    link_ids: HashMap<(Rank, Rank, u32), usize>,
    channels: u32,
    totals: Totals,
}

struct Process {
    at: ProcessId,
    /// The index of the next step.
    next: u64,
    current: Option<Step>,
    /// The elements of the current step that are done, for each half.
    sent: u64,
    received: u64,
    out: Route,
    into: Route,
    is_ready: bool,
}

/// A cached link: most steps use the same one as the step before.
#[derive(Clone, Copy)]
struct Route {
    peer: Rank,
    link: usize,
}

const NO_ROUTE: Route = Route {
    peer: Rank::MAX,
    link: usize::MAX,
};

struct Link<T> {
    /// The length and the content of each message.
    messages: VecDeque<(u64, T)>,
    sender: usize,
    receiver: usize,
}

impl<'a, S: Steps, M: Model> Network<'a, S, M> {
    fn new(ranks: &'a [S], window: Window, model: &'a mut M) -> Self {
        let channels = ranks.iter().map(Steps::channels).max().unwrap_or(1);
        let place = |rank| (0..channels).map(move |channel| ProcessId { rank, channel });
        let processes: Vec<_> = (0..ranks.len() as Rank)
            .flat_map(place)
            .map(|at| Process {
                at,
                next: 0,
                current: None,
                sent: 0,
                received: 0,
                out: NO_ROUTE,
                into: NO_ROUTE,
                is_ready: true,
            })
            .collect();
        Self {
            ranks,
            window,
            model,
            ready: (0..processes.len()).collect(),
            processes,
            links: Vec::new(),
            link_ids: HashMap::new(),
            channels,
            totals: Totals::default(),
        }
    }

    /// Runs the process until it blocks or ends.
    fn advance(&mut self, process: usize) -> Result<(), Defect> {
        loop {
            let step = match self.processes[process].current {
                Some(step) => step,
                None => match self.load(process)? {
                    Some(step) => step,
                    None => return Ok(()),
                },
            };
            let moved = if step.kind == Kind::SendRecv {
                self.exchange(process, &step)?
            } else {
                self.slice(process, &step)?
            };
            if !moved {
                return Ok(());
            }
        }
    }

    /// Makes the next step that is not empty the current one.
    fn load(&mut self, process: usize) -> Result<Option<Step>, Defect> {
        let ProcessId { rank, channel } = self.processes[process].at;
        let step = loop {
            let index = self.processes[process].next;
            let Some(step) = self.ranks[rank as usize].step(channel, index) else {
                return Ok(None);
            };
            self.processes[process].next += 1;
            if !step.is_empty() {
                break step;
            }
        };
        self.totals.steps += 1;
        let is_peer = |peer: Rank| peer != rank && (peer as usize) < self.ranks.len();
        let sends_well = !step.kind.sends() || is_peer(step.send_to);
        let receives_well = !step.kind.receives() || is_peer(step.recv_from);
        if !sends_well || !receives_well {
            return Err(Defect::Peer { rank, step });
        }
        if step.kind.sends() && self.processes[process].out.peer != step.send_to {
            self.processes[process].out = Route {
                peer: step.send_to,
                link: self.link(rank, step.send_to, channel),
            };
        }
        if step.kind.receives() && self.processes[process].into.peer != step.recv_from {
            self.processes[process].into = Route {
                peer: step.recv_from,
                link: self.link(step.recv_from, rank, channel),
            };
        }
        let process = &mut self.processes[process];
        process.current = Some(step);
        process.sent = 0;
        process.received = 0;
        Ok(Some(step))
    }

    fn link(&mut self, from: Rank, to: Rank, channel: u32) -> usize {
        let process = |rank: Rank| (rank * self.channels + channel) as usize;
        *self.link_ids.entry((from, to, channel)).or_insert_with(|| {
            self.links.push(Link {
                messages: VecDeque::new(),
                sender: process(from),
                receiver: process(to),
            });
            self.links.len() - 1
        })
    }

    /// Does one slice of a step whose parts are done together. Returns false if it must wait.
    fn slice(&mut self, process: usize, step: &Step) -> Result<bool, Defect> {
        let receives = step.kind.receives();
        let sends = step.kind.sends();
        if receives && !self.can_receive(process) || sends && !self.can_send(process) {
            return Ok(false);
        }
        let total = step.send_len().max(step.recv_len());
        let offset = self.processes[process].sent;
        let len = self.window.slice.min(total - offset);
        let received = if receives {
            Some(self.take(process, len)?)
        } else {
            None
        };
        let at = self.processes[process].at;
        let slice = Slice { offset, len };
        if let Some(message) = self.model.act(at, step, slice, received)? {
            self.put(process, len, message);
        }
        let process = &mut self.processes[process];
        process.sent += len;
        if process.sent == total {
            process.current = None;
        }
        Ok(true)
    }

    /// Does as much as possible of a step whose halves are independent. Returns false if neither
    /// half can continue.
    fn exchange(&mut self, process: usize, step: &Step) -> Result<bool, Defect> {
        let at = self.processes[process].at;
        let mut moved = false;
        // Sending never waits for receiving.
        while self.processes[process].sent < step.src.len && self.can_send(process) {
            let offset = self.processes[process].sent;
            let len = self.window.slice.min(step.src.len - offset);
            let half = Step::send(at.rank, step.send_to, step.src);
            if let Some(message) = self.model.act(at, &half, Slice { offset, len }, None)? {
                self.put(process, len, message);
            }
            self.processes[process].sent += len;
            moved = true;
        }
        let Process { sent, received, .. } = self.processes[process];
        let is_free = sent > received || sent == step.src.len;
        if received < step.dst.len && is_free && self.can_receive(process) {
            let offset = received;
            let len = self.window.slice.min(step.dst.len - offset);
            let half = Step::recv(at.rank, step.recv_from, step.dst);
            let message = self.take(process, len)?;
            self.model
                .act(at, &half, Slice { offset, len }, Some(message))?;
            self.processes[process].received += len;
            moved = true;
        }
        let process = &mut self.processes[process];
        if process.sent == step.src.len && process.received == step.dst.len {
            process.current = None;
        }
        Ok(moved)
    }

    fn can_send(&self, process: usize) -> bool {
        let link = &self.links[self.processes[process].out.link];
        link.messages.len() < self.window.slots
    }

    fn can_receive(&self, process: usize) -> bool {
        let link = &self.links[self.processes[process].into.link];
        !link.messages.is_empty()
    }

    fn put(&mut self, process: usize, len: u64, message: M::Message) {
        self.totals.messages += 1;
        let link = &mut self.links[self.processes[process].out.link];
        link.messages.push_back((len, message));
        let receiver = link.receiver;
        self.wake(receiver);
    }

    fn take(&mut self, process: usize, expected: u64) -> Result<M::Message, Defect> {
        let Process { at, into, .. } = self.processes[process];
        let link = &mut self.links[into.link];
        let sender = link.sender;
        match link.messages.pop_front() {
            Some((seen, message)) if seen == expected => {
                self.wake(sender);
                Ok(message)
            }
            other => Err(Defect::Length {
                rank: at.rank,
                from: into.peer,
                channel: at.channel,
                expected,
                seen: other.map_or(0, |(seen, _)| seen),
            }),
        }
    }

    fn wake(&mut self, process: usize) {
        if !self.processes[process].is_ready {
            self.processes[process].is_ready = true;
            self.ready.push_back(process);
        }
    }

    fn finish(self) -> Result<Totals, Defect> {
        let stuck: Vec<_> = self
            .processes
            .iter()
            .filter_map(|process| {
                process.current.map(|step| Stuck {
                    rank: process.at.rank,
                    channel: process.at.channel,
                    index: process.next - 1,
                    step,
                })
            })
            .collect();
        if !stuck.is_empty() {
            return Err(Defect::Deadlock { stuck });
        }
        match self.links.iter().find(|link| !link.messages.is_empty()) {
            Some(link) => Err(Defect::Leftover {
                from: self.processes[link.sender].at.rank,
                to: self.processes[link.receiver].at.rank,
                channel: self.processes[link.receiver].at.channel,
                messages: link.messages.len(),
            }),
            None => Ok(self.totals),
        }
    }
}
