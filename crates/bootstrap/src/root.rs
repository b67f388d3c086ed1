//! The rendezvous: waits for all ranks of one world, compares their hellos, and sends every rank
//! the table, or every rank the same error.

use std::net::SocketAddr;
use std::sync::Arc;

use socket2::Socket;
use spark_ccl_fork::Process;

use crate::address::Address;
use crate::listening::listen_on;
use crate::server::{self, ListenAt, Served};
use crate::stop::Stop;
use crate::{Error, Options, Secret, UniqueId};

/// Owns the rendezvous of one world. Dropping it before the world is complete ends the rendezvous,
/// and every rank that waits for it gets an error.
#[derive(Debug)]
pub struct Root {
    id: UniqueId,
    addresses: Vec<SocketAddr>,
    /// `None` once the rendezvous runs in the background.
    stop: Option<Arc<Stop>>,
    process: Process,
}

impl Root {
    /// Listens on the addresses of `options` and serves one world, whose size its ranks determine,
    /// until all of them have joined and sealed, or until `options.init_timeout`.
    ///
    /// # Errors
    /// There is no address to listen on, or the system refuses the socket or the thread.
    pub fn create(options: &Options) -> Result<Self, Error> {
        let place = ListenAt::Shared(options.listen_addresses()?);
        Self::serve(place, &Secret::generate()?, options)
    }

    /// Serves a world on `listeners`.
    pub(crate) fn start(
        listeners: Vec<Socket>,
        secret: &Secret,
        options: &Options,
    ) -> Result<Self, Error> {
        Self::serve(ListenAt::Alone(listeners), secret, options)
    }

    fn serve(place: ListenAt<'_>, secret: &Secret, options: &Options) -> Result<Self, Error> {
        let Served { addresses, stop } = server::serve(place, secret, options)?;
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

    /// Lets the rendezvous run in the background until its world is complete or its deadline has
    /// passed.
    fn into_background(mut self) -> UniqueId {
        self.stop = None;
        self.id
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl UniqueId {
    /// Starts a rendezvous in the background of this process and returns its id; see
    /// [`Root::create`]. The id is good for one world, for as long as `options.init_timeout`, and
    /// while this process lives.
    ///
    /// # Errors
    /// Those of [`Root::create`].
    pub fn create(options: &Options) -> Result<Self, Error> {
        Root::create(options).map(Root::into_background)
    }

    /// Like [`UniqueId::create`], for a secret that the ranks already have. The other ranks only
    /// need the id's [`addresses`](UniqueId::addresses), which are not secret, and
    /// [`UniqueId::of_rendezvous`]. Without a secret, the rendezvous listens on loopback addresses
    /// only.
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
