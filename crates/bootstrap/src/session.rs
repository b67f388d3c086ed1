//! A session, the result of the bootstrap: the table of all ranks, and streams to them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use spark_ccl_seal::Stream;

use crate::connect::{Connect, Unreached, establish, redial};
use crate::handshake::{Entered, Intent};
use crate::join::{Joined, Joining, check_rank, join_deadline, resolve};
use crate::link_streams::{Contexts, StreamHandler};
use crate::local::LocalRank;
use crate::network::{Network, reachable};
use crate::root::{self, Root};
use crate::routes::routes;
use crate::stream_table::{Empty, StreamTable};
use crate::unique_id::expired;
use crate::{
    Cancel, Error, OnCancel, Options, PeerInfo, Secret, StreamId, StreamKind, UniqueId, Via,
    Wiring, listening, net,
};

mod reach;
mod survey;

/// How long a rank's listener may refuse connections. Short: it exists before other ranks get its
/// address.
const REFUSAL: Duration = Duration::from_millis(500);
/// How long the rendezvous of a unique id may refuse connections. It exists before the id does.
const ROOT_REFUSAL: Duration = Duration::from_secs(3);

/// A rank with the table of all ranks. Its thread ends when it is dropped.
#[derive(Debug)]
pub struct Session {
    rank: u32,
    peers: Vec<PeerInfo>,
    nonce: [u8; 32],
    note: String,
    stream_table: Arc<StreamTable>,
    contexts: Arc<Contexts>,
    mode: Mode,
    /// Which ranks reach each other, once known.
    wiring: OnceLock<Wiring>,
    /// The rendezvous, if this rank owns it.
    _root: Option<Root>,
    _on_cancel: Option<OnCancel>,
}

#[derive(Debug)]
enum Mode {
    Network(Network),
    Local(LocalRank),
}

impl Session {
    /// Joins the world of `id` as one of its `size` ranks, and returns once all have joined. If the
    /// id was made without a secret, this rank listens on loopback addresses only, and the others
    /// must belong to its user.
    ///
    /// # Errors
    /// [`Error::Argument`] for an impossible rank; [`Error::Unreachable`], [`Error::Auth`] or
    /// [`Error::Version`] if the rendezvous cannot be joined; [`Error::Expired`] if it is over;
    /// [`Error::Mismatch`], [`Error::Missing`] or [`Error::Lost`] with the same text on every rank;
    /// [`Error::Os`].
    pub fn join(id: &UniqueId, rank: u32, size: u32, options: &Options) -> Result<Self, Error> {
        check_rank(rank, size)?;
        let secret = id.secret();
        let on_loopback = (secret == Secret::public()).then(|| options.on_loopback());
        let options = on_loopback.as_ref().unwrap_or(options);
        let joining = Joining {
            targets: &id.addresses(),
            secret: &secret,
            rank,
            size,
            options,
            deadline: join_deadline(options),
            refusal: ROOT_REFUSAL,
        };
        // Read before waiting, which may take as long as an id is valid.
        let life = id.life();
        let joined = joining.join();
        let joined = joined.map_err(|error| expired(error, life, &id.addresses()))?;
        Ok(Self::between_processes(rank, joined, None, &options.cancel))
    }

    /// Joins a world whose rendezvous is at a known address, such as torchrun's `MASTER_ADDR` and
    /// `MASTER_PORT`. With `bind`, rank 0 serves it there; the others retry until the deadline.
    /// Without a secret, the address must be a loopback address, all ranks listen on loopback
    /// addresses only, and all belong to one user.
    ///
    /// # Errors
    /// Those of [`Session::join`], and [`Error::NoSecret`], [`Error::User`],
    /// [`Error::AddressInUse`].
    pub fn at_address(
        (host, port): (&str, u16),
        rank: u32,
        size: u32,
        secret: Option<&Secret>,
        bind: bool,
        options: &Options,
    ) -> Result<Self, Error> {
        check_rank(rank, size)?;
        if port == 0 {
            let text = format!("the rendezvous at {host} needs a port, not 0");
            return Err(Error::Argument(text));
        }
        let deadline = join_deadline(options);
        let serves = bind && rank == 0;
        let mut targets = match secret {
            // Empty: the rendezvous listens on all addresses of this host.
            Some(_) if serves && !means_loopback(host) => Vec::new(),
            _ => resolve(host, port, deadline, &options.cancel)?,
        };
        if secret.is_none() && targets.iter().any(|target| !target.ip().is_loopback()) {
            return Err(Error::NoSecret {
                address: format!("{host}:{port}"),
            });
        }
        let on_loopback = secret.is_none().then(|| options.on_loopback());
        let options = on_loopback.as_ref().unwrap_or(options);
        let secret = secret.copied().unwrap_or_else(Secret::public);
        let root = if serves {
            let root = Root::start(listening::listen_for(&targets, port)?, &secret, options)?;
            if !options.doubt.is_empty() {
                spark_ccl_log::remark(&options.doubt);
            }
            targets = root::local_targets(root.addresses());
            Some(root)
        } else {
            None
        };
        let joining = Joining {
            targets: &targets,
            secret: &secret,
            rank,
            size,
            options,
            deadline,
            refusal: options.init_timeout,
        };
        let joined = joining.join()?;
        Ok(Self::between_processes(rank, joined, root, &options.cancel))
    }

