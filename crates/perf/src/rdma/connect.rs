//! Connects the two ranks of a measurement, as the library's links do, but exchanges what is needed
//! over the communicator.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spark_ccl::Communicator;
use spark_ccl_config::{Rdma, Settings};
use spark_ccl_console::rails::RailEnds;
use spark_ccl_transport::rdma::link::Nics;
use spark_ccl_transport::rdma::{Candidate, Port, Rail, candidates, choose, decode, encode};
use spark_ccl_verbs::{
    Access, Init, PairOptions, PollRoom, ReceiveOptions, Remote, Rts, SendOptions,
};

use super::Plan;
use super::args::Common;
use super::endpoint::{Connection, Endpoint, memory};
use crate::error::Error;
use crate::pair::{Allocator, Rank};
use crate::ranks::hosts::share;

/// The time limit of a try of a rail that may not exist.
const PROBE: Duration = Duration::from_secs(2);
/// The most pairs of ports that are tried.
const MOST_CANDIDATES: usize = 64;
/// Messages of up to about this many bytes are sent inline: the device need not fetch them.
const INLINE: u32 = 128;
/// The most reads in flight on a queue pair, if the devices support as many.
const MOST_READS: u8 = 16;

/// A queue pair, as the peer needs it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct QueuePairInfo {
    qp_num: u32,
    reads_answered: u8,
}

/// The memory, as the peer needs it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct MemoryInfo {
    addr: u64,
    rkey: u32,
}

/// The rails between the two ranks, in the same order on both, ready to carry data.
pub(super) fn connect(
    rank: &Rank,
    settings: &Settings,
    args: &Common,
    plan: Plan,
) -> Result<Vec<Endpoint>, Error> {
    let comm = &rank.comm;
    let nics = Nics::open(&settings.rdma);
    let mut own = nics.descriptions().to_vec();
    let ports = match &nics.none_because {
        Some(reason) => Err(reason.clone()),
        None => Ok(String::from_utf8_lossy(&encode(&mut own)).into_owned()),
    };
    let theirs = exchange(comm, ports, Error::NoRdma)?;
    let theirs = decode(theirs.as_bytes()).map_err(|error| Error::Rdma(error.to_string()))?;
    let tried = candidates(&own, &theirs, comm.rank() == 0);
    let mut tried = tried.map_err(|error| Error::Rdma(error.to_string()))?;
    tried.truncate(MOST_CANDIDATES);
    let setup = Setup {
        nics: &nics,
        settings: &settings.rdma,
        theirs: &theirs,
        plan,
        allocator: &rank.memory,
    };
    let (rails, connections) = setup.connect(comm, &tried)?;
    let wanted = args.pair.rails.used(rails.len());
    let used = rails.into_iter().zip(connections).take(wanted);
    setup.endpoints(comm, used.collect())
}

/// Sends this rank's value, or why it has none, to the other rank, and returns the other's value.
fn exchange<T: Serialize + DeserializeOwned + Clone>(
    comm: &Communicator,
    own: Result<T, String>,
    problem: fn(String) -> Error,
) -> Result<T, Error> {
    let other = 1 - comm.rank();
    let mut all = share(comm, &own)?;
    own.map_err(problem)?;
    all.swap_remove(other)
        .map_err(|reason| Error::Rdma(format!("rank {other} cannot: {reason}")))
}

/// The state of a rank while it connects.
struct Setup<'a> {
    nics: &'a Nics,
    settings: &'a Rdma,
    theirs: &'a [Port],
    plan: Plan,
    allocator: &'a Allocator,
}

