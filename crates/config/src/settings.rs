//! The settings: all variables, checked and typed.

use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant};

use crate::algorithm::{AlgorithmChoice, ParseAlgorithmsError};
use crate::choice::{Backend, Family, HostPort, InterfaceChoice, Net, Path, SingleCopy};
use crate::env::{DEFAULT_INIT_TIMEOUT, Env, INIT_TIMEOUT, Origin};
use crate::error::Error;
use crate::files;
use crate::gpu::Gpu;
use crate::helpers::helpers;
use crate::log::Log;
use crate::nccl::Nccl;
use crate::observe::Observe;
use crate::parse;
use crate::rdma::Rdma;
use crate::reader::{Reader, Used};
use crate::secret::Secret;
use crate::tuning::Tuning;
use crate::tuning_file::tuning_file;
use crate::variables::{self, READ_ELSEWHERE, hint};

/// The longest wait for a file that cannot be missing: any longer timeout is as good as none.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Over loopback, the kernel passes the bytes on at once: a second connection would only cost
/// system calls.
const LOOPBACK_SOCKETS: usize = 1;
/// Between hosts, two connections can use two cores and two network paths.
const NETWORK_SOCKETS: usize = 2;
/// Small enough that all slots of a shared-memory link stay in the caches.
const MEMORY_SLOT_BYTES: usize = 64 << 10;
/// TCP links bypass their slots if possible, so the number of calls matters: larger slots need
/// fewer.
const NETWORK_SLOT_BYTES: usize = 256 << 10;
/// The bytes of a slot are a multiple of this: slots in shared memory consist of whole cache lines.
const SLOT_ALIGN: usize = 64;
const MAX_SLOT_BYTES: usize = 16 << 20;
const MAX_SLOTS: usize = 1024;
const MAX_SOCKETS: usize = 16;

