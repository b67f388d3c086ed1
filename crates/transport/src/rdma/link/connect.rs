//! Makes a link between two ranks: finds the ports that reach each other, connects queue pairs
//! between them, and probes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_config::Rdma;
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_verbs::{Access, PollRoom};

use super::super::{Candidate, Port, candidates, choose, decode, encode};
use super::control::Control;
use super::core::Core;
use super::offer::{MOST_PAIRS, Negotiation, NoLink, Offer, Wait};
use super::plan::Plan;
use super::rail::Rail;
use super::slots::Slots;
use super::unconnected::{Unconnected, listen, send_greeting};
use super::{Nics, Rx, Tx};
use crate::Geometry;

/// How long rails that may not exist are probed.
const PROBE: Duration = Duration::from_secs(3);
/// How long they are probed if, according to the addresses, at least one of them exists.
const PROBE_CERTAIN: Duration = Duration::from_secs(10);
/// The most pairs of ports that are tried.
const MOST_CANDIDATES: usize = 64;

/// Makes a link with the peer at the other end of `stream`, which does the same with the same
/// geometry. Exactly one of the two is `first`. Also returns the names of the rails, for messages.
/// The link keeps the stream, to agree with the peer on what to do when a rail fails.
///
/// # Errors
/// When no link can be made; [`NoLink::is_agreed`] tells whether the peer has found the same.
pub fn connect(
    nics: &Nics,
    settings: &Rdma,
    stream: Unshared<Socket>,
    geometry: Geometry,
    first: bool,
    wait: Wait<'_>,
) -> Result<(Tx, Rx, Vec<String>), NoLink> {
    let negotiation = Negotiation {
        stream: &stream,
        wait,
    };
    let mut own = nics.descriptions().to_vec();
    let theirs = decode(&negotiation.exchange_bytes(&encode(&mut own))?)?;
    let mut tried = candidates(&own, &theirs, first)?;
    tried.truncate(MOST_CANDIDATES.min(MOST_PAIRS / settings.qps_per_connection));
    let setup = Setup {
        nics,
        settings,
        geometry,
        theirs: &theirs,
        first,
    };
    let (mut made, peer) = setup.offer(&negotiation, &tried)?;
    let rails = connect_all(&mut made, &peer);
    let mut rails = agree(&negotiation, rails)?;
    let is_certain = tried.iter().any(|candidate| candidate.certain);
    let probe = if is_certain { PROBE_CERTAIN } else { PROBE };
    let wait = Wait {
        deadline: wait.deadline.min(Instant::now() + probe),
        ..wait
    };
    let heard = greet(&mut rails, &made.outgoing, wait);
    let rails = agree(&negotiation, keep(rails, &heard))?;
    let (rails, names) = chosen(&tried, rails, settings.qps_per_connection)?;
    let control = Control::new(stream, rails.len(), geometry)?;
    let registry = Arc::clone(nics.registry());
    let core = Core::new(rails, made.outgoing, made.incoming, control, registry);
    let core = Arc::new(Mutex::new(core));
    Ok((Tx::new(&core), Rx::new(&core), names))
}

/// A link that is being set up.
struct Setup<'a> {
    nics: &'a Nics,
    settings: &'a Rdma,
    geometry: Geometry,
    theirs: &'a [Port],
    first: bool,
}

/// The queue pairs and slots that one rank has made for a link.
struct Made {
    // Dropped before the slots, so that no device can access these any more.
    pairs: Vec<Unconnected>,
    outgoing: Slots,
    incoming: Slots,
}

