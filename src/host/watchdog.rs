//! The slow path of waiting: deadlines, announcements, and the meaning of obstacles. Knows the
//! control plane and obstacles; it moves no data.

use std::time::{Duration, Instant};

use spark_ccl_control::{Fault, Late, Leave, Member, POINT_TO_POINT_MARK, Watch};
use spark_ccl_sched::Rank;
use spark_ccl_types::{Operation, describe_message};

use super::call_details::CallDetails;
use super::engine::is_without_thread;
use super::pair_tag::PairTag;
use super::running_op::RunningOp;
use super::wires::{Obstacle, Wires};
use super::{Core, Direction};
use crate::task::names;
use crate::world::logging::REMARK_AFTER;

/// How long an operation waits before it tells the others what it is.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(200);
/// How often it repeats that.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// How long the control plane gets to name the cause of a broken link or a message of another tag.
/// It takes about a second to tell that a process on another host is gone (`REFUSED_FOR` in
/// `crates/control/src/repair.rs`).
pub(super) const CAUSE_WITHIN: Duration = Duration::from_millis(1500);
/// The same if the peer has closed the link: the peer may know why, and wait as long itself before
/// it says so.
const CAUSE_OF_CLOSE_WITHIN: Duration = Duration::from_secs(3);
/// The name, in errors, of a wait for a message that no call has asked for.
const PROBE: &str = "probe_wait";
/// Ranks from which nothing has come for this long are late, at a deadline.
const SIGN_OF_LIFE: Duration = Duration::from_millis(2500);

impl Core {
    /// Checks the operations at the heads of their queues: deadlines, obstacles, announcements.
    pub(super) fn run_watchdog(&mut self, now: Instant) {
        let pairs = self.pair_queues.values();
        let heads = pairs.filter_map(|pair| pair.queue.front());
        // Iterates without collecting: most calls that wait come here once, and an allocation would
        // be a tenth of a short call's instructions.
        for &id in self.collectives.front().into_iter().chain(heads) {
            let Some(running) = self.ops.running(id) else {
                continue;
            };
            match look_after(running, &self.watch, &self.wires, now) {
                Ok(remark) => self.remarks.extend(remark),
                Err(fault) => return self.watch.raise(*fault),
            }
        }
    }
}

/// Checks an operation that waits. Returns what to tell the user, or the fault that ends it.
pub(super) fn look_after(
    running: &mut RunningOp,
    watch: &Watch,
    wires: &Wires,
    now: Instant,
) -> Result<Option<String>, Box<Fault>> {
    let (waited, overdue) = running.execution.stall.wait(now, running.limit);
    let fault = if overdue {
        Some(timed_out(running, watch, wires, waited))
    } else {
        inspect(running, watch, wires, now)
    };
    if let Some(fault) = fault {
        return Err(Box::new(fault));
    }
    announce(running, watch, now, waited);
    if waited < REMARK_AFTER || running.execution.stall.is_remarked {
        return Ok(None);
    }
    running.execution.stall.is_remarked = true;
    let so_far = timed_out(running, watch, wires, waited);
    Ok(so_far.so_far(running.limit.saturating_sub(waited)))
}

/// Whether the other ranks are to be told of a wait that has lasted so long; `last` is when they
/// were told last.
pub(crate) fn is_to_be_told(last: Option<Instant>, waited: Duration, now: Instant) -> bool {
    match last {
        None => waited >= ANNOUNCE_AFTER,
        Some(last) => now.saturating_duration_since(last) >= ANNOUNCE_EVERY,
    }
}

/// Tells the other ranks which operation this is and for whom it waits.
fn announce(running: &mut RunningOp, watch: &Watch, now: Instant, waited: Duration) {
    let last = running.execution.stall.announced;
    let is_first = last.is_none() && running.execution.stall.suspicious.is_some();
    if is_first || is_to_be_told(last, waited, now) {
        running.execution.stall.announced = Some(now);
        if let Some((sequence, words)) = doubtful(running, watch) {
            watch.announce(sequence, words, waiting_for(running));
        }
        let words = running.request.task.signature.words();
        watch.announce(marked(running), words, waiting_for(running));
    }
}

/// The earlier operation to which a message with another tag belongs, as this rank called it: both
/// ranks may be done with their different calls.
fn doubtful(running: &RunningOp, watch: &Watch) -> Option<(u64, [u64; 2])> {
    let Some(Obstacle::TagMismatch { tag, .. }) = &running.execution.stall.obstacle else {
        return None;
    };
    let sequence = sequence_of(*tag, running.sequence);
    if running.is_pair() || sequence >= running.sequence {
        return None;
    }
    watch.called(sequence).map(|words| (sequence, words))
}

