//! The networked part of a session: the routes to its peers, and its end of the rendezvous until
//! the world is sealed.

use std::net::{IpAddr, Shutdown};
use std::sync::Arc;
use std::time::Instant;

use socket2::Socket;
use spark_ccl_fork::{Process, Unshared};
use spark_ccl_log::Mutex;
use spark_ccl_seal::Sealer;

use crate::address::Address;
use crate::dial::Route;
use crate::init_result::InitReport;
use crate::link_streams::Requests;
use crate::relay::Draining;
use crate::routes::routes;
use crate::stop::Stop;
use crate::stream_table::StreamTable;
use crate::wire::FrameKind;
use crate::wiring::Survey;
use crate::{Endpoint, Error, PeerInfo, Secret, Via, net, sealed_frame};

/// The part that only sessions between processes have.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) key: Secret,
    pub(crate) own: Vec<Address>,
    /// `None` once the rank has reported.
    rendezvous: Mutex<Option<(Arc<Unshared<Socket>>, Sealer)>>,
    stop: Arc<Stop>,
    draining: Arc<Draining>,
    pub(crate) requests: Arc<Requests>,
    process: Process,
}

impl Network {
    pub(crate) fn new(
        key: Secret,
        own: Vec<Address>,
        rendezvous: (Arc<Unshared<Socket>>, Sealer),
        (stop, draining): (Arc<Stop>, Arc<Draining>),
        requests: Arc<Requests>,
    ) -> Self {
        Network {
            key,
            own,
            rendezvous: Mutex::new(Some(rendezvous)),
            stop,
            draining,
            requests,
            process: Process::here(),
        }
    }

    /// The routes to a peer.
    pub(crate) fn routes(
        &self,
        peer: &PeerInfo,
        via: Via,
        local: bool,
    ) -> Result<Vec<Route>, Error> {
        match via {
            Via::Unix if local => Ok(vec![Route::Unix {
                name: peer.unix_name.clone(),
            }]),
            Via::Unix => Err(Error::Argument(format!(
                "{peer} cannot be reached through a Unix socket: it has another host or network \
                 namespace"
            ))),
            Via::Tcp {
                source,
                target: None,
            } => Ok(routes(
                &self.own,
                &reachable(peer, local, net::is_own),
                source,
            )),
            Via::Tcp {
                source,
                target: Some(index),
            } => match peer.addresses.get(index) {
                Some(target) => Ok(routes(&self.own, &[*target], source)),
                None => Err(Error::Argument(format!(
                    "{peer} has {} addresses, so none with index {index}",
                    peer.addresses.len()
                ))),
            },
        }
    }

    /// Tells the rendezvous which ranks this one reached. Ignores errors: if the rendezvous is
    /// gone, the stream table hears of it.
    pub(crate) fn tell(&self, survey: &Survey, deadline: Instant) {
        if let Some((stream, sealer)) = &mut *self.rendezvous.lock() {
            let survey = sealed_frame::sealed(sealer, FrameKind::Survey, survey.encode());
            let _ = net::write_all(stream, &survey, deadline);
        }
    }

    /// Reports to the rendezvous whether this rank's links are up.
    pub(crate) fn report(
        &self,
        result: Result<(), String>,
        stream_table: &StreamTable,
        deadline: Instant,
    ) -> Result<(), Error> {
        let Some((stream, mut sealer)) = self.rendezvous.lock().take() else {
            return Err(Error::Argument("a session is sealed only once".to_owned()));
        };
        let time_left = deadline.saturating_duration_since(Instant::now());
        let report = InitReport { result, time_left }.encode();
        let report = sealed_frame::sealed(&mut sealer, FrameKind::Report, report);
        match net::write_all(&stream, &report, deadline) {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(Error::Timeout(
                "the rendezvous does not take this rank's report".to_owned(),
            )),
            // The rendezvous is gone. If it sent a result, the stream table has or soon gets it.
            Err(_) if stream_table.outcome(deadline).is_some() => Ok(()),
            Err(error) => Err(Error::os("report to the rendezvous", &error)),
            Ok(()) => Ok(()),
        }
    }
}

impl Drop for Network {
    /// In a forked child this does nothing: the sockets and the thread are the parent's.
    fn drop(&mut self) {
        if !self.process.is_here() {
            return;
        }
        if let Some((stream, _)) = self.rendezvous.lock().take() {
            // The session's thread shares the socket, so only a shutdown lets the rendezvous notice
            // the end now.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.stop.stop();
        self.draining.wait();
    }
}

/// The addresses at which to try a peer. For a peer on another host, leaves out loopback addresses
/// and addresses that this host has, too: another process would answer there. If the peer has no
/// others, they stay. Container networks have the same addresses on every host.
pub(crate) fn reachable(
    peer: &PeerInfo,
    local: bool,
    is_own: impl Fn(IpAddr) -> bool,
) -> Vec<Endpoint> {
    let all = peer.addresses.iter().copied();
    let elsewhere: Vec<_> = all.filter(|one| !is_own(one.address.ip())).collect();
    if local || elsewhere.is_empty() {
        peer.addresses.clone()
    } else {
        elsewhere
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::HostId;

    #[test]
    fn what_leads_to_this_host_is_the_last_resort_for_another() {
        let endpoint = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
        let addresses = ["127.0.0.1:1", "[::1]:2", "10.0.0.1:3"].map(endpoint);
        let peer = |addresses: &[Endpoint]| PeerInfo {
            rank: 1,
            host: "other".to_owned(),
            host_id: HostId {
                boot: [0; 16],
                network: 0,
            },
            pid: 1,
            addresses: addresses.to_vec(),
            unix_name: String::new(),
            rdma_ports: 0,
        };
        let none = |ip: IpAddr| ip.is_loopback();
        assert_eq!(reachable(&peer(&addresses), true, none), addresses);
        assert_eq!(reachable(&peer(&addresses), false, none), [addresses[2]]);
        let only = &addresses[..2];
        assert_eq!(reachable(&peer(only), false, none), only);
        // Like docker0's.
        let bridge = endpoint("172.17.0.1:4");
        let all = [addresses[0], bridge, addresses[2]];
        let is_own = |ip: IpAddr| ip.is_loopback() || ip == bridge.address.ip();
        assert_eq!(reachable(&peer(&all), false, is_own), [addresses[2]]);
        assert_eq!(reachable(&peer(&all), true, is_own), all);
        assert_eq!(reachable(&peer(&[bridge]), false, is_own), [bridge]);
    }
}
