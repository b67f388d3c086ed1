//! Ways to a communicator.

use crate::communicator::Communicator;
use crate::error::Error;
use crate::launch::LaunchOverrides;
use crate::logging;
use crate::opening::open;
use crate::rendezvous::{meet, options};
use crate::world::{Reducer, open_nics};
use spark_ccl_bootstrap::{Options, Session, UniqueId};
use spark_ccl_config::{Backend, Env, Settings, Tuning};
use spark_ccl_transport::rdma::link::Nics;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Settings for new communicators: the environment's, unless set here.
#[derive(Debug, Clone)]
pub struct Builder {
    env: Env,
    operation_timeout: Option<Duration>,
    init_timeout: Option<Duration>,
    device: usize,
    launch: LaunchOverrides,
    reducer: Reducer,
}

impl Communicator {
    /// A builder with the environment's settings.
    pub fn builder() -> Builder {
        Builder {
            env: Env::from_process(),
            operation_timeout: None,
            init_timeout: None,
            device: 0,
            launch: LaunchOverrides::default(),
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

    /// Whether a thread makes progress between calls (no), also where the environment says something else.
    #[must_use]
    pub fn progress_thread(self, wanted: bool) -> Self {
        self.set("SPARK_CCL_PROGRESS_THREAD", if wanted { "1" } else { "0" })
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

    /// Where the ranks meet, for [`from_env`](Self::from_env), whatever a launcher says: name or address of rank 0's host,
    /// and a port that is free there. With rank and size, no launcher is needed. On addresses other than loopback the ranks need a secret
    /// (`SPARK_CCL_SECRET_FILE`).
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
        let launch = self.launch.launch(&self.env)?;
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