impl Setup<'_> {
    /// Returns the rails that answer, and their connections.
    fn connect(
        &self,
        comm: &Communicator,
        tried: &[Candidate],
    ) -> Result<(Vec<Rail>, Vec<Connection<Rts>>), Error> {
        let made: Result<Vec<_>, _> = tried.iter().map(|one| self.make(&one.rail)).collect();
        let made = made.map_err(|error| error.to_string());
        let (made, ends) = made.map_or_else(
            |problem| (Vec::new(), Err(problem)),
            |made| {
                let (made, ends) = made.into_iter().unzip();
                (made, Ok::<Vec<QueuePairInfo>, _>(ends))
            },
        );
        let own = ends.clone();
        let peers = exchange(comm, ends, Error::Rdma)?;
        let ends = own.unwrap_or_default().into_iter().zip(peers);
        let mut connections: Vec<_> = made
            .into_iter()
            .zip(ends)
            .zip(tried)
            .map(|((made, (own, peer)), one)| self.finish(&one.rail, made, own, peer))
            .collect();
        let connected: Vec<_> = connections.iter().map(Option::is_some).collect();
        keep(&mut connections, &agree(comm, &connected)?);
        let probed = probe(&mut connections);
        let answered = agree(comm, &probed)?;
        let rails = choose(tried, &answered).map_err(|error| Error::Rdma(error.to_string()))?;
        let of_rail = |rail: &Rail| {
            let index = tried.iter().position(|one| one.rail == *rail)?;
            connections[index].take()
        };
        let chosen = rails.iter().filter_map(of_rail).collect();
        Ok((rails, chosen))
    }

    /// Creates a queue pair for a rail, and returns what the peer needs to know about it.
    fn make(
        &self,
        rail: &Rail,
    ) -> Result<(Connection<Init>, QueuePairInfo), spark_ccl_verbs::Error> {
        let (local, domain) = &self.nics.ports()[rail.own.port];
        let limits = local.context.limits()?;
        let Plan {
            sends, receives, ..
        } = self.plan;
        let events = local.context.completion_channel()?;
        let queue = events.completion_queue(sends + receives)?;
        let options = PairOptions {
            send_depth: sends,
            receive_depth: receives,
            inline: INLINE,
            ..PairOptions::new(&queue)
        };
        let pair = domain.queue_pair(&options)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut made = Connection {
            pair: pair.init(local.port.number, access)?,
            queue,
            events,
        };
        made.post_probe_receive()?;
        let end = QueuePairInfo {
            qp_num: made.pair.number(),
            reads_answered: limits
                .reads_answered
                .min(limits.reads_started)
                .min(MOST_READS),
        };
        Ok((made, end))
    }

    /// Connects a queue pair, if possible.
    fn finish(
        &self,
        rail: &Rail,
        made: Connection<Init>,
        own: QueuePairInfo,
        peer: QueuePairInfo,
    ) -> Option<Connection<Rts>> {
        let connect = || -> Result<_, Box<dyn std::error::Error>> {
            let path = self
                .nics
                .way(rail, self.theirs, peer.qp_num, self.settings)?;
            let receive = ReceiveOptions {
                reads_answered: own.reads_answered,
                // Receives are reposted at once, so a short timer is enough.
                rnr_timer: 1,
                ..ReceiveOptions::default()
            };
            let send = SendOptions {
                timeout: self.settings.timeout,
                retries: self.settings.retry_count,
                reads_started: own.reads_answered.min(peer.reads_answered),
                ..SendOptions::default()
            };
            let pair = made.pair.ready_to_receive(&path, receive)?;
            Ok(Connection {
                pair: pair.ready_to_send(send)?,
                queue: made.queue,
                events: made.events,
            })
        };
        // A failure is common, because not all ports are connected with each other.
        connect().ok()
    }

    /// Allocates the memory of the rails.
    fn endpoints(
        &self,
        comm: &Communicator,
        rails: Vec<(Rail, Connection<Rts>)>,
    ) -> Result<Vec<Endpoint>, Error> {
        let most = |rail: &Rail| self.nics.ports()[rail.own.port].0.port.max_message;
        if let Some((rail, _)) = rails
            .iter()
            .find(|(rail, _)| self.plan.bytes > most(rail) as usize)
        {
            let (end, most) = (&rail.own, most(rail));
            return Err(Error::usage(format!(
                "-e {}: a message of {end} has at most {most} bytes",
                self.plan.bytes
            )));
        }
        let half = self.plan.bytes.next_multiple_of(64);
        let regions: Result<Vec<_>, _> = rails
            .iter()
            .map(|(rail, _)| memory(&self.nics.ports()[rail.own.port].1, self.allocator, half))
            .collect();
        let regions = regions.map_err(|error: Error| error.to_string());
        let target = |region: &spark_ccl_verbs::Exposed| {
            let Remote { addr, rkey } = region.remote(0..2 * half)?;
            Ok(MemoryInfo { addr, rkey })
        };
        let targets = regions.as_ref().map_err(String::clone).and_then(|regions| {
            let targets: Result<Vec<_>, spark_ccl_verbs::Error> =
                regions.iter().map(target).collect();
            targets.map_err(|error| error.to_string())
        });
        let theirs = exchange(comm, targets, Error::Rdma)?;
        let regions = regions.map_err(Error::Rdma)?;
        let mut endpoints = Vec::new();
        for (((rail, connection), memory), MemoryInfo { addr, rkey }) in
            rails.into_iter().zip(regions).zip(theirs)
        {
            let remote = Remote { addr, rkey };
            let rail = RailEnds {
                ends: [rail.own.to_string(), rail.peer.to_string()],
                unbound: None,
                round_trip_us: None,
            };
            let mut endpoint = Endpoint::new(rail, connection, memory, remote);
            endpoint.post_receives(self.plan.receives as usize)?;
            endpoints.push(endpoint);
        }
        Ok(endpoints)
    }
}

/// Whether both ranks have true, for each entry.
fn agree(comm: &Communicator, own: &[bool]) -> Result<Vec<bool>, Error> {
    let peer = exchange(comm, Ok(own.to_vec()), Error::Rdma)?;
    Ok(own.iter().zip(peer).map(|(a, b)| *a && b).collect())
}

fn keep<S>(connections: &mut [Option<Connection<S>>], kept: &[bool]) {
    for (connection, kept) in connections.iter_mut().zip(kept) {
        if !kept {
            *connection = None;
        }
    }
}

/// Sends a probe over every connection, and waits for the peer's; returns over which connections
/// both arrived.
fn probe(connections: &mut [Option<Connection<Rts>>]) -> Vec<bool> {
    let until = Instant::now() + PROBE;
    let mut room = PollRoom::default();
    // Whether this rank's probe was sent, and whether the peer's has arrived.
    let mut done = vec![[false; 2]; connections.len()];
    for slot in connections.iter_mut() {
        if slot.as_mut().is_some_and(|one| one.send_probe().is_err()) {
            *slot = None;
        }
    }
    loop {
        for (slot, done) in connections.iter_mut().zip(&mut done) {
            match slot.as_ref().map(|one| one.poll(&mut room)) {
                Some(Ok((sent, receives))) => {
                    done[0] |= sent.is_some();
                    done[1] |= receives > 0;
                }
                Some(Err(_)) => *slot = None,
                None => {}
            }
        }
        let both = |(slot, done): (&Option<_>, &[bool; 2])| slot.is_some() && *done == [true; 2];
        let mut pairs = connections.iter().zip(&done);
        if Instant::now() >= until || pairs.all(|pair| pair.0.is_none() || both(pair)) {
            return connections.iter().zip(&done).map(both).collect();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
