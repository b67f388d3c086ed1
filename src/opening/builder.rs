//! Makes a program's first communicators: their settings (`Builder`), and the ways in which ranks
//! meet. The meeting itself is in `rendezvous.rs`.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{Cancel, Options, Session, UniqueId};
use spark_ccl_config::{AlgorithmChoice, Backend, Env, Net, Path, Settings, Tuning, VARIABLES};
use spark_ccl_launcher::local_rank;
use spark_ccl_transport::rdma::link::Nics;

use super::open;
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::world::deadline::deadline_after;
use crate::world::launch::LaunchOverrides;
use crate::world::logging;
use crate::world::rendezvous::{meet, options};
use crate::world::{Reducer, local_monitors, open_nics};

/// The name of this origin of values in logs and errors.
const PROGRAM: &str = "the program";

/// Settings for new communicators: the environment's, unless set here.
///
/// Whatever is set here wins over the environment and configuration files; of several calls for the
/// same setting, by its own method or by [`set`](Self::set), the last one wins. Values that are not
/// allowed, alone or together, are an [`Error::Config`] when the communicator is made.
/// `docs/environment.md` explains each variable.
///
/// ```
/// use spark_ccl::{Algorithm, Communicator, Path};
/// use std::time::Duration;
///
/// let builder = Communicator::builder()
///     .operation_timeout(Duration::from_secs(30))
///     .path(Path::Safe)
///     .algorithms(Algorithm::Ring);
/// let ranks = builder.local(2)?;
/// # Ok::<(), spark_ccl::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Builder {
    env: Env,
    device: usize,
    launch: LaunchOverrides,
    reducer: Reducer,
    cancel: Cancel,
    #[cfg(feature = "testing")]
    verbs: Option<spark_ccl_verbs::Library>,
}

