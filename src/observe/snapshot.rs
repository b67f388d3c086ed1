//! A snapshot of all ranks: asks them, and makes a report of their answers. Knows no client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use spark_ccl_control::{
    Answer, DEVICE_MARK, Fault, POINT_TO_POINT_MARK, Presence, Standing, Wait,
};
use spark_ccl_status::clock;
use spark_ccl_status::ras::{
    Communicator, CommunicatorMore, Counts, INTERNAL, Missing, MissingStatus, Rank, RankMore,
    RankStatus, Report, Wait as ReportedWait,
};
use spark_ccl_types::Operation;

use super::board::{Board, Observed, Process};
use super::journal::INTERNAL_KIND;
use crate::task::names::describe;

/// NCCL's number of an error that another rank has caused (`ncclRemoteError`).
const REMOTE_ERROR: i32 = 6;
/// The GPU of a rank that has none.
const NO_GPU: i32 = -1;

/// A question to all ranks, and since when it is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inquiry {
    asked: Instant,
}

impl Inquiry {
    /// Asks all ranks of all communicators.
    pub(super) fn start(board: &Board) -> Self {
        let asked = Instant::now();
        for observed in one_of_each(board) {
            observed.watch.ask();
        }
        Self { asked }
    }

    pub(super) fn asked(self) -> Instant {
        self.asked
    }

    /// Whether all ranks that are expected to answer have done so.
    pub(super) fn is_answered(self, board: &Board) -> bool {
        let all = self.asked_of(board);
        let mut standings = all.iter().flat_map(|observed| observed.watch.standings());
        standings
            .all(|standing| standing.presence != Presence::Here || self.answer(&standing).is_some())
    }

    /// The report on what is known by now.
    pub(super) fn report(self, board: &Board) -> Report {
        let communicators = self.asked_of(board);
        let communicators = communicators
            .iter()
            .map(|it| self.communicator(it))
            .collect();
        let library = format!("spark-ccl {}", crate::world::VERSION);
        let took = self.asked.elapsed().as_secs_f64();
        Report::new(&library, clock::now(), communicators, took)
    }

    /// The communicators that were there when the ranks were asked.
    fn asked_of(self, board: &Board) -> Vec<Arc<Observed>> {
        let mut all = one_of_each(board);
        all.retain(|observed| observed.created <= self.asked);
        all
    }

    fn communicator(self, observed: &Observed) -> Communicator {
        let fault = observed.watch.fault();
        let status = RankStatus {
            async_error: if fault.is_some() { REMOTE_ERROR } else { 0 },
            abort_flag: matches!(fault.as_deref(), Some(Fault::Aborted { .. })),
            ..RankStatus::default()
        };
        let (mut ranks, mut missing) = (Vec::new(), Vec::new());
        for (standing, process) in observed.watch.standings().iter().zip(&observed.members) {
            match self.answer(standing) {
                Some(answer) => ranks.push(rank(standing, process, &answer, status, observed)),
                None => missing.push(missing_rank(standing, process)),
            }
        }
        let size = observed.members.len() as u32;
        let more = CommunicatorMore {
            fault: fault.map(|fault| fault.to_string()),
        };
        Communicator {
            spark_ccl: more,
            ..Communicator::new(observed.context, observed.world, size, ranks, missing)
        }
    }

    /// The answer of a rank that still takes part, if it came after this question. Its wait
    /// includes the time since then.
    fn answer(self, standing: &Standing) -> Option<Answer> {
        let (mut answer, age) = standing
            .answer
            .filter(|_| standing.presence == Presence::Here)?;
        if let Some(wait) = &mut answer.waits {
            wait.since += age;
        }
        (age <= self.asked.elapsed()).then_some(answer)
    }
}

/// One rank of each communicator: several may be threads of this process.
fn one_of_each(board: &Board) -> Vec<Arc<Observed>> {
    let mut contexts = BTreeMap::new();
    for observed in board.observed() {
        contexts.entry(observed.context).or_insert(observed);
    }
    contexts.into_values().collect()
}

fn rank(
    standing: &Standing,
    process: &Process,
    answer: &Answer,
    status: RankStatus,
    observed: &Observed,
) -> Rank {
    let called = Operation::ALL.iter().zip(answer.calls);
    let called = called.map(|(operation, count)| (operation.name(), count));
    let called = called.chain([(INTERNAL, answer.calls[INTERNAL_KIND])]);
    let called = called.filter(|&(_, count)| count > 0);
    Rank {
        rank: standing.rank.rank as u32,
        host: process.host.clone(),
        pid: process.pid,
        cuda_dev: NO_GPU,
        nvml_dev: NO_GPU,
        status,
        collective_counts: Counts::new(&answer.calls),
        spark_ccl: RankMore {
            entered: answer.entered,
            finished: answer.finished,
            call: (answer.entered > 0).then(|| describe(answer.signature)),
            waits: answer.waits.map(|wait| reported(&wait, observed)),
            late_sec: None,
            calls: called
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        },
    }
}

fn reported(wait: &Wait, observed: &Observed) -> ReportedWait {
    let is_message = wait.sequence & POINT_TO_POINT_MARK != 0;
    let is_on_device = !is_message && wait.sequence & DEVICE_MARK != 0;
    let place = if is_on_device { " on the device" } else { "" };
    let rank_of = |world| {
        let rank = observed
            .members
            .iter()
            .position(|member| member.world == world)?;
        Some(rank as u32)
    };
    ReportedWait {
        sequence: (!is_message && !is_on_device).then_some(wait.sequence),
        call: format!("{}{place}", describe(wait.signature)),
        for_rank: wait.for_rank.and_then(rank_of),
        sec: wait.since.as_secs_f64(),
    }
}

fn missing_rank(standing: &Standing, process: &Process) -> Missing {
    Missing {
        rank: standing.rank.rank as u32,
        host: process.host.clone(),
        pid: process.pid,
        cuda_dev: NO_GPU,
        nvml_dev: NO_GPU,
        status: MissingStatus {
            unresponsive: standing.presence != Presence::Left,
            considered_dead: standing.presence == Presence::Gone,
        },
    }
}
