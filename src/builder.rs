//! Ways to a communicator.

use crate::communicator::Communicator;
use crate::deadline::deadline_in;
use crate::error::Error;
use crate::logging;
use crate::opening::open;
use crate::world::{Reducer, open_nics};
use spark_ccl_bootstrap::{Address, Options, Secret, Session, UniqueId};
use spark_ccl_config::{Backend, Env, Settings, Tuning};
use spark_ccl_launcher::{KeyValue, Launch, Rendezvous};
use spark_ccl_transport::netif;
use spark_ccl_transport::rdma::link::Nics;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How many communicators of this launch met through its key-value space; all ranks count alike.
static MEETINGS: AtomicU32 = AtomicU32::new(0);

/// Settings for new communicators: the environment's, unless set here.
#[derive(Debug, Clone)]
pub struct Builder {
    env: Env,
    operation_timeout: Option<Duration>,
    init_timeout: Option<Duration>,
    device: usize,
    reducer: Reducer,
}

/// What a launcher says about this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchInfo {
    /// The launcher.
    pub kind: String,
    /// This process's rank.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// This process's number on its host, where the launcher says so.
    pub local_rank: Option<usize>,
}

/// The launcher that started this process, if one did.
///
/// # Errors
/// [`Error::Launcher`] when the launcher's variables contradict each other.
pub fn launcher() -> Result<Option<LaunchInfo>, Error> {
    let env = Env::from_process();
    Ok(detect(&env)?.map(|launch| LaunchInfo {
        kind: launch.kind.to_string(),
        rank: launch.rank as usize,
        size: launch.size as usize,
        local_rank: launch.local_rank.map(|rank| rank as usize),
    }))
}

impl Communicator {
    /// A builder with the environment's settings.
    pub fn builder() -> Builder {
        Builder {
            env: Env::from_process(),
            operation_timeout: None,
            init_timeout: None,
            device: 0,
            reducer: Reducer::default(),
        }
    }

    /// `n` ranks that are threads of this process.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 ranks; else what keeps them from connecting.
    pub fn local(n: usize) -> Result<Vec<Self>, Error> {
        Self::builder().local(n)
    }

    /// The rank that the launcher made this process.
    ///
    /// # Errors
    /// [`Error::Launcher`] without a launcher; else what keeps the ranks from connecting.
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().from_env()
    }

    /// Rank `rank` of the `size` ranks that share `id`.
    ///
    /// # Errors
    /// What keeps the ranks from finding, authenticating or reaching each other.
    pub fn connect(id: &UniqueId, rank: usize, size: usize) -> Result<Self, Error> {
        Self::builder().connect(id, rank, size)
    }
}

impl Builder {
    /// How long each operation may take (10 minutes).
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = Some(timeout);
        self
    }

    /// How long the ranks may take to find and reach each other (2 minutes).
    #[must_use]
    pub fn init_timeout(mut self, timeout: Duration) -> Self {
        self.init_timeout = Some(timeout);
        self
    }

    /// What does the collectives of device memory; the same on all ranks ([`Backend::Host`]).
    #[must_use]
    pub fn backend(self, backend: Backend) -> Self {
        self.set("SPARK_CCL_BACKEND", &backend.to_string())
    }

    /// CUDA's number of the device that the first rank of this host takes (0). The host's other ranks take the
    /// next ones in turn.
    #[must_use]
    pub fn device(mut self, first: usize) -> Self {
        self.device = first;
        self
    }

    /// As if the variable were set in the environment. A name of ours that does not exist is an error when the
    /// communicator is made.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.env.set(name, value, "the program");
        self
    }

    /// Makes every reduction take `polls` polls, to test code that waits for one.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn compute_delay(mut self, polls: u32) -> Self {
        self.reducer = Reducer::Delayed(polls);
        self
    }

    /// See [`Communicator::local`].
    ///
    /// # Errors
    /// As there.
    pub fn local(&self, n: usize) -> Result<Vec<Communicator>, Error> {
        let settings = self.settings()?;
        let size = u32::try_from(n).unwrap_or(u32::MAX);
        let sessions = Session::local(size)?;
        // Read once: all ranks must choose alike.
        let tuning = settings.read_tuning();
        let start = |session| {
            let (settings, tuning, reducer) = (settings.clone(), tuning.clone(), self.reducer);
            std::thread::Builder::new()
                .spawn(move || open(session, settings, tuning, reducer, OnceLock::new()))
        };
        let threads: Vec<_> = sessions.into_iter().map(start).collect();
        let (opened, failed): (Vec<_>, Vec<_>) =
            threads.into_iter().map(joined).partition(Result::is_ok);
        // A rank that fails ends the others; what ended it says more than that it has ended.
        let cause = failed
            .into_iter()
            .filter_map(Result::err)
            .min_by_key(is_lost);
        match cause {
            Some(cause) => Err(cause),
            None => opened.into_iter().collect(),
        }
    }

    /// A new unique id, for [`connect`](Self::connect). This process serves the ranks' rendezvous.
    ///
    /// # Errors
    /// When no interface matches the settings, or no port can be had.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let settings = self.settings()?;
        Ok(UniqueId::create(&options(&settings, None, None)?)?)
    }

    /// See [`Communicator::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&self, id: &UniqueId, rank: usize, size: usize) -> Result<Communicator, Error> {
        let settings = self.settings()?;
        let root = id.addresses().first().map(SocketAddr::ip);
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (rank, size) = (narrow(rank), narrow(size));
        let nics = open_nics(&settings);
        let options = Options {
            rdma_ports: ports(&nics),
            ..options(&settings, root, Some(rank))?
        };
        let session = Session::join(id, rank, size, &options)?;
        self.open(session, settings, nics)
    }

    /// See [`Communicator::from_env`].
    ///
    /// # Errors
    /// As there.
    pub fn from_env(&self) -> Result<Communicator, Error> {
        let settings = self.settings()?;
        let launch = detect(&self.env)?.ok_or_else(|| {
            Error::Launcher(
                "no launcher was found: start the ranks with torchrun, mpirun or srun, or set RANK, \
                 WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
                    .to_owned(),
            )
        })?;
        tracing::info!(
            "launched by {}: rank {} of {}, {:?}",
            launch.kind,
            launch.rank,
            launch.size,
            launch.rendezvous
        );
        let nics = open_nics(&settings);
        let session = meet(launch, &settings, ports(&nics))?;
        self.open(session, settings, nics)
    }

    /// Opens the world of a session with other processes, with what rank 0 has measured.
    fn open(
        &self,
        session: Session,
        settings: Settings,
        nics: Nics,
    ) -> Result<Communicator, Error> {
        // Rank 0 has checked it, and all run the same build.
        let tuning = Tuning::parse(session.note().as_bytes()).unwrap_or_default();
        open(session, settings, tuning, self.reducer, nics.into())
    }

    fn settings(&self) -> Result<Settings, Error> {
        let mut settings =
            Settings::from_env(&self.env).map_err(|error| Error::Config(Arc::new(error)))?;
        if let Some(timeout) = self.operation_timeout {
            settings.operation_timeout = timeout;
        }
        if let Some(timeout) = self.init_timeout {
            settings.init_timeout = timeout;
        }
        settings.nccl.device = self.device;
        logging::install(&settings.log, &Options::default().host);
        settings.log_origins();
        Ok(settings)
    }
}

