//! Chooses the connections between the two ranks. Where interfaces share a subnet, sockets are
//! bound to theirs, and only a try tells which of them a cable joins.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spark_ccl_console::socket::{connect_from, listen_at};
use spark_ccl_topology::netif::SharedSubnets;

/// The time limit of a try: one packet may get lost.
const TRY: Duration = Duration::from_millis(1500);

/// An interface of rank 0, and the addresses of rank 1 in its subnet, the best first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rail {
    pub(super) source: IpAddr,
    pub(super) targets: Vec<IpAddr>,
}

/// The connection of the ranks on a rail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Connection {
    pub(super) source: IpAddr,
    pub(super) target: IpAddr,
    pub(super) port: u16,
    /// Why sockets are not bound to their interfaces, although others share the subnet.
    pub(super) unbound: Option<String>,
}

/// The listeners of rank 1: at an address; and, if others share the subnet, there for packets from
/// its interface alone.
pub(super) struct Listeners {
    ip: IpAddr,
    free: TcpListener,
    bound: Option<TcpListener>,
}

/// The ports of these listeners.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ports {
    ip: IpAddr,
    free: u16,
    bound: Option<u16>,
}

impl Listeners {
    /// The listeners of rank 1 for these rails.
    pub(super) fn open(rails: &[Rail], shared: &SharedSubnets) -> io::Result<Vec<Self>> {
        let mut all: Vec<_> = rails.iter().flat_map(|rail| &rail.targets).collect();
        all.sort();
        all.dedup();
        let listeners = |&ip: &IpAddr| {
            let device = shared.device(ip);
            Ok(Self {
                ip,
                free: listen_at(ip, None)?,
                // Kernels before Linux 5.7 refuse.
                bound: device.and_then(|_| listen_at(ip, device).ok()),
            })
        };
        all.into_iter().map(listeners).collect()
    }

    pub(super) fn ports(&self) -> io::Result<Ports> {
        let port = |listener: &TcpListener| listener.local_addr().map(|at| at.port());
        Ok(Ports {
            ip: self.ip,
            free: port(&self.free)?,
            bound: self.bound.as_ref().map(port).transpose()?,
        })
    }

    /// The listener of a connection, if it is one of these.
    pub(super) fn listener(&self, connection: &Connection) -> Option<&TcpListener> {
        let mut all = self.bound.iter().chain([&self.free]);
        all.find(|one| {
            one.local_addr()
                .is_ok_and(|at| (at.ip(), at.port()) == (connection.target, connection.port))
        })
    }
}

/// The connections from rank 0 to these ports of rank 1, one for each rail.
pub(super) fn choose(rails: &[Rail], ports: &[Ports], shared: &SharedSubnets) -> Vec<Connection> {
    let mut connections: Vec<Connection> = Vec::new();
    for rail in rails {
        let is_free = |ports: &&Ports| {
            connections
                .iter()
                .all(|connection| connection.target != ports.ip)
        };
        let of = |target: &IpAddr| ports.iter().find(|one| one.ip == *target);
        let targets: Vec<_> = rail.targets.iter().filter_map(of).filter(is_free).collect();
        connections.extend(connection(rail.source, &targets, shared));
    }
    connections
}

/// The connection to the first of these that answers bound sockets, or that needs none.
fn connection(source: IpAddr, targets: &[&Ports], shared: &SharedSubnets) -> Option<Connection> {
    let mut problem = None;
    for ports in targets {
        let device = shared.device_to(source, ports.ip);
        if device.is_none() && ports.bound.is_none() {
            break;
        }
        let port = ports.bound.unwrap_or(ports.free);
        match connect_from(Some(source), device, (ports.ip, port).into(), TRY) {
            Ok(_) => {
                return Some(Connection {
                    source,
                    target: ports.ip,
                    port,
                    unbound: None,
                });
            }
            Err(error) => drop(problem.get_or_insert_with(|| error.to_string())),
        }
    }
    let first = targets.first()?;
    Some(Connection {
        source,
        target: first.ip,
        port: first.free,
        unbound: problem,
    })
}