impl Communicator {
    /// A builder with the environment's settings.
    pub fn builder() -> Builder {
        Builder {
            env: Env::from_process(),
            device: 0,
            launch: LaunchOverrides::default(),
            reducer: Reducer::default(),
            cancel: Cancel::new(),
            #[cfg(feature = "testing")]
            verbs: None,
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
    /// How long each operation may take, more than 0 (10 minutes): `SPARK_CCL_TIMEOUT`.
    #[must_use]
    pub fn operation_timeout(self, timeout: Duration) -> Self {
        self.with("SPARK_CCL_TIMEOUT", &timeout.as_secs_f64(), timeout)
    }

    /// How long the ranks may take to find and reach each other, and to agree on how to go on
    /// ([`Communicator::shrink`]), more than 0 (2 minutes): `SPARK_CCL_INIT_TIMEOUT`.
    #[must_use]
    pub fn init_timeout(self, timeout: Duration) -> Self {
        self.with("SPARK_CCL_INIT_TIMEOUT", &timeout.as_secs_f64(), timeout)
    }

    /// The path that data take, the same on all ranks ([`Path::Auto`]): `SPARK_CCL_PATH`.
    #[must_use]
    pub fn path(self, path: Path) -> Self {
        self.with("SPARK_CCL_PATH", &path, path)
    }

    /// The algorithms that may be chosen, the same on all ranks (all): `SPARK_CCL_ALGO`. For some
    /// calls only, see [`Communicator::restricted`].
    #[must_use]
    pub fn algorithms(self, algorithms: impl Into<AlgorithmChoice>) -> Self {
        let algorithms = algorithms.into();
        self.with("SPARK_CCL_ALGO", &algorithms.to_string(), algorithms)
    }

    /// Whether ranks of one host use shared memory, the same on all ranks (yes); else they use the
    /// network: `SPARK_CCL_SHM`.
    #[must_use]
    pub fn shared_memory(self, wanted: bool) -> Self {
        self.with("SPARK_CCL_SHM", &wanted, wanted)
    }

    /// The network between hosts, the same on all ranks ([`Net::Auto`]): `SPARK_CCL_NET`.
    #[must_use]
    pub fn network(self, network: Net) -> Self {
        self.with("SPARK_CCL_NET", &network, network)
    }

    /// The network interfaces that may be used, such as `eth0,eth1`, `=eth0` or `^docker,lo` (all,
    /// the best first): `SPARK_CCL_SOCKET_IFNAME`.
    #[must_use]
    pub fn interfaces(self, pattern: &str) -> Self {
        self.set("SPARK_CCL_SOCKET_IFNAME", pattern)
    }

    /// The secret that admits a process to the communicator: 16 to 4,096 bytes, the same on all
    /// ranks; surrounding white space is ignored. `SPARK_CCL_SECRET`.
    #[must_use]
    pub fn secret(self, secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref().to_vec();
        self.with("SPARK_CCL_SECRET", &"redacted", secret)
    }

    /// Whether a thread makes progress between calls (no): `SPARK_CCL_PROGRESS_THREAD`.
    #[must_use]
    pub fn progress_thread(self, wanted: bool) -> Self {
        self.with("SPARK_CCL_PROGRESS_THREAD", &wanted, wanted)
    }

    /// The backend for collectives of device memory, the same on all ranks ([`Backend::Host`]):
    /// `SPARK_CCL_BACKEND`.
    #[must_use]
    pub fn backend(self, backend: Backend) -> Self {
        self.with("SPARK_CCL_BACKEND", &backend, backend)
    }

    /// This process's rank, for [`from_env`](Self::from_env), whatever a launcher says.
    #[must_use]
    pub fn rank(mut self, rank: usize) -> Self {
        self.launch.rank = Some(rank);
        self
    }

    /// The number of ranks, for [`from_env`](Self::from_env), whatever a launcher says.
    #[must_use]
    pub fn size(mut self, size: usize) -> Self {
        self.launch.size = Some(size);
        self
    }

    /// Where the ranks meet, for [`from_env`](Self::from_env), whatever a launcher says: name or
    /// address of rank 0's host, and a port that is free there. With rank and size, no launcher is
    /// needed. On addresses other than loopback, and where they belong to several users, the ranks
    /// need a secret ([`secret`](Self::secret), or a file by `SPARK_CCL_SECRET_FILE`).
    ///
    /// ```no_run
    /// # fn of_this_process() -> usize { 0 }
    /// let builder = spark_ccl::Communicator::builder();
    /// let comm = builder.rank(of_this_process()).size(2).meet_at("spark-1", 29500).from_env()?;
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    #[must_use]
    pub fn meet_at(mut self, host: &str, port: u16) -> Self {
        self.launch.meeting = Some((host.to_owned(), port));
        self
    }

    /// CUDA's ordinal of the device that the first rank of this host takes (0). The host's other
    /// ranks take the following ones. A rank with `SPARK_CCL_DEVICE` takes that one instead.
    #[must_use]
    pub fn device(mut self, first: usize) -> Self {
        self.device = first;
        self
    }

    /// Lets another thread end [`connect`](Self::connect) and [`from_env`](Self::from_env) while
    /// they wait for other ranks.
    ///
    /// ```
    /// use spark_ccl::{Cancel, Communicator};
    /// use std::time::Duration;
    ///
    /// let cancel = Cancel::new();
    /// let builder = Communicator::builder().cancel_by(&cancel);
    /// let id = builder.unique_id()?;
    /// // Rank 1 never comes.
    /// let waits = std::thread::spawn(move || builder.connect(&id, 0, 2));
    /// std::thread::sleep(Duration::from_millis(10));
    /// cancel.cancel();
    /// assert!(waits.join().unwrap().is_err());
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    #[must_use]
    pub fn cancel_by(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Sets a variable as if it were in the environment: for names that are only known at run time,
    /// and for settings without a method. An unknown `SPARK_CCL_` name is an error when the
    /// communicator is made.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.env.set(name, value, PROGRAM);
        self
    }

    /// A variable as it is set here, in the environment, or in a configuration file.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.env.get(name)
    }

    /// The names of the variables that have an effect, except those of launchers.
    pub fn variables() -> impl Iterator<Item = &'static str> {
        VARIABLES.iter().map(|variable| variable.name)
    }

