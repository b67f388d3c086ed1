//! Connects the two ranks over each pair of interfaces.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use spark_ccl::Communicator;
use spark_ccl_config::Settings;
use spark_ccl_console::{rails::RailEnds, socket::connect_from};
use spark_ccl_topology::netif::{self, Interface, PeerAddress, SharedSubnets};

use super::args::TcpArgs;
use super::connections::{Connection, Listeners, Rail, choose};
use super::stream::Stream;
use crate::error::Error;
use crate::ranks::hosts::share;
use crate::stats::PerIteration;

/// The pause between two looks at an attempt.
const LOOK: Duration = Duration::from_millis(1);
/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 200;

/// A rail with its sockets.
pub(super) struct Lane {
    pub(super) rail: RailEnds,
    /// The sockets that carry data from rank 0, and as many that carry data to it.
    pub(super) streams: Vec<Stream>,
}

/// A rank's description for the other one; sockets of rank 0 begin with its token.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Own {
    interfaces: Vec<Named>,
    token: [u8; 16],
}

/// An address of an interface.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Named {
    name: String,
    ip: IpAddr,
    index: u32,
    /// Mbit/s, as interfaces are ranked.
    speed: u32,
}

impl Named {
    fn of(one: &Interface) -> Self {
        Self {
            name: one.name.clone(),
            ip: one.addr,
            index: one.index,
            speed: one.rank(),
        }
    }

    fn for_peer(&self) -> PeerAddress {
        PeerAddress {
            ip: self.ip,
            interface: self.index,
            speed: self.speed,
        }
    }
}

/// The rails between the two ranks, in the same order on both.
pub(super) fn connect(
    comm: &Communicator,
    settings: &Settings,
    args: &TcpArgs,
) -> Result<Vec<Lane>, Error> {
    let interfaces = netif::find(settings, None).map_err(|error| failed(error.to_string()))?;
    let mut token = [0; 16];
    getrandom(&mut token, GetRandomFlags::empty())
        .map_err(Error::system("drawing a random number"))?;
    let own = Own {
        interfaces: interfaces.iter().map(Named::of).collect(),
        token,
    };
    let all = share(comm, &own)?;
    // Rank 0's choice counts.
    let mut rails = share(comm, &rails(&interfaces, &all[1]))?.swap_remove(0);
    rails.truncate(args.pair.rails.used(rails.len()));
    if rails.is_empty() {
        let [a, b] = [&all[0], &all[1]].map(|one| list(&one.interfaces));
        return Err(failed(format!(
            "no interface of rank 0 ({a}) has a subnet in common with one of rank 1 ({b}); do both \
             run on one host?"
        )));
    }
    // Without this, data goes as the routes have it.
    let shared = SharedSubnets::here().unwrap_or_default();
    let (connections, streams) = meet(comm, args, &rails, &shared, &all[0].token)?;
    let lane = |(connection, streams): (Connection, Vec<Stream>)| Lane {
        rail: RailEnds {
            ends: [
                end(&all[0], connection.source),
                end(&all[1], connection.target),
            ],
            unbound: connection.unbound,
            round_trip_us: None,
        },
        streams,
    };
    let mut lanes: Vec<_> = connections.into_iter().zip(streams).map(lane).collect();
    for lane in &mut lanes {
        let median = round_trip(comm.rank(), &lane.streams[0]);
        lane.rail.round_trip_us = Some(median.map_err(|error| broken(&lane.rail, args, error))?);
        comm.barrier().run()?;
    }
    Ok(lanes)
}

/// The rails from these interfaces to the other rank.
fn rails(own: &[Interface], peer: &Own) -> Vec<Rail> {
    let peers: Vec<_> = peer.interfaces.iter().map(Named::for_peer).collect();
    let rails = netif::rails(own, &peers).into_iter();
    let rail = |it: netif::Rail| {
        let first = peers[it.target].ip;
        let reaches = |ip: IpAddr| {
            own.iter()
                .any(|one| one.addr == it.source && one.reaches(ip))
        };
        let others = peers.iter().map(|one| one.ip);
        let others = others.filter(|ip| *ip != first && reaches(*ip));
        Rail {
            source: it.source,
            targets: std::iter::once(first).chain(others).collect(),
        }
    };
    rails.map(rail).collect()
}

