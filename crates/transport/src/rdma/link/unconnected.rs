//! Makes queue pairs and connects them: a pair becomes a rail once the peer's is known.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_config::Rdma;
use spark_ccl_verbs::{
    Access, CompletionChannel, CompletionQueue, Error, Init, PairOptions, PollRoom, QueuePair,
    ReceiveOptions, Remote, SendOptions,
};

use super::depths::Depths;
use super::immediate::Immediate;
use super::offer::End;
use super::pace::Pace;
use super::plan::Plan;
use super::rail::{Ended, RECEIVE, Rail, Reads, Silence, post_receives};
use super::returns::Returns;
use super::slots::{GREETING, Slots};

/// Messages of up to about this many bytes are posted inline, so that the device need not fetch
/// them.
const INLINE: u32 = 128;
/// The most concurrent reads of a queue pair: enough to keep a rail busy, but no more than the
/// queues of the network hold. No back-pressure holds up answers to reads.
const MOST_READS: u8 = 4;

/// A queue pair that is not connected.
#[derive(Debug)]
pub(super) struct Unconnected {
    plan: Arc<Plan>,
    pair: QueuePair<Init>,
    /// The number of the first packet that it sends.
    psn: u32,
    queue: CompletionQueue,
    events: CompletionChannel,
    /// The most concurrent reads, in either direction.
    reads: u8,
}

impl Unconnected {
    pub(super) fn new(plan: &Arc<Plan>) -> Result<Self, Box<dyn std::error::Error>> {
        let local = &plan.local;
        let limits = local.context.limits()?;
        let depths = Depths::new(plan.geometry, &limits)
            .map_err(|problem| format!("{}: {problem}", local.context.name()))?;
        let events = local.context.completion_channel()?;
        let queue = events.completion_queue(depths.completions() as u32)?;
        let options = PairOptions {
            send_depth: depths.sends as u32,
            receive_depth: depths.receives as u32,
            receive_pieces: 0,
            inline: INLINE,
            ..PairOptions::new(&queue)
        };
        let pair = plan.domain.queue_pair(&options)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut pair = pair.init(local.port.number, access)?;
        let reads = limits.reads_answered.min(limits.reads_started);
        post_receives(&mut pair, depths.receives)?;
        Ok(Self {
            plan: Arc::clone(plan),
            pair,
            // Random, so that packets in flight of an earlier queue pair with the same number are
            // not accepted.
            psn: RandomState::new().build_hasher().finish() as u32 & 0xff_ffff,
            queue,
            events,
            reads: reads.min(MOST_READS),
        })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The information that the peer needs to connect to it.
    pub(super) fn end(&self) -> End {
        End {
            qp_num: self.pair.number(),
            psn: self.psn,
            rkey: self.plan.rkey,
            reads: self.reads,
        }
    }

    /// Connects it to the peer's, whose slots are at `start`.
    pub(super) fn connect(self, peer: End, start: u64) -> Result<Rail, Box<dyn std::error::Error>> {
        let Plan {
            rail,
            local,
            peer_mtu,
            settings,
            ..
        } = &*self.plan;
        let way = local
            .renewed()?
            .way(rail, *peer_mtu, peer.qp_num, settings)?;
        let reads = self.reads.min(peer.reads);
        let receiving = ReceiveOptions {
            psn: peer.psn,
            reads_answered: self.reads,
            ..ReceiveOptions::default()
        };
        let pair = self.pair.ready_to_receive(&way, receiving)?;
        let pair = pair.ready_to_send(SendOptions {
            psn: self.psn,
            timeout: settings.timeout,
            retries: settings.retry_count,
            reads_started: reads,
            ..SendOptions::default()
        })?;
        Ok(Rail {
            name: rail.to_string(),
            pair,
            queue: self.queue,
            events: Arc::new(self.events),
            lkeys: self.plan.lkeys,
            remote: Remote {
                addr: start,
                rkey: peer.rkey,
            },
            posted: 0,
            ended: Ended::default(),
            load: 0,
            reads: Reads::new(reads),
            returns: Returns::default(),
            probe: (0, Instant::now()),
            silence: Silence::new(Instant::now()),
            retry_time: retry_time(settings),
            pace: Pace::new(Instant::now()),
            plan: Arc::clone(&self.plan),
        })
    }
}

/// Twice the time that all retries of a device take; it need not be exact.
fn retry_time(settings: &Rdma) -> Duration {
    if settings.timeout == 0 {
        return Duration::MAX;
    }
    let one = Duration::from_nanos(4096) * (1 << settings.timeout);
    one * 2 * (u32::from(settings.retry_count) + 1)
}

/// Sends a greeting. Nothing else is sent before the greetings.
pub(super) fn send_greeting(rail: &mut Rail, slots: &Slots) -> Result<(), Error> {
    let (start, offset) = slots.greeting();
    // SAFETY: nothing ever writes to the greeting, and the slots are unmapped only after they are
    // deregistered.
    unsafe { rail.write(start, GREETING, offset, Immediate::Hello) }
}

/// Polls for the peer's greeting, and for the completion of this end's.
pub(super) fn listen(
    rail: &mut Rail,
    heard: &mut bool,
    room: &mut PollRoom,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut receives = 0;
    for completion in rail.queue.poll(room)? {
        let completion = completion?;
        if completion.wr_id == RECEIVE {
            *heard |= completion.imm.and_then(Immediate::from_bits) == Some(Immediate::Hello);
            receives += 1;
        } else {
            rail.ended.note(completion.wr_id, true);
        }
    }
    Ok(post_receives(&mut rail.pair, receives)?)
}