/// The collective of a message that has come while this rank is in `own`: tags hold the low half of
/// its number.
pub(super) fn sequence_of(tag: u64, own: u64) -> u64 {
    let ahead = ((tag >> 32) as u32).wrapping_sub(own as u32) as i32;
    own.wrapping_add_signed(i64::from(ahead))
}

/// The fault if a message belongs to another collective, too many calls ago for the sender's call
/// to be known.
fn forgotten(running: &RunningOp, watch: &Watch, tag: u64, [here, there]: [Member; 2]) -> Fault {
    let sent = sequence_of(tag, running.sequence);
    let own = describe(running);
    let (sequence, words_a, words_b) = if sent < running.sequence {
        let found = format!(
            "something else, as its data shows at operation #{} ({own})",
            running.sequence
        );
        (sent, called(watch, sent), found)
    } else {
        let sends = format!("something else, as its data of operation #{sent} shows");
        (running.sequence, own, sends)
    };
    Fault::Mismatch {
        sequence,
        rank_a: here,
        words_a,
        rank_b: there,
        words_b,
    }
}

/// In words, this rank's call of a collective that it is done with.
pub(super) fn called(watch: &Watch, sequence: u64) -> String {
    let called = watch.called(sequence).map(names::describe);
    called.unwrap_or_else(|| "what it no longer knows".to_owned())
}

/// The fault, if the obstacle means that the operation can never be completed.
fn inspect(running: &mut RunningOp, watch: &Watch, wires: &Wires, now: Instant) -> Option<Fault> {
    let peer = waiting_for(running)?;
    let obstacle = running.execution.stall.obstacle.as_ref()?;
    // For collectives, the control plane itself finds out what a departure means.
    let left = if running.is_pair() {
        watch.left(peer)
    } else {
        None
    };
    let left = left.filter(|leave| !expects(running, leave, wires.rank));
    if left.is_none() && obstacle.is_wait() {
        running.execution.stall.suspicious = None;
        return None;
    }
    let (fault, certain) = meaning(running, obstacle, (peer, left.as_ref()), watch, wires);
    let first = *running.execution.stall.suspicious.get_or_insert(now);
    let patience = if obstacle.is_closed() {
        CAUSE_OF_CLOSE_WITHIN
    } else {
        CAUSE_WITHIN
    };
    let give_up = now.saturating_duration_since(first) >= patience;
    (certain || give_up).then_some(fault)
}

/// The fault that an obstacle other than a mere wait amounts to, and whether that is certain. If it
/// is not, the control plane may still report the true cause. `left` is the farewell of a peer that
/// has left without doing its part in a message.
fn meaning(
    running: &RunningOp,
    obstacle: &Obstacle,
    (peer, left): (Rank, Option<&Leave>),
    watch: &Watch,
    wires: &Wires,
) -> (Fault, bool) {
    let (here, there) = (watch.member(wires.rank), watch.member(peer));
    let words = describe(running);
    match (obstacle, left) {
        (Obstacle::TagMismatch { tag, .. }, _) if running.is_pair() => {
            let fault = Fault::Mismatch {
                sequence: marked(running),
                rank_a: here,
                words_a: words,
                rank_b: there,
                words_b: PairTag::from_bits(*tag).call(),
            };
            (fault, true)
        }
        (Obstacle::Disagreement { details, .. }, _) => {
            let said = |details: &CallDetails, to| format!("{words} with {}", details.describe(to));
            let fault = Fault::Mismatch {
                sequence: marked(running),
                words_a: said(&details.here, peer),
                rank_a: here,
                words_b: said(&details.there, wires.rank),
                rank_b: there,
            };
            (fault, true)
        }
        (Obstacle::TagMismatch { tag, .. }, _) => {
            (forgotten(running, watch, *tag, [here, there]), false)
        }
        (Obstacle::Link { error, .. } | Obstacle::NoLink { error, .. }, None) => {
            let fault = Fault::Link {
                by: here,
                peer: there,
                text: format!("{error}; {}", advice(wires.mesh().shares_host(peer))),
            };
            (fault, false)
        }
        (_, left) => {
            let fault = left
                .and_then(|leave| leave.cause.clone())
                .unwrap_or(Fault::Left {
                    rank: there,
                    last_sequence: left.map_or(0, |leave| leave.last_sequence),
                    sequence: marked(running),
                    words,
                });
            let lacks = left.is_some_and(|leave| has_not_sent(running, leave, wires.rank));
            // While the link has not ended, data that was sent may be in flight, and even the link
            // itself may still come; not from a process that has ended.
            let has_ended = watch.latent_of(peer).is_some();
            let is_over = has_ended || matches!(obstacle, Obstacle::Link { .. });
            (fault, lacks || is_over)
        }
    }
}