    /// The ranks of a world within this process, by rank. Their streams are socket pairs.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 ranks or too many; [`Error::Os`].
    pub fn local(size: u32) -> Result<Vec<Self>, Error> {
        check_rank(0, size)?;
        let (nonce, peers, local_ranks) = LocalRank::all(size)?;
        let sessions = (0..).zip(local_ranks).map(|(rank, local_rank)| Session {
            rank,
            peers: peers.clone(),
            nonce,
            note: String::new(),
            stream_table: local_rank.stream_table().clone(),
            contexts: local_rank.contexts().clone(),
            mode: Mode::Local(local_rank),
            wiring: OnceLock::new(),
            _root: None,
            _on_cancel: None,
        });
        Ok(sessions.collect())
    }

    fn between_processes(rank: u32, joined: Joined, root: Option<Root>, cancel: &Cancel) -> Self {
        let Joined {
            table,
            stream_table,
            contexts,
            network,
        } = joined;
        let mode = Mode::Network(network);
        let its = Arc::clone(&stream_table);
        // Ends all waits for other ranks; once these are connected, it changes nothing.
        let on_cancel = cancel.on_cancel(move || its.conclude(Err(Error::Cancelled)));
        Session {
            rank,
            peers: table.peers,
            nonce: table.nonce,
            note: table.note,
            stream_table,
            contexts,
            mode,
            wiring: OnceLock::new(),
            _root: root,
            _on_cancel: Some(on_cancel),
        }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Rank 0's note to all ranks; empty if they are threads of one process.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// A rank's entry in the table.
    ///
    /// # Panics
    /// `rank` is not below [`Session::size`].
    pub fn peer(&self, rank: u32) -> &PeerInfo {
        &self.peers[rank as usize]
    }

    /// A rank in words, like "rank 3 (hostB, pid 4711)".
    pub fn describe(&self, rank: u32) -> String {
        self.peers
            .get(rank as usize)
            .map_or_else(|| format!("rank {rank} (unknown)"), PeerInfo::to_string)
    }

    /// Whether a rank shares this rank's kernel and network namespace, so that [`Via::Unix`]
    /// reaches it.
    pub fn local_to(&self, rank: u32) -> bool {
        let Some(peer) = self.peers.get(rank as usize) else {
            return false;
        };
        let own = self.peer(self.rank);
        // Both must listen: they have to give the same answer.
        let listen = !peer.unix_name.is_empty() && !own.unix_name.is_empty();
        (matches!(self.mode, Mode::Local(_)) || listen) && peer.host_id == own.host_id
    }

    /// Opens a stream to a peer, which gets its end from [`Session::accept`]. Not for streams of
    /// links. Over TCP the stream has seals, for the caller to use.
    ///
    /// # Errors
    /// [`Error::Unreachable`] names every address that was tried; if the world's initialisation
    /// fails meanwhile, its error; [`Error::Argument`], [`Error::Auth`], [`Error::Protocol`],
    /// [`Error::Os`].
    pub fn connect(
        &self,
        peer: u32,
        stream_id: StreamId,
        via: Via,
        deadline: Instant,
    ) -> Result<Stream, Error> {
        check_rank(peer, self.size())?;
        match &self.mode {
            Mode::Local(local_rank) => local_rank.connect(self.peer(peer), stream_id, via),
            Mode::Network(network) => {
                let name = self.describe(peer);
                let routes = network.routes(self.peer(peer), via, self.local_to(peer))?;
                establish(&Connect {
                    peer: &name,
                    routes: &routes,
                    key: &network.key,
                    intent: Intent::Stream {
                        from: self.rank,
                        to: peer,
                        stream_id,
                    },
                    deadline,
                    refusal: REFUSAL,
                    interrupt: &|| self.stream_table.failure(),
                    more: None,
                })
                .map(Entered::into_stream)
            }
        }
    }

    /// Whether all ranks are threads of this process.
    pub fn is_local(&self) -> bool {
        matches!(self.mode, Mode::Local(_))
    }

    /// Passes every stream of this context's links to `handler`. It is called on the session's
    /// thread, or by any rank's thread if all ranks are threads of this process, and must not
    /// block.
    pub fn handle_streams(&self, context: u64, handler: &StreamHandler) {
        let early = self.contexts.handle_streams(context, handler);
        match &self.mode {
            Mode::Local(local_rank) => local_rank.deliver(early),
            Mode::Network(network) => network.requests.deliver(early),
        }
    }

    /// Removes the context's handler. Streams that arrive for it later are dropped, and so are
    /// its dials and negotiations.
    pub fn dismiss(&self, context: u64) {
        self.contexts.dismiss(context);
        match &self.mode {
            Mode::Local(local_rank) => local_rank.forget(context),
            Mode::Network(network) => network.requests.bell().ring(),
        }
    }

    /// Reopens a broken stream, over TCP. Tries each address once. If its number is above 0, the
    /// peer's end goes to the receiver that the peer passed to [`hand_over`](Self::hand_over).
    ///
    /// # Errors
    /// [`Unreached`] tells whether the peer's process still exists.
    pub fn redial(
        &self,
        peer: u32,
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Stream, Unreached> {
        let Mode::Network(network) = &self.mode else {
            return Err(Unreached::NoAnswer("it is in this process".to_owned()));
        };
        let name = self.describe(peer);
        // A rank on this host listens on our own addresses, too.
        let on_this_host = self.peer(peer).host_id == self.peer(self.rank).host_id;
        let own = |ip| !on_this_host && net::is_own(ip);
        let targets = reachable(self.peer(peer), on_this_host, net::is_own);
        let routes = routes(&network.own, &targets, None);
        let to = Connect {
            peer: &name,
            routes: &routes,
            key: &network.key,
            intent: Intent::Stream {
                from: self.rank,
                to: peer,
                stream_id,
            },
            deadline,
            refusal: REFUSAL,
            interrupt: &|| None,
            more: None,
        };
        redial(&to, own)
    }

    /// Passes streams of this kind that peers reopen, with a number above 0, to `receiver`, on the
    /// session's thread. Only the first call counts.
    pub fn hand_over(
        &self,
        kind: StreamKind,
        receiver: impl Fn(u32, StreamId, Stream) + Send + Sync + 'static,
    ) {
        self.stream_table.hand_over(kind, Box::new(receiver));
    }

    /// Takes the stream that a peer opens with the same id.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the peer; if the world's initialisation fails meanwhile, its error;
    /// [`Error::Lost`] if a peer within this process has ended; [`Error::Argument`].
    pub fn accept(
        &self,
        peer: u32,
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Stream, Error> {
        check_rank(peer, self.size())?;
        let waited_since = Instant::now();
        self.stream_table
            .take(peer, stream_id, deadline)
            .map_err(|empty| match empty {
                Empty::Failed(error) => error,
                Empty::Departed => Error::Lost(format!("{} has ended", self.describe(peer))),
                Empty::Late(strangers) => Error::Timeout(format!(
                    "{} did not open its stream for {stream_id} within {:.1} s{strangers}",
                    self.describe(peer),
                    waited_since.elapsed().as_secs_f64()
                )),
            })
    }

    /// Ends the initialisation: reports whether this rank's links are up, and returns `Ok` once
    /// those of all ranks are. Until then, every rank must keep its session. Call it once per
    /// session.
    ///
    /// # Errors
    /// [`Error::Links`] or [`Error::Lost`], the same on every rank: which ranks failed, and why.
    /// [`Error::Timeout`] if there is no answer; [`Error::Argument`] on the second call.
    pub fn seal(&self, result: Result<(), String>, deadline: Instant) -> Result<(), Error> {
        match &self.mode {
            Mode::Local(local_rank) => local_rank.report(result, &self.peers)?,
            Mode::Network(network) => network.report(result, &self.stream_table, deadline)?,
        }
        self.stream_table
            .outcome(deadline)
            .unwrap_or_else(|| match &self.mode {
                Mode::Local(local_rank) => local_rank.give_up(),
                Mode::Network(_) => Err(Error::Timeout(
                    "the rendezvous did not say in time whether all ranks' links are up".to_owned(),
                )),
            })
    }

    /// The name of a new context: the same on all ranks that pass the same arguments, and another
    /// one in other worlds.
    pub fn derive_context(&self, parent: u64, counter: u64, color: u64) -> u64 {
        let mut hash = Sha256::new_with_prefix(b"context");
        hash.update(self.nonce);
        for part in [parent, counter, color] {
            hash.update(part.to_le_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        digest
            .iter()
            .take(8)
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

/// Whether a host name means this host, without resolving it.
fn means_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}
