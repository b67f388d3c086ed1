//! What is known of each member of one communicator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fault::{ALIVE, Fault, Late, POINT_TO_POINT, number};
use crate::view::View;
use crate::wire::{Progress, WaitingFor};

/// A rank that does not wait answers the announcements of those that do, at most this often.
const ANSWER_EVERY: Duration = Duration::from_millis(900);
/// How many members a report lists.
const MAX_LINES: usize = 16;

pub(crate) struct Roll {
    pub(crate) view: Arc<View>,
    created: Instant,
    /// When the others were last told of this rank.
    told: Option<Instant>,
    /// By communicator rank, with this rank's own announcements, too.
    heard: Vec<Heard>,
}

#[derive(Clone, Default)]
struct Heard {
    at: Option<Instant>,
    finished: u64,
    entered: Option<Operation>,
    waiting: Option<Waiting>,
    left: Option<u64>,
}

#[derive(Clone, Copy)]
struct Operation {
    sequence: u64,
    signature: [u64; 2],
}

#[derive(Clone, Copy)]
struct Waiting {
    operation: Operation,
    whom: WaitingFor,
    at: Instant,
}

impl Roll {
    pub(crate) fn new(view: Arc<View>) -> Self {
        let heard = vec![Heard::default(); view.members.len()];
        Self {
            view,
            created: Instant::now(),
            told: None,
            heard,
        }
    }

    /// Records what a member does. A fault when it differs from what this rank did.
    pub(crate) fn progress(&mut self, rank: u32, progress: &Progress) -> Option<Fault> {
        let heard = self.heard.get_mut(rank as usize)?;
        heard.update(progress, Instant::now());
        self.attend();
        let operation = Operation {
            sequence: progress.sequence,
            signature: progress.signature,
        };
        if operation.sequence & POINT_TO_POINT != 0 {
            return None;
        }
        let mine = self.view.history.get(operation.sequence)?;
        (mine != operation.signature).then(|| self.mismatch(rank, operation, mine))
    }

    /// Records this rank's own announcement and gives it as the others are to hear it.
    pub(crate) fn announce(
        &mut self,
        sequence: u64,
        signature: [u64; 2],
        waiting: WaitingFor,
    ) -> Progress {
        let now = Instant::now();
        self.told = Some(now);
        let progress = Progress {
            context: self.view.context,
            finished: self.view.finished(),
            sequence,
            signature,
            waiting: Some(waiting),
        };
        if let Some(own) = self.heard.get_mut(self.view.me.rank as usize) {
            own.update(&progress, now);
        }
        progress
    }

