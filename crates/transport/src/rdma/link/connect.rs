//! How two ranks make a link: which ports lead to each other, queue pairs between them, and whether
//! these carry anything.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use socket2::Socket;
use spark_ccl_config::Rdma;
use spark_ccl_verbs::{
    Access, CompletionChannel, CompletionQueue, Error, Init, PairOptions, PollRoom, QueuePair,
    ReceiveOptions, Remote, SendOptions,
};

use super::super::{Candidate, Port, candidates, choose, decode, encode};
use super::core::Core;
use super::immediate::Immediate;
use super::offer::{End, NoLink, Offer, Talk};
use super::rail::{RECEIVE, Rail, Reads, post_receives};
use super::report::Control;
use super::slots::{GREETING, Slots};
use super::{Nics, Rx, Tx};
use crate::Geometry;

/// For so long rails are tried that may not exist.
const PROBE: Duration = Duration::from_secs(3);
/// And for so long, if any is tried that exists as far as its addresses tell.
const PROBE_CERTAIN: Duration = Duration::from_secs(10);
/// The most pairs of ports that are tried.
const MOST_CANDIDATES: usize = 64;
/// Messages of up to about so many bytes need not be fetched by the device.
const INLINE: u32 = 128;
/// Reads by a queue pair at a time: enough to keep a rail busy, and no more than queues on the way hold,
/// since nothing holds the answers back.
const MOST_READS: u8 = 4;
/// Numbers that come besides those of messages: greetings and farewells.
const SPARE_RECEIVES: usize = 8;

/// Makes a link with the peer at the other end of `stream`, which does the same with the same geometry.
/// Exactly one of the two is `first`. Also the names of the rails, for people. The link keeps the stream,
/// to agree with the peer on what to do when a rail fails.
///
/// # Errors
/// When there is no link; [`NoLink::is_agreed`] says whether the peer knows that, too.
pub fn connect(
    nics: &Nics,
    settings: &Rdma,
    stream: Socket,
    geometry: Geometry,
    first: bool,
    deadline: Instant,
) -> Result<(Tx, Rx, Vec<String>), NoLink> {
    let talk = Talk {
        stream: &stream,
        deadline,
    };
    let mut own = nics.descriptions().to_vec();
    let theirs = decode(&talk.exchange_bytes(&encode(&mut own))?)?;
    let mut tried = candidates(&own, &theirs, first)?;
    tried.truncate(MOST_CANDIDATES);
    let site = Site {
        nics,
        settings,
        geometry,
        theirs: &theirs,
    };
    let (mut made, peer) = site.offer(&talk, &tried)?;
    let rails = site.connect(&tried, &mut made, &peer);
    let mut rails = agree(&talk, rails)?;
    let is_certain = tried.iter().any(|candidate| candidate.certain);
    let probe = if is_certain { PROBE_CERTAIN } else { PROBE };
    let until = deadline.min(Instant::now() + probe);
    let heard = greet(&mut rails, &made.outgoing, until);
    let rails = agree(&talk, keep(rails, &heard))?;
    let (rails, names) = chosen(&tried, rails, settings.qps_per_connection)?;
    let control = Control::new(stream, rails.len(), geometry)?;
    let registry = Arc::clone(nics.registry());
    let core = Core::new(rails, made.outgoing, made.incoming, control, registry);
    let core = Arc::new(Mutex::new(core));
    Ok((Tx::new(&core), Rx::new(&core), names))
}

/// A link that is being made.
struct Site<'a> {
    nics: &'a Nics,
    settings: &'a Rdma,
    geometry: Geometry,
    theirs: &'a [Port],
}

/// What one rank has made for it.
struct Made {
    // Dropped before the slots: then no device reaches these.
    lanes: Vec<Option<Lane>>,
    outgoing: Slots,
    incoming: Slots,
}

/// A queue pair that is not connected.
struct Lane {
    pair: QueuePair<Init>,
    /// The number of the first packet that it sends.
    psn: u32,
    queue: CompletionQueue,
    events: CompletionChannel,
    /// The most reads at a time, of either end.
    reads: u8,
}