fn ports(nics: &Nics) -> u8 {
    u8::try_from(nics.descriptions().len()).unwrap_or(u8::MAX)
}

fn detect(env: &Env) -> Result<Option<Launch>, Error> {
    let look = |name: &str| env.get(name).map(str::to_owned);
    spark_ccl_launcher::detect(&look).map_err(|error| Error::Launcher(error.to_string()))
}

/// Finds the other ranks in the way that the launcher offers.
fn meet(launch: Launch, settings: &Settings, rdma_ports: u8) -> Result<Session, Error> {
    let (rank, size) = (launch.rank, launch.size);
    let secret = || {
        let text = settings.secret.as_ref();
        text.map(|text| Secret::from_text(text.as_bytes()))
    };
    let options = |root| {
        options(settings, root, Some(rank)).map(|options| Options {
            rdma_ports,
            ..options
        })
    };
    match launch.rendezvous {
        Rendezvous::UniqueId(text) => {
            let id: UniqueId = text.trim().parse()?;
            let root = id.addresses().first().map(SocketAddr::ip);
            Ok(Session::join(&id, rank, size, &options(root)?)?)
        }
        Rendezvous::Address { host, port, bind } => {
            let options = options(resolve(&host, port))?;
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
            through_key_value(space, rank, size, secret(), &options)
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
) -> Result<Session, Error> {
    let deadline = deadline_in(options.init_timeout);
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
            UniqueId::meeting(secret.as_ref(), &unlist(&text)?)?
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

/// What a thread that opens a rank of this process has come to.
fn joined(
    thread: io::Result<JoinHandle<Result<Communicator, Error>>>,
) -> Result<Communicator, Error> {
    let problem = match thread.map(JoinHandle::join) {
        Ok(Ok(outcome)) => return outcome,
        Ok(Err(_)) => "a thread panicked".to_owned(),
        Err(error) => format!("no thread can be started: {error}"),
    };
    Err(Error::System {
        what: "connecting the ranks of this process".to_owned(),
        problem,
    })
}

fn is_lost(error: &Error) -> bool {
    use spark_ccl_bootstrap::Error::Lost;
    matches!(error, Error::Bootstrap(error) if matches!(**error, Lost(_)))
}

fn resolve(host: &str, port: u16) -> Option<IpAddr> {
    let mut addresses = (host, port).to_socket_addrs().ok()?;
    addresses.next().map(|address| address.ip())
}

/// What this rank (`None`: no rank, who serves the rendezvous only) tells the others, and where it listens: the interfaces that the settings allow,
/// the best for reaching `root` first.
fn options(settings: &Settings, root: Option<IpAddr>, rank: Option<u32>) -> Result<Options, Error> {
    let interfaces = netif::find(settings, root).map_err(|error| Error::Invalid {
        operation: "choosing network interfaces",
        problem: error.to_string(),
    })?;
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut addresses: Vec<Address> = interfaces
        .iter()
        .map(|interface| Address {
            ip: interface.addr,
            scope: if is_link_local(&interface.addr) {
                interface.index
            } else {
                0
            },
        })
        .collect();
    // These are the last resort: every link has the same subnet of them.
    addresses.sort_by_key(|address| is_link_local(&address.ip));
    Ok(Options {
        addresses,
        init_timeout: settings.init_timeout,
        build: crate::VERSION.to_owned(),
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
