//! The settings of reports on running communicators: to clients, in files, after a fault.

use std::path::PathBuf;
use std::time::Duration;

use crate::choice::HostPort;
use crate::env::Env;
use crate::error::Error;
use crate::parse;
use crate::reader::Reader;

/// The address at which NCCL's clients ask by default.
const RAS_HOST: &str = "localhost";
const RAS_PORT: u16 = 28028;
/// Prometheus' node exporter reads its files about this often.
const PROMETHEUS_EVERY: Duration = Duration::from_secs(30);
const JSON_EVERY: Duration = Duration::from_secs(1);

/// The reports about running communicators. By default, there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observe {
    /// Where clients of NCCL's RAS protocol may ask.
    pub ras: Option<HostPort>,
    /// Whether the last operations are recorded.
    pub record: Record,
    /// What is written about completed operations.
    pub inspector: Option<Inspector>,
}

/// Whether the last operations of communicators are recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Record {
    /// Only if something else needs them.
    #[default]
    Off,
    /// For requests.
    Kept,
    /// For requests, and written to this folder when a communicator fails.
    Folder(PathBuf),
}

/// The files about completed operations, in the formats of NCCL's inspector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspector {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Their format.
    pub format: InspectorFormat,
    /// The pause between two of them.
    pub every: Duration,
    /// Slurm's number of the job.
    pub job: Option<String>,
}

/// The format of an inspector's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InspectorFormat {
    /// A line of JSON for each operation.
    Json,
    /// Text for Prometheus' node exporter: means over the operations since the last text.
    Prometheus,
}

impl Observe {
    /// Whether anything is reported.
    pub fn is_on(&self) -> bool {
        self.ras.is_some() || self.record != Record::Off || self.inspector.is_some()
    }

    /// Where clients ask: the address that is set, or the usual one.
    pub fn ras_address(&self) -> HostPort {
        let usual = || HostPort {
            host: RAS_HOST.to_owned(),
            port: RAS_PORT,
        };
        self.ras.clone().unwrap_or_else(usual)
    }

    pub(crate) fn read(reader: &mut Reader<'_>, env: &Env) -> Result<Self, Error> {
        Ok(Self {
            ras: read_ras(reader)?,
            record: read_record(reader),
            inspector: read_inspector(reader, env)?,
        })
    }
}

/// NCCL's RAS is on by default, this library's is off. So NCCL's switch turns it on if it is set;
/// an address without a switch turns it on, too.
fn read_ras(reader: &mut Reader<'_>) -> Result<Option<HostPort>, Error> {
    let expected = format!("0, 1 or {}", HostPort::EXPECTED);
    let parse = |text: &str| match parse::boolean(text) {
        Some(wanted) => Some(Ras::Switch(wanted)),
        None => HostPort::parse(text).map(Ras::At),
    };
    let wanted = match reader.parsed(&["SPARK_CCL_RAS"], &expected, parse)? {
        Some(Ras::At(address)) => return Ok(Some(address)),
        Some(Ras::Switch(wanted)) => Some(wanted),
        None => reader.boolean("NCCL_RAS_ENABLE")?,
    };
    if wanted == Some(false) {
        return Ok(None);
    }
    let address = reader.parsed(&["NCCL_RAS_ADDR"], HostPort::EXPECTED, HostPort::parse)?;
    Ok(address.or_else(|| wanted.map(|_| Observe::default().ras_address())))
}

#[derive(Clone)]
enum Ras {
    Switch(bool),
    At(HostPort),
}

fn read_record(reader: &mut Reader<'_>) -> Record {
    let Some(taken) = reader.take(&["SPARK_CCL_RECORD"]) else {
        return Record::Off;
    };
    match parse::boolean(taken.text) {
        Some(false) => Record::Off,
        Some(true) => Record::Kept,
        None => Record::Folder(PathBuf::from(taken.text)),
    }
}

fn read_inspector(reader: &mut Reader<'_>, env: &Env) -> Result<Option<Inspector>, Error> {
    let Some(folder) = reader.take(&["SPARK_CCL_INSPECTOR"]) else {
        return Ok(None);
    };
    let format = reader.parsed(
        &["SPARK_CCL_INSPECTOR_FORMAT"],
        "json or prometheus",
        |text| match text {
            "json" => Some(InspectorFormat::Json),
            "prometheus" => Some(InspectorFormat::Prometheus),
            _ => None,
        },
    )?;
    let format = format.unwrap_or(InspectorFormat::Json);
    let every = reader.parsed(
        &["SPARK_CCL_INSPECTOR_EVERY"],
        "a positive number of seconds",
        |text| parse::seconds(text).filter(|every| !every.is_zero()),
    )?;
    Ok(Some(Inspector {
        folder: PathBuf::from(folder.text),
        format,
        every: every.unwrap_or(match format {
            InspectorFormat::Json => JSON_EVERY,
            InspectorFormat::Prometheus => PROMETHEUS_EVERY,
        }),
        job: env.get("SLURM_JOB_ID").map(str::to_owned),
    }))
}