impl Site<'_> {
    /// What both ranks have made for the link.
    fn offer(&self, talk: &Talk<'_>, tried: &[Candidate]) -> Result<(Made, Offer), NoLink> {
        let made = self.make(tried).map_err(|error| error.to_string());
        let (made, offer) = match made {
            Ok((made, offer)) => (Some(made), Ok(offer)),
            Err(problem) => (None, Err(problem)),
        };
        let (_, peer) = talk.exchange(offer)?;
        match made {
            Some(made) if made.lanes.len() == peer.ends.len() => Ok((made, peer)),
            _ => Err(NoLink::Answer("with another number of rails".to_owned())),
        }
    }

    /// Queue pairs for all candidates, in their order, and slots.
    fn make(&self, tried: &[Candidate]) -> Result<(Made, Offer), Box<dyn std::error::Error>> {
        let mut outgoing = Slots::new(self.geometry)?;
        let mut incoming = Slots::new(self.geometry)?;
        for (_, domain) in self.nics.ports() {
            outgoing.register(domain, Access::LOCAL_READ)?;
            incoming.register(domain, Access::REMOTE_WRITE)?;
        }
        let mut lanes = Vec::new();
        let mut ends = Vec::new();
        for candidate in tried {
            let port = candidate.rail.own.port;
            for _ in 0..self.settings.qps_per_connection {
                let lane = self.lane(port)?;
                ends.push(End {
                    qp_num: lane.pair.number(),
                    psn: lane.psn,
                    rkey: incoming.regions()[port].rkey(),
                    reads: lane.reads,
                });
                lanes.push(Some(lane));
            }
        }
        let start = incoming
            .regions()
            .first()
            .map_or(0, spark_ccl_verbs::MemoryRegion::start);
        let offer = Offer { start, ends };
        let made = Made {
            lanes,
            outgoing,
            incoming,
        };
        Ok((made, offer))
    }

    fn lane(&self, port: usize) -> Result<Lane, Error> {
        let (local, domain) = &self.nics.ports()[port];
        // A message and its acknowledgement, either way.
        let window = 2 * self.geometry.slots * self.geometry.channels;
        let receives = window + SPARE_RECEIVES;
        let sends = 4 * receives;
        let events = local.context.completion_channel()?;
        let queue = events.completion_queue((receives + sends) as u32)?;
        let options = PairOptions {
            send_depth: sends as u32,
            receive_depth: receives as u32,
            receive_pieces: 0,
            inline: INLINE,
            ..PairOptions::new(&queue)
        };
        let pair = domain.queue_pair(&options)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut pair = pair.init(local.port.number, access)?;
        let limits = local.context.limits()?;
        let reads = limits.reads_answered.min(limits.reads_started);
        post_receives(&mut pair, receives)?;
        Ok(Lane {
            pair,
            // What an earlier queue pair of that number has still on its way is not taken for ours.
            psn: RandomState::new().build_hasher().finish() as u32 & 0xff_ffff,
            queue,
            events,
            reads: reads.min(MOST_READS),
        })
    }

    /// Connects what can be connected.
    fn connect(&self, tried: &[Candidate], made: &mut Made, peer: &Offer) -> Vec<Option<Rail>> {
        let per_rail = self.settings.qps_per_connection;
        let lanes = made.lanes.iter_mut().zip(&peer.ends).enumerate();
        lanes
            .map(|(index, (lane, end))| {
                let candidate = &tried[index / per_rail];
                let port = candidate.rail.own.port;
                let remote = Remote {
                    addr: peer.start,
                    rkey: end.rkey,
                };
                let lkeys =
                    [&made.outgoing, &made.incoming].map(|slots| slots.regions()[port].lkey());
                match self.connect_lane(candidate, lane.take()?, *end, remote, lkeys) {
                    Ok(rail) => Some(rail),
                    Err(error) => {
                        tracing::debug!("{} is no rail: {error}", candidate.rail);
                        None
                    }
                }
            })
            .collect()
    }

    fn connect_lane(
        &self,
        candidate: &Candidate,
        lane: Lane,
        end: End,
        remote: Remote,
        lkeys: [u32; 2],
    ) -> Result<Rail, Box<dyn std::error::Error>> {
        let way = self
            .nics
            .way(&candidate.rail, self.theirs, end.qp_num, self.settings)?;
        let reads = lane.reads.min(end.reads);
        let pair = lane.pair.ready_to_receive(
            &way,
            ReceiveOptions {
                psn: end.psn,
                reads_answered: lane.reads,
                ..ReceiveOptions::default()
            },
        )?;
        let pair = pair.ready_to_send(SendOptions {
            psn: lane.psn,
            timeout: self.settings.timeout,
            retries: self.settings.retry_count,
            reads_started: reads,
            ..SendOptions::default()
        })?;
        Ok(Rail {
            name: candidate.rail.to_string(),
            pair,
            queue: lane.queue,
            events: Arc::new(lane.events),
            port: candidate.rail.own.port,
            lkeys,
            remote,
            posted: 0,
            ended: 0,
            load: 0,
            reads: Reads::new(reads),
            probe: (0, Instant::now()),
            patience: patience(self.settings),
        })
    }
}

