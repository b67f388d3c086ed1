//! Lets ranks of several processes find each other: by a unique id, an address, or the launcher's
//! key-value space. The bootstrap does the rest.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use spark_ccl_bootstrap::{Address, Cancel, Options, PeerInfo, Secret, Session, UniqueId};
use spark_ccl_config::Settings;
use spark_ccl_fork::lookup_while;
use spark_ccl_launcher::{KeyValue, Launch, Rendezvous};
use spark_ccl_transport::netif;

use super::deadline::deadline_after;
use crate::error::Error;

/// How many communicators of this launch met through its key-value space; all ranks count alike.
static MEETINGS: AtomicU32 = AtomicU32::new(0);

/// Finds the other ranks in the way that the launcher offers. The timeout counts from `since`.
pub(crate) fn meet(
    launch: Launch,
    settings: &Settings,
    rdma_ports: u8,
    since: Instant,
    cancel: &Cancel,
) -> Result<Session, Error> {
    let (rank, size) = (launch.rank, launch.size);
    let secret = || {
        let text = settings.secret.as_ref();
        text.map(|text| Secret::from_text(text.as_bytes()))
    };
    let options = |root| {
        options(settings, root, Some(rank)).map(|options| Options {
            rdma_ports,
            since: Some(since),
            cancel: cancel.clone(),
            ..options
        })
    };
    match launch.rendezvous {
        Rendezvous::UniqueId(text) => {
            let id: UniqueId = text.trim().parse()?;
            let root = id.addresses().first().map(SocketAddr::ip);
            Ok(Session::join(&id, rank, size, &options(root)?)?)
        }
        Rendezvous::Address {
            host,
            port,
            setting,
            bind,
        } => {
            // A hint, which must not take the time that joining needs. Joining looks the name up
            // again.
            let hint = deadline_after(since, settings.init_timeout / 4);
            let found = lookup_while(&host, port, hint, || cancel.check())?;
            let root = found.as_ref().ok().and_then(|found| found.first());
            let options = options(root.map(SocketAddr::ip))?;
            let options = options.rendezvous_at(&format!("{setting}={host}"), &found, rank);
            Ok(Session::at_address(
                (&host, port),
                rank,
                size,
                secret().as_ref(),
                bind,
                &options,
            )?)
        }
        Rendezvous::KeyValue(space) => {
            let options = options(None)?;
            let deadline = deadline_after(since, settings.init_timeout);
            through_key_value(space, rank, size, secret(), &options, deadline)
        }
    }
}

/// Rank 0 publishes its unique id where only this launch can read it; else its addresses alone,
/// and the secret must have come another way.
fn through_key_value(
    mut space: Box<dyn KeyValue>,
    rank: u32,
    size: u32,
    secret: Option<Secret>,
    options: &Options,
    deadline: Instant,
) -> Result<Session, Error> {
    let launcher = |error: spark_ccl_launcher::Error| Error::Launcher(error.to_string());
    let private = space.is_private();
    // Rank 0 publishes under it how to reach it. Only the order of calls in one process matters.
    let key = format!("spark-ccl-{}", MEETINGS.fetch_add(1, Ordering::Relaxed));
    let id = if rank == 0 {
        let (id, text) = if private {
            let id = UniqueId::create(options)?;
            (id, id.to_string())
        } else {
            let id = UniqueId::serve(secret.as_ref(), options)?;
            (id, list(&id.addresses()))
        };
        space
            .put(&key, text.as_bytes(), deadline)
            .map_err(launcher)?;
        id
    } else {
        let bytes = space.get(&key, deadline).map_err(launcher)?;
        let text = String::from_utf8_lossy(&bytes);
        if private {
            text.parse()?
        } else {
            UniqueId::of_rendezvous(secret.as_ref(), &unlist(&text)?)?
        }
    };
    Ok(Session::join(&id, rank, size, options)?)
}

fn list(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    texts.join(" ")
}

fn unlist(text: &str) -> Result<Vec<SocketAddr>, Error> {
    let parse = |word: &str| {
        word.parse()
            .map_err(|_| Error::Launcher(format!("rank 0 published {word:?}, which is no address")))
    };
    text.split_whitespace().map(parse).collect()
}

/// The options with which this rank, or a process that only serves the rendezvous (`None`), joins
/// the others. It listens on the interfaces that the settings allow, the best for reaching `root`
/// first.
pub(crate) fn options(
    settings: &Settings,
    root: Option<IpAddr>,
    rank: Option<u32>,
) -> Result<Options, Error> {
    let interfaces = netif::find(settings, root).map_err(|error| Error::Invalid {
        operation: "choosing network interfaces",
        problem: error.to_string(),
    })?;
    // Without these, the routes decide.
    let shared = netif::SharedSubnets::here().unwrap_or_default();
    let mut addresses: Vec<Address> = interfaces
        .iter()
        .map(|interface| Address {
            ip: interface.addr,
            prefix: interface.prefix,
            interface: interface.index,
            speed: interface.rank(),
            device: shared.device(interface.addr),
        })
        .collect();
    // Link-local addresses come last: they have the same subnet on every network.
    addresses.sort_by_key(|address| netif::is_link_local(address.ip));
    Ok(Options {
        addresses,
        init_timeout: settings.init_timeout,
        build: crate::world::VERSION.to_owned(),
        wire_hash: settings.wire_hash(),
        wire_summary: settings.wire_summary(),
        note: if rank == Some(0) {
            settings.read_tuning().text()
        } else {
            String::new()
        },
        ..Options::default()
    })
}

/// Refuses a world of several hosts where this rank has loopback addresses alone, and others do
/// not. Ranks that have nothing else share a loopback, since they have met: containers of one pod.
pub(crate) fn check_addresses(session: &Session, settings: &Settings) -> Result<(), Error> {
    if session.is_local() {
        return Ok(());
    }
    let own = session.peer(session.rank());
    let is_on_loopback = |peer: &PeerInfo| {
        let mut addresses = peer.addresses.iter();
        addresses.all(|one| one.address.ip().is_loopback())
    };
    let mut peers = (0..session.size()).map(|rank| session.peer(rank));
    let elsewhere = peers.find(|peer| peer.host_id != own.host_id && !is_on_loopback(peer));
    let Some(peer) = elsewhere.filter(|_| is_on_loopback(own)) else {
        return Ok(());
    };
    let because = match &settings.socket_ifname {
        Some(choice) => format!("with {}={} ", choice.variable, choice.pattern),
        None => String::new(),
    };
    let all = netif::list().unwrap_or_default();
    let others = all.iter().filter(|one| !one.loopback);
    let others: Vec<_> = others
        .map(|one| format!("{} ({})", one.name, one.addr))
        .collect();
    Err(Error::Invalid {
        operation: "choosing network interfaces",
        problem: format!(
            "{because}{own} has loopback addresses only, at which {peer}, on another host, does \
             not reach it; there are also: {}",
            others.join(", ")
        ),
    })
}
