//! The interfaces of this host that lead to a peer over TCP: which way each socket of a link takes,
//! and whether it did.

use std::iter;
use std::num::NonZeroU32;

use socket2::Socket;
use spark_ccl_bootstrap::{Address, Endpoint, Via};
use spark_ccl_config::Settings;
use spark_ccl_fork::Unshared;
use spark_ccl_transport::netif::{self, Interface, NetifError, PeerAddress, Rail, SharedSubnets};

/// The interfaces to choose rails of TCP from, and which of them share a subnet.
#[derive(Default)]
pub(crate) struct Interfaces {
    list: Vec<Interface>,
    shared: SharedSubnets,
}

impl Interfaces {
    /// The interfaces that the settings allow.
    pub(super) fn find(settings: &Settings) -> Result<Self, NetifError> {
        let choice = settings.socket_ifname.as_ref();
        Ok(Self {
            list: netif::select(&netif::list()?, choice, settings.socket_family, None)?,
            shared: SharedSubnets::here()?,
        })
    }

    /// The ways of a socket to a peer at these addresses, the best first. The sockets of a link
    /// take turns on the rails, and are bound to their interfaces where these share a subnet. None
    /// where no rail leads to the peer.
    pub(super) fn ways(&self, peer: &[Endpoint], socket: u32) -> Vec<Via> {
        let rails = self.rails(peer);
        let Some(rail) = rails.get(socket as usize % rails.len().max(1)) else {
            return Vec::new();
        };
        // Only a try tells which of the peer's addresses in the subnet the interface's cable leads
        // to.
        let others = (0..peer.len()).filter(|other| *other != rail.target);
        let bound = iter::once(rail.target).chain(others).filter_map(|target| {
            let device = Some(self.device(rail, peer.get(target)?)?);
            let source = Address {
                device,
                ..rail.source.into()
            };
            Some(via(source, target))
        });
        let free = via(rail.source.into(), rail.target);
        bound.chain([free]).collect()
    }

    fn rails(&self, peer: &[Endpoint]) -> Vec<Rail> {
        let address = |one: &Endpoint| PeerAddress {
            ip: one.address.ip(),
            interface: one.interface,
            speed: one.speed,
        };
        netif::rails(&self.list, &peer.iter().map(address).collect::<Vec<_>>())
    }

    fn device(&self, rail: &Rail, target: &Endpoint) -> Option<NonZeroU32> {
        self.shared.device_to(rail.source, target.address.ip())
    }

    /// The interfaces of rails to a peer that share a subnet and to which none of a link's sockets
    /// is bound, in words. The kernel's routes, and the peer's, choose whether they carry anything.
    pub(super) fn unbound(
        &self,
        peer: &[Endpoint],
        sockets: &[Unshared<Socket>],
    ) -> Option<String> {
        let bound = sockets.iter().map(|socket| socket.device_index_v4());
        let bound: Vec<_> = bound.filter_map(|device| device.ok().flatten()).collect();
        // A link with fewer sockets does not use all rails.
        let rails = self.rails(peer).into_iter().take(sockets.len());
        let unbound = rails.filter_map(|rail| {
            let device = self.device(&rail, peer.get(rail.target)?)?;
            let mut all = self.list.iter();
            let one = all.find(|one| one.index == device.get() && !bound.contains(&device))?;
            Some(format!("{} ({})", one.name, rail.source))
        });
        let unbound: Vec<_> = unbound.collect();
        (!unbound.is_empty()).then(|| unbound.join(", "))
    }
}

/// The way from an address of this host to one of the peer's.
fn via(source: Address, target: usize) -> Via {
    Via::Tcp {
        source: Some(source),
        target: Some(target),
    }
}
