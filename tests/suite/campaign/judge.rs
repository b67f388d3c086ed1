//! Judges the outcome of a case.

use super::case::{Case, Fault};
use super::play::{Job, STOP_TIMEOUT};
use super::{Failure, Wrong};
use crate::processes::{is_named, waited};

pub(super) fn failures(case: &Case, job: &Job<'_>) -> Vec<Failure> {
    let mut failures = Vec::new();
    for rank in (0..case.size).filter(|&rank| job.survived(rank)) {
        let mut fails = false;
        for (order, answer) in job.said(rank).filter(|(_, answer)| *answer != "ok") {
            fails = true;
            if !explains(case, job, answer) {
                let words = format!("rank {rank}, told to {order:?}: {answer}");
                failures.push((Wrong::Unnamed, words));
            }
        }
        if !fails && must_fail(&case.fault) {
            let words = format!("rank {rank} noticed nothing");
            failures.push((Wrong::Result, words));
        }
    }
    failures
}

/// Whether every rank must fail a call after this. (Calls may not need what was cut.)
fn must_fail(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Kill
            | Fault::KillParent
            | Fault::BlockedLog
            | Fault::Frees
            | Fault::Stop
            | Fault::Mismatch(_)
    )
}

/// Whether the error names the fault and the culprit.
fn explains(case: &Case, job: &Job<'_>, error: &str) -> bool {
    let names = |text: &str, is_at_fault: &dyn Fn(usize, usize) -> bool| {
        job.members()
            .any(|(rank, pid, host)| is_at_fault(rank, host) && is_named(text, rank, pid))
    };
    let is_victim = |rank, _| rank == case.victim;
    match &case.fault {
        Fault::Kill | Fault::KillParent | Fault::BlockedLog | Fault::Frees => {
            error.contains("died") && names(error, &is_victim)
        }
        Fault::Stop => {
            let late = error.split_once("waits for: ").map(|(_, late)| late);
            late.is_some_and(|late| names(late, &is_victim)) && waited(error) >= Some(STOP_TIMEOUT)
        }
        Fault::Cut(hosts) => {
            error.contains("is lost: ") && names(error, &|_, host| hosts.contains(&host))
        }
        // A rank that still hears the others sees them give up.
        Fault::Mute([from, to]) => {
            let names_host = |one| names(error, &|_, host| host == one);
            let is_lost = error.contains("is lost: ") && (names_host(*from) || names_host(*to));
            let is_closed = error.contains("check the network between their hosts");
            is_lost || is_closed && names_host(*from) && names_host(*to)
        }
        Fault::Mismatch(other) => {
            // Messages have their own numbers: a rank may have made many before a collective, or
            // none.
            let has_messages = case.call.contains("ring ") || other.contains("ring ");
            let is_numbered = error.contains("operation #")
                || has_messages && error.contains("operation point-to-point #");
            is_numbered && names(error, &is_victim)
        }
        Fault::None
        | Fault::Pause
        | Fault::Gap(_)
        | Fault::Loss(_)
        | Fault::Rail
        | Fault::Garbage
        | Fault::Silence
        | Fault::Fork(_) => false,
    }
}
