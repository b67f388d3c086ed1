//! Looks at messages that no call has asked for yet. Knows the engine and its links; receives
//! nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_sched::Rank;
use spark_ccl_types::DType;

use super::pair_tag::PairTag;
use super::request::Request;
use super::running_op::RunningOp;
use super::watchdog::CAUSE_WITHIN;
use super::wires::Obstacle;
use super::{Core, Direction, HostEngine, watchdog};
use crate::error::Error;
use crate::mesh::POINT_TO_POINT_LANE;

/// The pause between two checks of the wait for a message: each check takes the lock of all
/// communicators.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The wait for the next message from a rank.
struct Awaited {
    from: Rank,
    receipt: RunningOp,
    check_at: Instant,
}

impl HostEngine {
    /// The type and count of the next message from a rank. `None` if none has come, or a call waits
    /// for it. Does not wait.
    ///
    /// # Errors
    /// The fault that has ended this communicator; the end of the rank's process, if nothing of it
    /// has come for a while after that.
    pub(crate) fn probe(&self, from: Rank) -> Result<Option<(DType, u64)>, Error> {
        self.with(|core| {
            // A link that has ended is found by the control plane, or by the call that needs it.
            let found = core.probe(from)?.unwrap_or(None);
            match core.watch.latent_of(from).filter(|_| found.is_none()) {
                Some(fault) if core.misses(from, Instant::now()) => {
                    Err(Error::Failed(Arc::new(fault)))
                }
                _ => Ok(found),
            }
        })?
    }

    /// Waits for the next message from a rank, as long as an operation may take.
    ///
    /// # Errors
    /// The fault that has ended this communicator, also because that time has passed.
    pub(crate) fn await_message(&self, from: Rank) -> Result<(DType, u64), Error> {
        let request = Request::awaited(from, self.planner().rank);
        let mut awaited = Awaited {
            from,
            receipt: RunningOp::probe(request, self.timeout()?),
            check_at: Instant::now(),
        };
        self.drive(|core| core.look_for(&mut awaited).transpose())?
    }
}

impl Core {
    /// Whether looks have found nothing of a rank that has ended for as long as its last messages
    /// may take. Each message that is received gives the next one that time anew.
    fn misses(&mut self, rank: Rank, now: Instant) -> bool {
        let pair = self.pair_queues.get(&(rank, Direction::In));
        if pair.is_some_and(|pair| !pair.queue.is_empty()) {
            return false;
        }
        let received = pair.map_or(0, |pair| pair.sequence);
        let missing = self.missing.entry(rank).or_insert((received, now));
        if missing.0 != received {
            *missing = (received, now);
        }
        now.saturating_duration_since(missing.1) >= CAUSE_WITHIN
    }

    /// The next message, or why none can be received.
    fn probe(&mut self, from: Rank) -> Result<Result<Option<(DType, u64)>, Obstacle>, Error> {
        self.progress();
        self.check()?;
        let pair = self.pair_queues.get(&(from, Direction::In));
        if pair.is_some_and(|pair| !pair.queue.is_empty()) {
            return Ok(Ok(None));
        }
        let link = self.wires.rx(from, POINT_TO_POINT_LANE);
        let next = |error| Obstacle::Link { peer: from, error };
        let tag = link.and_then(|rx| rx.next_tag().map_err(next));
        Ok(tag.map(|tag| tag.and_then(|tag| PairTag::from_bits(tag).elements())))
    }

    /// The message, if it is there. Fails the communicator if it will not come, or not in time.
    fn look_for(&mut self, awaited: &mut Awaited) -> Result<Option<(DType, u64)>, Error> {
        let Awaited { from, receipt, .. } = awaited;
        let obstacle = match self.probe(*from)? {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => Obstacle::Message {
                peer: *from,
                lane: POINT_TO_POINT_LANE,
            },
            Err(obstacle) => obstacle,
        };
        let now = Instant::now();
        if now >= awaited.check_at {
            awaited.check_at = now + CHECK_EVERY;
            let pair = self.pair_queues.get(&(*from, Direction::In));
            receipt.sequence = pair.map_or(0, |pair| pair.sequence) + 1;
            receipt.execution.stall.obstacle = Some(obstacle);
            match watchdog::look_after(receipt, &self.watch, &self.wires, now) {
                Ok(remark) => self.remarks.extend(remark),
                Err(fault) => {
                    self.watch.raise(*fault);
                    self.check()?;
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::communicator::Communicator;

    #[test]
    fn a_message_from_a_rank_that_has_ended_gives_the_next_one_its_time() {
        let (comms, start) = (Communicator::local(2).unwrap(), Instant::now());
        let misses = |after| {
            let look = |core: &mut Core| core.misses(1, start + after);
            comms[0].membership().with(look).unwrap()
        };
        assert!(!misses(Duration::ZERO));
        comms[1].send(&[7_u8], 0).run().unwrap();
        assert_eq!(comms[0].recv_vec::<u8>(1).unwrap(), [7]);
        assert!(!misses(CAUSE_WITHIN), "the next message may be on its way");
        assert!(misses(2 * CAUSE_WITHIN));
    }
}