/// Twice what all tries of a device take; it need not be exact.
fn patience(settings: &Rdma) -> Duration {
    if settings.timeout == 0 {
        return Duration::MAX;
    }
    let one = Duration::from_nanos(4096) * (1 << settings.timeout);
    one * 2 * (u32::from(settings.retry_count) + 1)
}

/// The rails that both ranks have.
fn agree(talk: &Talk<'_>, rails: Vec<Option<Rail>>) -> Result<Vec<Option<Rail>>, NoLink> {
    let own: Vec<bool> = rails.iter().map(Option::is_some).collect();
    let (_, peer) = talk.exchange(Ok(own))?;
    if rails.len() != peer.len() {
        return Err(NoLink::Answer("for another number of rails".to_owned()));
    }
    Ok(keep(rails, &peer))
}

fn keep(rails: Vec<Option<Rail>>, kept: &[bool]) -> Vec<Option<Rail>> {
    let rails = rails.into_iter().zip(kept);
    rails.map(|(rail, kept)| rail.filter(|_| *kept)).collect()
}

/// The rails to use, with so many queue pairs each, and their names.
fn chosen(
    tried: &[Candidate],
    rails: Vec<Option<Rail>>,
    per_rail: usize,
) -> Result<(Vec<Rail>, Vec<String>), NoLink> {
    let lanes = rails.chunks(per_rail);
    let answered: Vec<bool> = lanes
        .map(|lanes| lanes.iter().all(Option::is_some))
        .collect();
    for (candidate, answered) in tried.iter().zip(&answered) {
        if candidate.certain && !answered {
            tracing::warn!("{} should be a rail, but carries nothing", candidate.rail);
        }
    }
    let chosen = choose(tried, &answered)?;
    let is_chosen = |lane: usize| chosen.contains(&tried[lane / per_rail].rail);
    let rails = rails.into_iter().enumerate();
    let rails = rails.filter_map(|(lane, rail)| rail.filter(|_| is_chosen(lane)));
    Ok((
        rails.collect(),
        chosen.iter().map(ToString::to_string).collect(),
    ))
}

/// Greets the peer by every rail, and waits for its greetings; by which rails both went.
fn greet(rails: &mut [Option<Rail>], slots: &Slots, until: Instant) -> Vec<bool> {
    let mut heard = vec![false; rails.len()];
    let mut room = PollRoom::default();
    for slot in rails.iter_mut() {
        if let Some(rail) = slot {
            let (start, offset) = slots.greeting();
            // SAFETY: nobody writes there.
            let posted = unsafe { rail.write(start, GREETING, offset, Immediate::Hello) };
            if let Err(error) = posted {
                tracing::debug!("{}: {error}", rail.name);
                *slot = None;
            }
        }
    }
    let is_done = |rail: &Option<Rail>, heard: &bool| {
        rail.as_ref()
            .is_none_or(|rail| *heard && rail.ended == rail.posted)
    };
    loop {
        for (slot, heard) in rails.iter_mut().zip(&mut heard) {
            if let Some(rail) = slot
                && let Err(problem) = listen(rail, heard, &mut room)
            {
                tracing::debug!("{}: {problem}", rail.name);
                *slot = None;
            }
        }
        if Instant::now() >= until
            || rails
                .iter()
                .zip(&heard)
                .all(|(rail, heard)| is_done(rail, heard))
        {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let both = rails.iter().zip(&heard);
    both.map(|(rail, heard)| rail.is_some() && is_done(rail, heard))
        .collect()
}

/// Takes note of the peer's greeting, and of the arrival of this rank's.
fn listen(
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
            rail.ended = completion.wr_id;
        }
    }
    Ok(post_receives(&mut rail.pair, receives)?)
}