    /// Makes every reduction take `polls` polls, to test code that waits for one.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn compute_delay(mut self, polls: u32) -> Self {
        self.reducer = Reducer::Delayed(polls);
        self
    }

    /// Gives ranks of this process the RDMA devices of this library, to test them without hardware.
    /// The thread that makes the ranks opens them.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn verbs(mut self, library: spark_ccl_verbs::Library) -> Self {
        self.verbs = Some(library);
        self
    }

    /// See [`Communicator::local`].
    ///
    /// # Errors
    /// As there.
    pub fn local(&self, n: usize) -> Result<Vec<Communicator>, Error> {
        let settings = self.settings_of_ranks()?;
        let size = u32::try_from(n).unwrap_or(u32::MAX);
        let sessions = Session::local(size)?;
        // Read once, since all ranks must choose the same.
        let tuning = settings.read_tuning();
        let monitors = local_monitors(&sessions)?;
        let start = |(session, monitor)| {
            let (settings, tuning, reducer) = (settings.clone(), tuning.clone(), self.reducer);
            let nics = self.local_nics(&settings);
            let cancel = self.cancel.clone();
            let open = move || {
                open(
                    session,
                    Some(monitor),
                    settings,
                    tuning,
                    reducer,
                    nics,
                    &cancel,
                )
            };
            spark_ccl_log::spawn("spark-local", open)
        };
        let threads: Vec<_> = sessions.into_iter().zip(monitors).map(start).collect();
        let (opened, failed): (Vec<_>, Vec<_>) =
            threads.into_iter().map(joined).partition(Result::is_ok);
        // A rank that fails ends the others. Its own error is more useful than theirs.
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
    /// The id is good for one world, while this process lives, and for as long as
    /// [`init_timeout`](Self::init_timeout) from now.
    ///
    /// # Errors
    /// No interface matches the settings, or no port is free.
    pub fn unique_id(&self) -> Result<UniqueId, Error> {
        let settings = self.settings()?;
        Ok(UniqueId::create(&options(&settings, None, None)?)?)
    }

    /// See [`Communicator::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&self, id: &UniqueId, rank: usize, size: usize) -> Result<Communicator, Error> {
        let since = Some(Instant::now());
        let settings = self.settings_of_ranks()?;
        let root = id.addresses().first().map(SocketAddr::ip);
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (rank, size) = (narrow(rank), narrow(size));
        let nics = open_nics(&settings);
        let options = Options {
            rdma_ports: ports(&nics),
            since,
            cancel: self.cancel.clone(),
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
        let since = Instant::now();
        let settings = self.settings_of_ranks()?;
        let deadline = deadline_after(since, settings.init_timeout);
        let launch = self.launch.launch(&self.env, deadline)?;
        spark_ccl_log::info!(
            "launched by {}: rank {} of {}, {:?}",
            launch.kind,
            launch.rank,
            launch.size,
            launch.rendezvous
        );
        let nics = open_nics(&settings);
        let session = meet(launch, &settings, ports(&nics), since, &self.cancel)?;
        self.open(session, settings, nics)
    }

    /// Opens the world of a session with other processes, with the measurements of rank 0.
    fn open(
        &self,
        session: Session,
        settings: Settings,
        nics: Nics,
    ) -> Result<Communicator, Error> {
        // Cannot fail: rank 0 has checked it, and all ranks run the same build.
        let tuning = Tuning::parse(session.note().as_bytes()).unwrap_or_default();
        let (reducer, nics) = (self.reducer, nics.into());
        let opened = open(session, None, settings, tuning, reducer, nics, &self.cancel);
        // A start that it has broken off fails in many ways.
        opened.map_err(|error| self.cancel.check().map_or_else(Error::from, |()| error))
    }

    /// The RDMA ports of a rank of this process, where a test has brought devices.
    #[cfg(feature = "testing")]
    fn local_nics(&self, settings: &Settings) -> OnceLock<Nics> {
        let open = |library| Nics::of(library, &settings.rdma).unwrap_or_default();
        self.verbs
            .map(open)
            .map_or_else(OnceLock::new, OnceLock::from)
    }

    /// The RDMA ports of a rank of this process: opened when links need them.
    #[cfg(not(feature = "testing"))]
    #[expect(clippy::unused_self, reason = "tests bring devices")]
    fn local_nics(&self, _: &Settings) -> OnceLock<Nics> {
        OnceLock::new()
    }

    /// A value with its type, and the text that stands for it in logs and errors.
    fn with<T: Any + Send + Sync>(mut self, name: &str, text: &impl ToString, value: T) -> Self {
        self.env.set_typed(name, &text.to_string(), value, PROGRAM);
        self
    }

    /// The settings of ranks of this process. The first process of a host emits their warnings.
    fn settings_of_ranks(&self) -> Result<Settings, Error> {
        let settings = self.settings()?;
        let look = |name: &str| self.env.get(name).map(str::to_owned);
        let is_first = local_rank(&look).unwrap_or(0) == 0;
        logging::warn_once(settings.warnings(), is_first);
        Ok(settings)
    }

    fn settings(&self) -> Result<Settings, Error> {
        let mut settings =
            Settings::from_env(&self.env).map_err(|error| Error::Config(Arc::new(error)))?;
        settings.device = self.device;
        logging::install(&settings.log, &Options::default().host);
        settings.log_origins();
        Ok(settings)
    }
}

fn ports(nics: &Nics) -> u8 {
    u8::try_from(nics.descriptions().len()).unwrap_or(u8::MAX)
}

/// The result of a thread that opens a rank of this process.
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