fn list(interfaces: &[Named]) -> String {
    let names: Vec<_> = interfaces
        .iter()
        .map(|one| format!("{} {}", one.name, one.ip))
        .collect();
    names.join(", ")
}

fn end(own: &Own, address: IpAddr) -> String {
    let name = own.interfaces.iter().find(|one| one.ip == address);
    format!("{} ({address})", name.map_or("", |one| &one.name))
}

/// The connection of each rail, and all of its sockets. Rank 1 listens at its end of each.
fn meet(
    comm: &Communicator,
    args: &TcpArgs,
    rails: &[Rail],
    shared: &SharedSubnets,
    token: &[u8; 16],
) -> Result<(Vec<Connection>, Vec<Vec<Stream>>), Error> {
    let deadline = Instant::now() + args.pair.timeout();
    let listening = || Error::system("listening at an interface");
    let is_called = comm.rank() == 1;
    let named = if is_called { rails } else { &[] };
    let listeners = Listeners::open(named, shared).map_err(listening())?;
    let ports: io::Result<Vec<_>> = listeners.iter().map(Listeners::ports).collect();
    let ports = share(comm, &ports.map_err(listening())?)?.swap_remove(1);
    let own = if is_called {
        Vec::new()
    } else {
        choose(rails, &ports, shared)
    };
    let connections = share(comm, &own)?.swap_remove(0);
    let count = 2 * usize::from(args.sockets);
    let mut lanes = Vec::new();
    for connection in &connections {
        let left = deadline.saturating_duration_since(Instant::now());
        let one = || match listeners.iter().find_map(|one| one.listener(connection)) {
            Some(listener) => accept(listener, token, deadline),
            None => call(connection, shared, token, left),
        };
        let streams: io::Result<Vec<_>> = (0..count).map(|_| one()).collect();
        let Connection { source, target, .. } = connection;
        let named = format!(
            "connecting {source} with {target} (spark-perf doctor says whether a firewall is in \
             the way)"
        );
        let mut streams = streams.map_err(Error::system(named))?;
        for stream in &mut streams {
            stream.set_timeout(args.pair.timeout())?;
        }
        lanes.push(streams);
    }
    Ok((connections, lanes))
}

fn call(
    connection: &Connection,
    shared: &SharedSubnets,
    token: &[u8; 16],
    limit: Duration,
) -> io::Result<Stream> {
    let device = match connection.unbound {
        Some(_) => None,
        None => shared.device_to(connection.source, connection.target),
    };
    let target = (connection.target, connection.port).into();
    let socket = connect_from(Some(connection.source), device, target, limit)?;
    let stream = Stream::new(socket)?;
    stream.write(token)?;
    Ok(stream)
}

/// The next socket of the other rank; anyone else is turned away.
fn accept(listener: &TcpListener, token: &[u8; 16], deadline: Instant) -> io::Result<Stream> {
    listener.set_nonblocking(true)?;
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                if let Ok(stream) = greeted(socket, token) {
                    return Ok(stream);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK),
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::TimedOut.into())
}

fn greeted(socket: TcpStream, token: &[u8; 16]) -> io::Result<Stream> {
    let stream = Stream::new(socket)?;
    let mut said = [0; 16];
    stream.read(&mut said)?;
    if said == *token {
        Ok(stream)
    } else {
        Err(ErrorKind::InvalidData.into())
    }
}

/// The median round trip of one byte in microseconds; on rank 1 that is as seen from there.
fn round_trip(rank: usize, stream: &Stream) -> io::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        if rank == 0 {
            stream.write(&[1])?;
            stream.read(&mut [0])?;
        } else {
            stream.read(&mut [0])?;
            stream.write(&[1])?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(PerIteration::new(times, 0).p50_us)
}

fn failed(why: String) -> Error {
    Error::system("TCP between the ranks")(io::Error::other(why))
}

/// The error of a rail that carries nothing any more.
pub(super) fn broken(rail: &RailEnds, args: &TcpArgs, error: io::Error) -> Error {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return Error::Stalled {
            seconds: args.pair.timeout().as_secs(),
            state: rail.name(),
        };
    }
    Error::system(format!("TCP over {}", rail.name()))(error)
}