    /// The answer to an announcement, unless the others were told lately.
    pub(crate) fn answer(&mut self) -> Option<Progress> {
        if self.told.is_some_and(|told| told.elapsed() < ANSWER_EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        let entered = self.view.history.latest();
        let signature = self.view.history.get(entered);
        Some(Progress {
            context: self.view.context,
            finished: self.view.finished(),
            sequence: signature.map_or(0, |_| entered),
            signature: signature.unwrap_or_default(),
            waiting: None,
        })
    }

    /// Records that a member left. A fault when this rank is already in a later operation.
    pub(crate) fn leave(&mut self, rank: u32, last_sequence: u64) -> Option<Fault> {
        let heard = self.heard.get_mut(rank as usize)?;
        if heard.left.is_some() {
            return None;
        }
        heard.left = Some(last_sequence);
        self.attend();
        let entered = self.view.history.latest();
        (entered > last_sequence).then(|| self.left_fault(rank, last_sequence, entered))
    }

    pub(crate) fn left(&self, rank: u32) -> Option<u64> {
        self.heard.get(rank as usize)?.left
    }

    /// Holds an operation of this rank against what is known of the others.
    pub(crate) fn inspect(&self, sequence: u64, signature: [u64; 2]) -> Option<Fault> {
        self.attend();
        if sequence & POINT_TO_POINT != 0 {
            return None;
        }
        (0..).zip(&self.heard).find_map(|(rank, heard)| {
            if let Some(last) = heard.left.filter(|&last| last < sequence) {
                return Some(self.left_fault(rank, last, sequence));
            }
            let theirs = heard
                .operations()
                .find(|theirs| theirs.sequence == sequence)?;
            (theirs.signature != signature).then(|| self.mismatch(rank, theirs, signature))
        })
    }

    /// Has the next operation inspected that something is known about.
    fn attend(&self) {
        let entered = self.view.history.latest();
        let next = self.heard.iter().flat_map(|heard| {
            let ahead = heard.operations().map(|theirs| theirs.sequence);
            let ahead = ahead.filter(|&sequence| sequence > entered);
            ahead.chain(heard.left.map(|last| last.saturating_add(1)))
        });
        self.view.attend_at(next.min().unwrap_or(u64::MAX));
    }

    fn mismatch(&self, rank: u32, theirs: Operation, mine: [u64; 2]) -> Fault {
        Fault::Mismatch {
            sequence: theirs.sequence,
            rank_a: self.view.me.clone(),
            words_a: (self.view.describe)(mine),
            rank_b: self.view.member(self.view.members[rank as usize]),
            words_b: (self.view.describe)(theirs.signature),
        }
    }

    fn left_fault(&self, rank: u32, last_sequence: u64, sequence: u64) -> Fault {
        let signature = self.view.history.get(sequence);
        Fault::Left {
            rank: self.view.member(self.view.members[rank as usize]),
            last_sequence,
            sequence,
            words: signature.map_or_else(|| "unknown".into(), self.view.describe),
        }
    }

    /// The members that have neither finished `sequence` nor said within `window` that they wait
    /// in it.
    pub(crate) fn late(&self, sequence: u64, window: Duration) -> Vec<Late> {
        let others = (0..)
            .zip(&self.heard)
            .filter(|&(rank, _)| rank != self.view.me.rank);
        let late = others.filter(|(_, heard)| !heard.takes_part(sequence, window));
        late.filter_map(|(rank, _)| self.last_seen(rank)).collect()
    }

    /// When a member was last heard of, and in which operation.
    pub(crate) fn last_seen(&self, rank: u32) -> Option<Late> {
        let heard = self.heard.get(rank as usize)?;
        let describe = self.view.describe;
        Some(Late {
            rank: self.view.member(self.view.members[rank as usize]),
            last: heard
                .last()
                .map(|last| (last.sequence, describe(last.signature))),
            age: heard.at.unwrap_or(self.created).elapsed(),
        })
    }

    /// Who waits for whom, a line per member.
    pub(crate) fn report(&self) -> String {
        let ranks = (0..).zip(&self.heard);
        let mut lines: Vec<String> = ranks
            .take(MAX_LINES)
            .map(|(rank, heard)| self.line(rank, heard))
            .collect();
        if self.heard.len() > MAX_LINES {
            lines.push(format!("and {} more ranks", self.heard.len() - MAX_LINES));
        }
        lines.join("\n")
    }

    fn line(&self, rank: u32, heard: &Heard) -> String {
        let name = self.view.member(self.view.members[rank as usize]);
        let operation = |operation: Operation| {
            format!(
                "{} ({})",
                number(operation.sequence),
                (self.view.describe)(operation.signature)
            )
        };
        if let Some(last) = heard.left {
            return format!("{name} left after operation #{last}");
        }
        if let Some(waiting) = heard
            .waiting
            .filter(|waiting| waiting.at.elapsed() <= ALIVE)
        {
            let whom = match waiting.whom {
                WaitingFor::Anyone => String::new(),
                WaitingFor::Rank(world) => format!(" for {}", self.view.member(world)),
            };
            return format!(
                "{name} waits in operation {}{whom}",
                operation(waiting.operation)
            );
        }
        let last = heard.last().map_or_else(
            || "no operation yet".into(),
            |last| format!("last operation {}", operation(last)),
        );
        match heard.at.map(|at| at.elapsed()) {
            _ if rank == self.view.me.rank => format!("{name} is this rank"),
            Some(age) if age <= ALIVE => format!("{name} is alive, does not wait; {last}"),
            Some(age) => format!("{name} is silent for {age:.1?}; {last}"),
            None => format!("{name} has not been heard of"),
        }
    }
}

impl Heard {
    fn update(&mut self, progress: &Progress, now: Instant) {
        self.at = Some(now);
        self.finished = self.finished.max(progress.finished);
        let operation = Operation {
            sequence: progress.sequence,
            signature: progress.signature,
        };
        let collective = operation.sequence & POINT_TO_POINT == 0;
        if collective && operation.sequence > self.entered.map_or(0, |entered| entered.sequence) {
            self.entered = Some(operation);
        }
        if let Some(whom) = progress.waiting {
            self.waiting = Some(Waiting {
                operation,
                whom,
                at: now,
            });
            if collective {
                // Collectives finish in order.
                self.finished = self.finished.max(operation.sequence.saturating_sub(1));
            }
        }
        let over = |waiting: Waiting| {
            waiting.operation.sequence <= self.finished || now - waiting.at > ALIVE
        };
        if self.waiting.is_some_and(over) {
            self.waiting = None;
        }
    }

    /// The collectives that it is known to have called, and may still be in.
    fn operations(&self) -> impl Iterator<Item = Operation> {
        let waiting = self.waiting.map(|waiting| waiting.operation);
        let waiting = waiting.filter(|operation| operation.sequence & POINT_TO_POINT == 0);
        waiting.into_iter().chain(self.entered)
    }

    /// The operation that it was last known to be in.
    fn last(&self) -> Option<Operation> {
        self.waiting
            .map(|waiting| waiting.operation)
            .or(self.entered)
    }

    fn takes_part(&self, sequence: u64, window: Duration) -> bool {
        let waits = self.waiting.is_some_and(|waiting| {
            waiting.operation.sequence == sequence && waiting.at.elapsed() <= window
        });
        waits || self.finished >= sequence || self.left.is_some_and(|last| last >= sequence)
    }
}