impl Setup<'_> {
    /// Makes queue pairs and slots, and exchanges offers with the peer.
    fn offer(
        &self,
        negotiation: &Negotiation<'_>,
        tried: &[Candidate],
    ) -> Result<(Made, Offer), NoLink> {
        let made = self.make(tried).map_err(|error| error.to_string());
        let (made, offer) = match made {
            Ok((made, offer)) => (Some(made), Ok(offer)),
            Err(problem) => (None, Err(problem)),
        };
        let (_, peer) = negotiation.exchange(offer)?;
        match made {
            Some(made) if made.pairs.len() == peer.ends.len() => Ok((made, peer)),
            _ => Err(NoLink::Answer("with another number of rails".to_owned())),
        }
    }

    /// Makes queue pairs for all candidates, in their order, and slots.
    fn make(&self, tried: &[Candidate]) -> Result<(Made, Offer), Box<dyn std::error::Error>> {
        let [mut outgoing, mut incoming] = Slots::both(self.geometry)?;
        for (_, domain) in self.nics.ports() {
            outgoing.register(domain, Access::LOCAL_READ)?;
            incoming.register(domain, Access::REMOTE_WRITE)?;
        }
        let mut pairs = Vec::new();
        let mut ends = Vec::new();
        for Candidate { rail, .. } in tried {
            let port = rail.own.port;
            let (local, domain) = &self.nics.ports()[port];
            let plan = Arc::new(Plan {
                rail: rail.clone(),
                local: local.clone(),
                domain: domain.clone(),
                peer_mtu: self.theirs.get(rail.peer.port).map_or(0, |port| port.mtu),
                settings: self.settings.clone(),
                geometry: self.geometry,
                lkeys: [&outgoing, &incoming].map(|slots| slots.regions()[port].lkey()),
                rkey: incoming.regions()[port].rkey(),
                is_first: self.first,
            });
            for _ in 0..self.settings.qps_per_connection {
                let pair = Unconnected::new(&plan)?;
                ends.push(pair.end());
                pairs.push(pair);
            }
        }
        let start = incoming
            .regions()
            .first()
            .map_or(0, spark_ccl_verbs::MemoryRegion::start);
        let offer = Offer { start, ends };
        let made = Made {
            pairs,
            outgoing,
            incoming,
        };
        Ok((made, offer))
    }
}

/// Connects the queue pairs that can be connected.
fn connect_all(made: &mut Made, peer: &Offer) -> Vec<Option<Rail>> {
    let pairs = made.pairs.drain(..).zip(&peer.ends);
    pairs
        .map(|(pair, end)| {
            let name = pair.plan().rail.to_string();
            pair.connect(*end, peer.start)
                .inspect_err(|error| spark_ccl_log::debug!("{name} is no rail: {error}"))
                .ok()
        })
        .collect()
}

/// The rails that both ranks have.
fn agree(
    negotiation: &Negotiation<'_>,
    rails: Vec<Option<Rail>>,
) -> Result<Vec<Option<Rail>>, NoLink> {
    let own: Vec<bool> = rails.iter().map(Option::is_some).collect();
    let (_, peer) = negotiation.exchange(Ok(own))?;
    if rails.len() != peer.len() {
        return Err(NoLink::Answer("for another number of rails".to_owned()));
    }
    Ok(keep(rails, &peer))
}

fn keep(rails: Vec<Option<Rail>>, kept: &[bool]) -> Vec<Option<Rail>> {
    let rails = rails.into_iter().zip(kept);
    rails.map(|(rail, kept)| rail.filter(|_| *kept)).collect()
}

/// The rails to use, with this many queue pairs each, and their names.
fn chosen(
    tried: &[Candidate],
    rails: Vec<Option<Rail>>,
    per_rail: usize,
) -> Result<(Vec<Rail>, Vec<String>), NoLink> {
    let unconnected = rails.chunks(per_rail);
    let answered: Vec<bool> = unconnected
        .map(|unconnected| unconnected.iter().all(Option::is_some))
        .collect();
    for (candidate, answered) in tried.iter().zip(&answered) {
        if candidate.certain && !answered {
            spark_ccl_log::warn!("{} should be a rail, but carries nothing", candidate.rail);
        }
    }
    let chosen = choose(tried, &answered)?;
    let is_chosen = |index: usize| chosen.contains(&tried[index / per_rail].rail);
    let rails = rails.into_iter().enumerate();
    let rails = rails.filter_map(|(index, rail)| rail.filter(|_| is_chosen(index)));
    Ok((
        rails.collect(),
        chosen.iter().map(ToString::to_string).collect(),
    ))
}

/// Sends a greeting over every rail, and waits for the peer's greetings. Returns for each rail
/// whether both arrived.
fn greet(rails: &mut [Option<Rail>], slots: &Slots, wait: Wait<'_>) -> Vec<bool> {
    let mut heard = vec![false; rails.len()];
    let mut room = PollRoom::default();
    for slot in rails.iter_mut() {
        if let Some(rail) = slot
            && let Err(error) = send_greeting(rail, slots)
        {
            spark_ccl_log::debug!("{}: {error}", rail.name);
            *slot = None;
        }
    }
    let is_done = |rail: &Option<Rail>, heard: &bool| {
        rail.as_ref()
            .is_none_or(|rail| *heard && rail.ended.well == rail.posted)
    };
    loop {
        for (slot, heard) in rails.iter_mut().zip(&mut heard) {
            if let Some(rail) = slot
                && let Err(problem) = listen(rail, heard, &mut room)
            {
                spark_ccl_log::debug!("{}: {problem}", rail.name);
                *slot = None;
            }
        }
        if Instant::now() >= wait.deadline
            || !(wait.go_on)()
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
