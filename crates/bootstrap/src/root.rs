//! The rendezvous: a thread that waits for all ranks of one world, compares their hellos, and sends every rank the
//! table, or every rank the same error.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use socket2::Socket;
use spark_ccl_fork::Process;

use crate::handshake::WorldName;
use crate::options::Address;
use crate::server::{self, Place, Served};
use crate::stop::Stop;
use crate::{Error, Options, Secret, UniqueId, net};

/// The label under which the rendezvous' key is derived from the secret.
const KEY_LABEL: &[u8] = b"rendezvous";

/// Owns the rendezvous of one world. Dropping it before the world is complete ends the rendezvous, and every rank that
/// waits for it gets an error.
#[derive(Debug)]
pub struct Root {
    id: UniqueId,
    addresses: Vec<SocketAddr>,
    /// `None` once the rendezvous runs in the background.
    stop: Option<Arc<Stop>>,
    process: Process,
}

impl Root {
    /// Listens on the addresses of `options` and serves one world, whose size its ranks determine, until all of them
    /// have joined and sealed, or until `options.init_timeout`.
    ///
    /// # Errors
    /// There is no address to listen on, or the system refuses the socket or the thread.
    pub fn create(options: &Options) -> Result<Self, Error> {
        let place = Place::Shared(options.listen_addresses()?);
        Self::serve(place, &Secret::generate()?, options)
    }

    /// Serves a world on `listeners`.
    pub(crate) fn start(
        listeners: Vec<Socket>,
        secret: &Secret,
        options: &Options,
    ) -> Result<Self, Error> {
        Self::serve(Place::Alone(listeners), secret, options)
    }

    fn serve(place: Place<'_>, secret: &Secret, options: &Options) -> Result<Self, Error> {
        let Served { addresses, stop } = server::serve(place, secret, options.init_timeout)?;
        let (id, published) = UniqueId::new(secret, &addresses, Some(options.init_timeout));
        if published < addresses.len() {
            spark_ccl_log::info!(
                "{} rendezvous addresses do not fit into the unique id",
                addresses.len() - published
            );
        }
        spark_ccl_log::info!("rendezvous started at {addresses:?}");
        Ok(Root {
            id,
            addresses,
            stop: Some(stop),
            process: Process::here(),
        })
    }

    /// The id to pass to the other ranks.
    pub fn id(&self) -> UniqueId {
        self.id
    }

    /// Lets the rendezvous run in the background until its world is complete or its deadline has passed.
    fn into_background(mut self) -> UniqueId {
        self.stop = None;
        self.id
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl UniqueId {
    /// Starts a rendezvous in the background of this process and returns its id; see [`Root::create`]. The id is good
    /// for one world, for as long as `options.init_timeout`, and while this process lives.
    ///
    /// # Errors
    /// Those of [`Root::create`].
    pub fn create(options: &Options) -> Result<Self, Error> {
        Root::create(options).map(Root::into_background)
    }

    /// Like [`UniqueId::create`], for a secret that the ranks already have. The other ranks only need the id's
    /// [`addresses`](UniqueId::addresses), which are not secret, and [`UniqueId::meeting`]. Without a secret, the
    /// rendezvous listens on loopback addresses only.
    ///
    /// # Errors
    /// Those of [`Root::create`].
    pub fn serve(secret: Option<&Secret>, options: &Options) -> Result<Self, Error> {
        let on_loopback = options.on_loopback();
        let (secret, options) = match secret {
            Some(secret) => (*secret, options),
            None => (Secret::public(), &on_loopback),
        };
        let listeners = listen_on(options.listen_addresses()?)?;
        let root = Root::start(listeners, &secret, options);
        root.map(Root::into_background)
    }
}

impl Drop for Root {
    /// In a forked child this does nothing: the rendezvous is the parent's.
    fn drop(&mut self) {
        if let Some(stop) = self.stop.as_ref().filter(|_| self.process.is_here()) {
            stop.stop();
        }
    }
}

/// The name by which the ranks of a world tell it from others at the same address. It tells nothing of the secret.
pub(crate) fn world(secret: &Secret) -> WorldName {
    let whole = key(secret).sign(b"name", &[]);
    let mut name = WorldName::default();
    name.copy_from_slice(&whole[..size_of::<WorldName>()]);
    name
}

/// The key of a rendezvous.
pub(crate) fn key(secret: &Secret) -> Secret {
    secret.derive(KEY_LABEL, &[])
}

/// A TCP listener. The error names the address.
pub(crate) fn listen(address: SocketAddr) -> Result<Socket, Error> {
    net::listen_tcp(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::AddressInUse { address },
        _ => Error::os(format!("listen on {address}"), &error),
    })
}

/// Listeners on free ports of those addresses that can be used. A new IPv6 address cannot be used until the kernel has
/// checked that no other host has it.
pub(crate) fn listen_on(addresses: &[Address]) -> Result<Vec<Socket>, Error> {
    let mut listeners = Vec::new();
    let mut failure = None;
    for address in addresses {
        match listen(address.with_port(0)) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                spark_ccl_log::warn!("an address is left out: {error}");
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// Listeners at the well-known port of a rendezvous: on those `addresses` that this host has, or on all of this host's
/// if none are given.
pub(crate) fn listen_for(addresses: &[SocketAddr], port: u16) -> Result<Vec<Socket>, Error> {
    if addresses.is_empty() {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let listener = match listen(any) {
            // No IPv6 on this host.
            Err(Error::Os { .. }) => listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
            other => other,
        };
        return Ok(vec![listener?]);
    }
    let mut listeners = Vec::new();
    let mut failure = None;
    for &address in addresses {
        match listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(error @ Error::AddressInUse { .. }) => return Err(error),
            // "localhost" may have an IPv6 address on a host without IPv6.
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// The addresses at which this process reaches its own rendezvous, which listens on `addresses`.
pub(crate) fn local_targets(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    addresses
        .iter()
        // An unspecified IPv6 listener serves IPv4, too.
        .map(|address| {
            if address.ip().is_unspecified() {
                Address::LOOPBACK.with_port(address.port())
            } else {
                *address
            }
        })
        .collect()
}