/// Whether a peer that leaves has certainly not sent a message.
fn has_not_sent(running: &RunningOp, leave: &Leave, own: Rank) -> bool {
    running.direction() == Direction::In && leave.has_sent(own, running.sequence) == Some(false)
}

/// Whether a peer that leaves does its part in a message, or may still do it.
fn expects(running: &RunningOp, leave: &Leave, own: Rank) -> bool {
    let has_begun = match running.direction() {
        Direction::Out => leave.has_received(own, running.sequence),
        Direction::In => leave.has_sent(own, running.sequence),
    };
    has_begun.unwrap_or(leave.is_in_flight)
}

/// Advice about a link that has failed.
fn advice(shares_host: bool) -> &'static str {
    if shares_host {
        "both are on one host, where no network is involved: look at what their processes printed \
         last"
    } else {
        "if both processes still run, check the network between their hosts"
    }
}

fn timed_out(running: &RunningOp, watch: &Watch, wires: &Wires, waited: Duration) -> Fault {
    let mut words = describe(running);
    let late = if running.is_pair() {
        if !running.is_probe {
            words = format!("{words}, {}", PairTag::from_bits(running.tag));
        }
        let late = waiting_for(running).map(|peer| watch.awaited(peer));
        late.unwrap_or_default()
    } else {
        watch.late(running.sequence, SIGN_OF_LIFE)
    };
    if let Some(Obstacle::Forming { peer }) = running.execution.stall.obstacle
        && let Some(silence) = wires.mesh().silence(peer)
    {
        words = format!("{words}; no link to {}: {silence}", watch.member(peer));
    }
    if let Some(silent) = wires.silent_rails() {
        words = format!("{words}; {silent}");
    }
    let late = late.into_iter().map(|mut late: Late| {
        late.needs_thread = is_without_thread(watch.context(), late.rank.rank as Rank);
        late
    });
    Fault::TimedOut {
        by: watch.member(wires.rank),
        sequence: marked(running),
        words,
        waited,
        late: late.collect(),
    }
}

/// The sequence number as the control plane has it: those of pairs are marked.
fn marked(running: &RunningOp) -> u64 {
    let mark = if running.is_pair() {
        POINT_TO_POINT_MARK
    } else {
        0
    };
    running.sequence | mark
}

/// The operation as this rank has called it. A message that is a block has a count, even if it is
/// 0.
fn describe(running: &RunningOp) -> String {
    let signature = running.request.task.signature;
    if running.is_probe {
        PROBE.to_owned()
    } else if running.is_pair() && signature.operation == Operation::AllToAllV {
        describe_message(signature.words())
    } else {
        names::describe(signature.words())
    }
}

fn waiting_for(running: &RunningOp) -> Option<Rank> {
    running.execution.stall.obstacle.as_ref()?.peer()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::communicator::Communicator;

    #[test]
    fn an_operation_that_waits_for_half_a_minute_says_so_once() {
        let comms = Communicator::local(2).unwrap();
        let pending = comms[0].recv(vec![0_u8], 1).start().unwrap();
        let remarks_after = |seconds| {
            let look = |core: &mut Core| {
                core.run_watchdog(Instant::now() + Duration::from_secs(seconds));
                std::mem::take(&mut core.remarks)
            };
            comms[0].membership().with(look).unwrap()
        };
        assert!(remarks_after(0).is_empty());
        assert!(remarks_after(29).is_empty());
        let [remark] = &remarks_after(31)[..] else {
            panic!("one remark");
        };
        let waits = "rank 0 (";
        assert!(remark.starts_with(waits), "{remark}");
        for part in [
            " has waited for 31",
            "s in operation point-to-point #1 (recv",
            "gives up in 5",
            "it waits for: rank 1 (",
        ] {
            assert!(remark.contains(part), "{part:?} is not in {remark:?}");
        }
        assert!(remarks_after(62).is_empty());
        comms[1].send(&[7_u8], 0).run().unwrap();
        pending.wait().unwrap();
    }
}