/// All settings, checked and typed. `docs/environment.md` explains each one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long an operation may take before it fails.
    pub operation_timeout: Duration,
    /// How long it may take to connect all ranks.
    pub init_timeout: Duration,
    /// How long a rank that no other rank hears may be silent before it counts as lost.
    pub lost_after: Duration,
    /// How long a rank that others still hear may be silent here before it counts as lost.
    pub cut_after: Duration,
    /// Which data path is taken.
    pub path: Path,
    /// Which network connects hosts.
    pub net: Net,
    /// Whether ranks of one host use shared memory; otherwise they use the network.
    pub shm: bool,
    /// Whether ranks of one host read long messages directly from each other's memory.
    pub single_copy: SingleCopy,
    /// Which algorithms may be chosen.
    pub algo: AlgorithmChoice,
    /// The file of measured choices; `None` for no file.
    pub tuning: Option<PathBuf>,
    /// Which interfaces may be used; `None` for all, best first.
    pub socket_ifname: Option<InterfaceChoice>,
    /// The only address family that may be used; `None` for both.
    pub socket_family: Option<Family>,
    /// TCP connections per link; `None` for what suits the link.
    pub sockets: Option<usize>,
    /// Settings of RDMA links.
    pub rdma: Rdma,
    /// The engine for collectives on device memory.
    pub backend: Backend,
    /// CUDA's number of the device of a host's first rank; the next ranks have the next ones. No
    /// variable sets it.
    pub device: usize,
    /// Settings of device memory.
    pub gpu: Gpu,
    /// Settings of NCCL.
    pub nccl: Nccl,
    /// Payload bytes of one slot of a link, a multiple of 64; `None` for what suits the links.
    pub slot_bytes: Option<usize>,
    /// Slots per link and direction.
    pub slots: usize,
    /// The secret that admits a process to a communicator.
    pub secret: Option<Secret>,
    /// The address of the rendezvous, if no launcher provides one.
    pub comm_id: Option<HostPort>,
    /// The log's settings.
    pub log: Log,
    /// The reports about running communicators.
    pub observe: Observe,
    /// Whether a thread makes progress on operations between calls.
    pub progress_thread: bool,
    /// The number of threads of a rank that help with long calls; `None` for as many as are spare.
    pub helpers: Option<usize>,
    origins: Vec<Used>,
    without_effect: Vec<Used>,
    warnings: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            operation_timeout: Duration::from_secs(600),
            init_timeout: DEFAULT_INIT_TIMEOUT,
            lost_after: Duration::from_secs(5),
            cut_after: Duration::from_secs(30),
            path: Path::Auto,
            net: Net::Auto,
            shm: true,
            single_copy: SingleCopy::Auto,
            algo: AlgorithmChoice::default(),
            tuning: None,
            socket_ifname: None,
            socket_family: None,
            sockets: None,
            rdma: Rdma::default(),
            backend: Backend::Host,
            device: 0,
            gpu: Gpu::default(),
            nccl: Nccl::default(),
            slot_bytes: None,
            slots: 8,
            secret: None,
            comm_id: None,
            log: Log::default(),
            observe: Observe::default(),
            progress_thread: false,
            helpers: None,
            origins: Vec::new(),
            without_effect: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads and checks all settings.
    ///
    /// # Errors
    /// The first variable with an invalid value: its name, value and origin, and what is allowed.
    pub fn from_env(env: &Env) -> Result<Self, Error> {
        let mut settings = Self::default();
        let mut reader = Reader::new(env);
        settings.read_times(&mut reader)?;
        settings.read_choices(&mut reader)?;
        settings.tuning = tuning_file(&mut reader, env);
        settings.read_sockets(&mut reader)?;
        settings.rdma = Rdma::read(&mut reader)?;
        settings.read_backend(&mut reader)?;
        settings.read_geometry(&mut reader)?;
        settings.read_admission(&mut reader)?;
        settings.read_log(&mut reader);
        settings.observe = Observe::read(&mut reader, env)?;
        settings.origins = reader.used;
        settings.warnings = reader.warnings;
        settings.classify_unused(env)?;
        settings.check_path()?;
        Ok(settings)
    }

    /// All variables that were set and used. Secrets are redacted.
    pub fn origins(&self) -> &[Used] {
        &self.origins
    }

    /// All variables of ours or NCCL's that were set without effect: NCCL's variables without a
    /// meaning here, and variables that another one overrides.
    pub fn without_effect(&self) -> &[Used] {
        &self.without_effect
    }

    /// Settings that look wrong, but are no errors.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Logs each variable's origin at level INFO.
    pub fn log_origins(&self) {
        for used in &self.origins {
            spark_ccl_log::info!("{used}");
        }
        if !self.without_effect.is_empty() {
            let names: Vec<_> = self.without_effect.iter().map(|used| &*used.name).collect();
            spark_ccl_log::info!("set, but without effect here: {}", names.join(", "));
        }
    }

    /// TCP connections of a link to this host or to another one.
    pub fn sockets(&self, to_this_host: bool) -> usize {
        let suitable = if to_this_host {
            LOOPBACK_SOCKETS
        } else {
            NETWORK_SOCKETS
        };
        self.sockets.unwrap_or(suitable)
    }

    /// Payload bytes of one slot of a communicator's links, depending on whether all its ranks
    /// share memory.
    pub fn slot_bytes(&self, all_share_memory: bool) -> usize {
        let suitable = if all_share_memory {
            MEMORY_SLOT_BYTES
        } else {
            NETWORK_SLOT_BYTES
        };
        self.slot_bytes.unwrap_or(suitable)
    }

    /// The choices that were measured on this machine. An unusable file is logged as a warning.
    pub fn read_tuning(&self) -> Tuning {
        let Some(path) = &self.tuning else {
            return Tuning::default();
        };
        let deadline = Instant::now() + files::patience(self.init_timeout);
        Tuning::read(path, deadline).unwrap_or_else(|error| {
            spark_ccl_log::warn!(
                "measured choices of algorithms are not used: {}: {error}; spark-perf tune writes \
                 it anew, and SPARK_CCL_TUNING=off leaves it alone",
                path.display()
            );
            Tuning::default()
        })
    }

    /// A hash of everything that all ranks must agree on.
    pub fn wire_hash(&self) -> u64 {
        // FNV-1a: the same on every machine and in every version.
        self.wire_summary()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
    }

    /// Everything that all ranks must agree on, as text.
    pub fn wire_summary(&self) -> String {
        format!(
            "slot_bytes={} slots={} sockets={} qps={} path={} net={} shm={} algo={} backend={} \
             share_gpu={}",
            or_auto(self.slot_bytes),
            self.slots,
            or_auto(self.sockets),
            self.rdma.qps_per_connection,
            self.path,
            self.net,
            u8::from(self.shm),
            self.algo,
            self.backend,
            u8::from(self.gpu.may_be_shared)
        )
    }

    fn read_times(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        let expected = "a positive number of seconds";
        for (name, field) in [
            ("SPARK_CCL_TIMEOUT", &mut self.operation_timeout),
            (INIT_TIMEOUT, &mut self.init_timeout),
            ("SPARK_CCL_LOST_AFTER", &mut self.lost_after),
            ("SPARK_CCL_CUT_AFTER", &mut self.cut_after),
        ] {
            if let Some(taken) = reader.take(&[name]) {
                let time = taken.typed().or_else(|| parse::seconds(taken.text));
                let time = time.filter(|time: &Duration| !time.is_zero());
                *field = time.ok_or_else(|| taken.invalid(expected))?;
            }
        }
        Ok(())
    }

    fn read_choices(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        set(
            &mut self.path,
            reader.parsed(&["SPARK_CCL_PATH"], Path::EXPECTED, Path::parse)?,
        );
        self.read_net(reader)?;
        self.read_algo(reader)?;
        set(
            &mut self.single_copy,
            reader.parsed(
                &["SPARK_CCL_SINGLE_COPY"],
                SingleCopy::EXPECTED,
                SingleCopy::parse,
            )?,
        );
        if let Some(shm) = reader.boolean("SPARK_CCL_SHM")? {
            self.shm = shm;
        } else if let Some(disable) = reader.boolean("NCCL_SHM_DISABLE")? {
            self.shm = !disable;
        }
        set(
            &mut self.progress_thread,
            reader.boolean("SPARK_CCL_PROGRESS_THREAD")?,
        );
        self.helpers = helpers(reader)?;
        Ok(())
    }

    fn read_net(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        let Some(taken) = reader.take(&["SPARK_CCL_NET", "NCCL_NET"]) else {
            if reader.boolean("NCCL_IB_DISABLE")? == Some(true) {
                self.net = Net::Tcp;
            }
            return Ok(());
        };
        match taken.typed().or_else(|| Net::parse(taken.text)) {
            Some(net) => self.net = net,
            None if taken.name == "SPARK_CCL_NET" => return Err(taken.invalid(Net::EXPECTED)),
            // Configurations for NCCL may name its plugins. That must not be an error here.
            None => reader.warnings.push(format!(
                "NCCL_NET={} has no counterpart here: the network is chosen automatically",
                taken.text
            )),
        }
        Ok(())
    }

    fn read_backend(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        set(
            &mut self.backend,
            reader.parsed(&["SPARK_CCL_BACKEND"], Backend::EXPECTED, Backend::parse)?,
        );
        self.gpu = Gpu::read(reader)?;
        self.nccl = Nccl::read(reader)?;
        Ok(())
    }

    fn read_algo(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        let Some(taken) = reader.take(&["SPARK_CCL_ALGO", "NCCL_ALGO"]) else {
            return Ok(());
        };
        if taken.name == "SPARK_CCL_ALGO" {
            let invalid = |error: ParseAlgorithmsError| taken.invalid(&error.expected);
            let algo = taken.typed().map_or_else(|| taken.text.parse(), Ok);
            self.algo = algo.map_err(invalid)?;
            return Ok(());
        }
        let (algo, unknown) = AlgorithmChoice::parse_nccl(taken.text);
        self.algo = algo;
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            reader
                .warnings
                .push(format!("NCCL_ALGO: {unknown} has no counterpart here"));
        }
        Ok(())
    }

    fn read_sockets(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        self.socket_ifname = reader
            .take(&["SPARK_CCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
            .map(|taken| InterfaceChoice {
                pattern: taken.text.to_owned(),
                variable: taken.name,
            });
        let names = ["SPARK_CCL_SOCKET_FAMILY", "NCCL_SOCKET_FAMILY"];
        self.socket_family = reader.parsed(&names, Family::EXPECTED, Family::parse)?;
        if let Some(sockets) = reader.number(&["SPARK_CCL_SOCKETS"], 1..=MAX_SOCKETS)? {
            self.sockets = Some(sockets);
            return Ok(());
        }
        // The number of connections is the product; a variable that is not set counts as one. NCCL
        // allows more than makes sense here.
        let threads = reader
            .number(&["NCCL_SOCKET_NTHREADS"], 0..=64)?
            .filter(|&n| n > 0);
        let each = reader
            .number(&["NCCL_NSOCKS_PERTHREAD"], 0..=64)?
            .filter(|&n| n > 0);
        if threads.or(each).is_some() {
            self.sockets = Some((threads.unwrap_or(1) * each.unwrap_or(1)).min(MAX_SOCKETS));
        }
        Ok(())
    }

    fn read_geometry(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        set(
            &mut self.slots,
            reader.number(&["SPARK_CCL_SLOTS"], 2..=MAX_SLOTS)?,
        );
        let expected = format!(
            "a multiple of {SLOT_ALIGN} from {SLOT_ALIGN} to {MAX_SLOT_BYTES}, perhaps with a \
             suffix K or M"
        );
        let slot_bytes = reader.parsed(&["SPARK_CCL_SLOT_BYTES"], &expected, |text| {
            parse::bytes(text).filter(|&bytes| {
                bytes % SLOT_ALIGN == 0 && (SLOT_ALIGN..=MAX_SLOT_BYTES).contains(&bytes)
            })
        })?;
        if let Some(slot_bytes) = slot_bytes {
            self.slot_bytes = Some(slot_bytes);
        } else if let Some(buffer) =
            reader.parsed(&["NCCL_BUFFSIZE"], "a number of bytes", parse::bytes)?
        {
            // NCCL's buffer is what may be in flight on a channel, which here is all slots
            // together.
            let slot = (buffer / self.slots).clamp(4 << 10, 1 << 20);
            self.slot_bytes = Some(slot / SLOT_ALIGN * SLOT_ALIGN);
        }
        Ok(())
    }

    fn read_admission(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        let names = ["SPARK_CCL_COMM_ID", "NCCL_COMM_ID"];
        self.comm_id = reader.parsed(&names, HostPort::EXPECTED, HostPort::parse)?;
        if let Some(taken) = reader.take(&["SPARK_CCL_SECRET"]) {
            let bytes: Option<Vec<u8>> = taken.typed();
            let secret = Secret::new(bytes.as_deref().unwrap_or(taken.text.as_bytes()));
            self.secret = Some(secret.map_err(|reason| Error::Secret {
                name: taken.name.to_owned(),
                origin: taken.value.origin.clone(),
                reason,
            })?);
        } else if let Some(taken) = reader.take(&["SPARK_CCL_SECRET_FILE"]) {
            let path = FilePath::new(taken.text);
            let deadline = Instant::now() + self.init_timeout.min(LONGEST_WAIT);
            let (secret, warning) =
                Secret::from_file(path, deadline).map_err(|reason| Error::File {
                    name: taken.name.to_owned(),
                    origin: taken.value.origin.clone(),
                    path: path.to_owned(),
                    reason,
                })?;
            self.secret = Some(secret);
            reader.warnings.extend(warning);
        }
        Ok(())
    }

    fn read_log(&mut self, reader: &mut Reader<'_>) {
        if let Some(taken) = reader.take(&["SPARK_CCL_LOG"]) {
            self.log.filter = (taken.text != "off").then(|| taken.text.to_owned());
        } else if let Some(taken) = reader.take(&["NCCL_DEBUG"]) {
            match Log::from_nccl(taken.text) {
                Some(log) => self.log = log,
                None => reader.warnings.push(format!(
                    "NCCL_DEBUG={} is unknown: expected VERSION, WARN, INFO or TRACE",
                    taken.text
                )),
            }
        }
        let file = reader.take(&["SPARK_CCL_LOG_FILE", "NCCL_DEBUG_FILE"]);
        self.log.file = file.map(|taken| taken.text.to_owned());
    }

    /// Refuses settings with which every call fails: the zero-copy path where only TCP may carry
    /// data.
    fn check_path(&self) -> Result<(), Error> {
        if self.path != Path::ZeroCopy || self.shm || self.net != Net::Tcp {
            return Ok(());
        }
        let involved = ["_PATH", "_SHM", "_SHM_DISABLE", "_NET", "_IB_DISABLE"];
        let is_involved = |used: &&Used| involved.iter().any(|end| used.name.ends_with(end));
        let values = self.origins.iter().filter(is_involved);
        Err(Error::Conflict {
            values: values.map(Used::to_string).collect::<Vec<_>>().join(", "),
            problem: "the zero-copy path needs shared memory or RDMA: allow one of them, or another path",
        })
    }

    /// Classifies each variable that no setting has used: read elsewhere, without effect, or
    /// misspelt. In the environment, an unknown name may be another version's; in the program
    /// itself, it is an error.
    fn classify_unused(&mut self, env: &Env) -> Result<(), Error> {
        for (name, value) in env.iter() {
            let ours = name.starts_with("SPARK_CCL_");
            let taken = self.origins.iter().any(|used| used.name == name);
            if taken || value.text.trim().is_empty() || !(ours || name.starts_with("NCCL_")) {
                continue;
            }
            if READ_ELSEWHERE.contains(&name) {
                self.origins.push(Used::new(name, value));
            } else if ours && variables::find(name).is_none() {
                let (name, origin, hint) = (name.to_owned(), value.origin.clone(), hint(name));
                if let Origin::Code(_) = origin {
                    return Err(Error::Unknown { name, origin, hint });
                }
                let warning = format!("{name} (from {origin}) is unknown and ignored{hint}");
                self.warnings.push(warning);
            } else {
                self.without_effect.push(Used::new(name, value));
            }
        }
        Ok(())
    }
}

fn or_auto(number: Option<usize>) -> String {
    number.map_or_else(|| "auto".to_owned(), |number| number.to_string())
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}
