//! Detects which launcher started this process, from environment variables.

use std::path::Path;
use std::time::Instant;

use spark_ccl_config::files;

use crate::pmi1::Pmi1Space;
use crate::pmix::PmixSpace;
use crate::tcp_store::TcpStore;
use crate::vars::{self, Lookup};
use crate::{Error, Launch, LauncherKind, Rendezvous, node_list};

/// Detects the launcher of this process. `Ok(None)` means no known launcher.
///
/// `env` looks up a variable in a snapshot of the environment. The innermost launcher wins, in this
/// order: our own variables, a torchrun agent, Open MPI, Hydra, plain `RANK` and `WORLD_SIZE`,
/// Slurm. Slurm steps and torchrun agents are often nested with another launcher, so their sizes
/// may differ from its; all other launchers must agree.
///
/// If a variable names a file, at most 64 KiB of it are read, until the deadline.
///
/// # Errors
/// If variables do not parse, are incomplete, or contradict each other.
pub fn detect(
    env: &dyn Fn(&str) -> Option<String>,
    deadline: Instant,
) -> Result<Option<Launch>, Error> {
    let mut incomplete = Vec::new();
    let mut claims = Vec::new();
    for names in [OWN, OPEN_MPI, HYDRA, TORCHRUN] {
        claims.extend(claim(env, names, &mut incomplete)?);
    }
    if has_torch_agent(env) {
        // A launcher that encloses the agent counts agents, not workers.
        claims.retain(|c| matches!(c.kind, LauncherKind::Own | LauncherKind::Torchrun));
    }
    let slurm = slurm_step(env)?;
    if slurm.is_some() && !is_hydra(env) {
        // `srun --mpi=pmi2` sets Hydra's variables, too.
        if let Some((slurm, pmi)) = slurm.as_ref().zip(take(&mut claims, LauncherKind::Hydra)) {
            agree(slurm, &pmi)?;
        }
    }
    if let Some(first) = claims.first() {
        for other in &claims[1..] {
            agree(first, other)?;
        }
    }
    match claims.into_iter().next().or(slurm) {
        Some(claim) => {
            let rendezvous = rendezvous(env, &claim, deadline)?;
            Ok(Some(claim.launch(rendezvous)))
        }
        None => incomplete.into_iter().next().map_or(Ok(None), Err),
    }
}

/// The longest file of a unique id, with room for white space and longer ids of other versions.
const LONGEST_ID_FILE: usize = 64 << 10;

/// The variables of one launcher.
#[derive(Clone, Copy)]
struct Names {
    kind: LauncherKind,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const OWN: Names = Names {
    kind: LauncherKind::Own,
    rank: "SPARK_CCL_RANK",
    size: "SPARK_CCL_SIZE",
    local_rank: "SPARK_CCL_LOCAL_RANK",
    local_size: "SPARK_CCL_LOCAL_SIZE",
};

const UNIQUE_ID: &str = "SPARK_CCL_UNIQUE_ID";

const OPEN_MPI: Names = Names {
    kind: LauncherKind::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

const HYDRA: Names = Names {
    kind: LauncherKind::Hydra,
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};

const TORCHRUN: Names = Names {
    kind: LauncherKind::Torchrun,
    rank: "RANK",
    size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
};

/// This process's number on its host, from the innermost launcher that says it. Unlike [`detect`],
/// reads nothing else, and accepts variables that contradict each other.
pub fn local_rank(env: &dyn Fn(&str) -> Option<String>) -> Option<u32> {
    let names = [OWN, TORCHRUN, OPEN_MPI, HYDRA].map(|names| names.local_rank);
    let names = names.into_iter().chain([SLURM_LOCAL_RANK]);
    names
        .filter_map(|name| vars::text(env, name))
        .find_map(|text| text.parse().ok())
}

const SLURM_LOCAL_RANK: &str = "SLURM_LOCALID";

/// The variables from which [`detect`] finds that a process is rank `rank` of `size` on this host,
/// and joins the communicator with that unique id. The id holds a secret: an environment is
/// private, a command line is not.
pub fn rank_variables(rank: u32, size: u32, unique_id: String) -> [(&'static str, String); 5] {
    let (rank, size) = (rank.to_string(), size.to_string());
    [
        (OWN.rank, rank.clone()),
        (OWN.size, size.clone()),
        (OWN.local_rank, rank),
        (OWN.local_size, size),
        (UNIQUE_ID, unique_id),
    ]
}

/// The values of one launcher's variables, already checked for consistency.
struct Claim {
    kind: LauncherKind,
    rank: (&'static str, u32),
    size: (&'static str, u32),
    local_rank: Option<u32>,
    local_size: Option<u32>,
}

impl Claim {
    fn launch(self, rendezvous: Rendezvous) -> Launch {
        Launch {
            kind: self.kind,
            rank: self.rank.1,
            size: self.size.1,
            local_rank: self.local_rank,
            local_size: self.local_size,
            rendezvous,
        }
    }
}

/// Reads one launcher's variables. If only one of rank and size is set, the error goes to
/// `incomplete`: it matters only if no launcher is found.
fn claim(
    env: Lookup<'_>,
    names: Names,
    incomplete: &mut Vec<Error>,
) -> Result<Option<Claim>, Error> {
    let rank = vars::number(env, names.rank, RANK)?;
    let size = vars::number(env, names.size, SIZE)?;
    let (rank, size) = match (rank, size) {
        (None, None) => return Ok(None),
        (Some(rank), Some(size)) => (rank, size),
        (Some(rank), None) => {
            incomplete.push(half(names.size, names.rank, rank));
            return Ok(None);
        }
        (None, Some(size)) => {
            incomplete.push(half(names.rank, names.size, size));
            return Ok(None);
        }
    };
    checked(env, names, rank, size).map(Some)
}

const RANK: &str = "a rank: 0, 1, and so on";
const SIZE: &str = "a number of processes, at least 1";

fn checked(env: Lookup<'_>, names: Names, rank: u32, size: u32) -> Result<Claim, Error> {
    if size == 0 {
        return Err(vars::invalid(names.size, "0", SIZE));
    }
    below(names.rank, rank, names.size, size)?;
    let local_rank = vars::number(env, names.local_rank, "a rank within the host")?;
    let local_size = vars::number(env, names.local_size, SIZE)?;
    if let Some((rank, size)) = local_rank.zip(local_size) {
        below(names.local_rank, rank, names.local_size, size)?;
    }
    Ok(Claim {
        kind: names.kind,
        rank: (names.rank, rank),
        size: (names.size, size),
        local_rank,
        local_size,
    })
}

fn below(rank_name: &str, rank: u32, size_name: &str, size: u32) -> Result<(), Error> {
    if rank < size {
        return Ok(());
    }
    let expected = format!("a rank below {size_name}={size}");
    Err(vars::invalid(rank_name, &rank.to_string(), &expected))
}

fn half(missing: &str, present: &str, value: u32) -> Error {
    Error::Missing {
        variable: missing.to_owned(),
        because: format!("{present}={value} is"),
        hint: "set both, or neither".to_owned(),
    }
}

fn agree(a: &Claim, b: &Claim) -> Result<(), Error> {
    for ((a_name, a), (b_name, b)) in [(a.size, b.size), (a.rank, b.rank)] {
        if a != b {
            return Err(Error::Contradiction {
                first: format!("{a_name}={a}"),
                second: format!("{b_name}={b}"),
            });
        }
    }
    Ok(())
}

fn take(claims: &mut Vec<Claim>, kind: LauncherKind) -> Option<Claim> {
    let at = claims.iter().position(|claim| claim.kind == kind)?;
    Some(claims.remove(at))
}

fn has_torch_agent(env: Lookup<'_>) -> bool {
    vars::text(env, "TORCHELASTIC_RUN_ID").is_some() && vars::text(env, TORCHRUN.rank).is_some()
}

/// Whether Hydra set the PMI variables, rather than Slurm: only Hydra sets this one.
fn is_hydra(env: Lookup<'_>) -> bool {
    vars::text(env, HYDRA.local_rank).is_some()
}

/// The claim of a process in a Slurm step. The batch script has a rank, too, but belongs to no
/// step, and so has no step's node list.
fn slurm_step(env: Lookup<'_>) -> Result<Option<Claim>, Error> {
    let Some(rank) = vars::number(env, "SLURM_PROCID", RANK)? else {
        return Ok(None);
    };
    if vars::text(env, "SLURM_STEP_NODELIST").is_none() {
        return Ok(None);
    }
    let of_step = vars::number(env, "SLURM_STEP_NUM_TASKS", SIZE)?;
    let of_job = vars::number(env, "SLURM_NTASKS", SIZE)?;
    let (size_name, size) = match (of_step, of_job) {
        (Some(size), _) => ("SLURM_STEP_NUM_TASKS", size),
        (None, Some(size)) => ("SLURM_NTASKS", size),
        (None, None) => return Err(half("SLURM_NTASKS", "SLURM_PROCID", rank)),
    };
    let names = Names {
        kind: LauncherKind::Slurm,
        rank: "SLURM_PROCID",
        size: size_name,
        local_rank: SLURM_LOCAL_RANK,
        // Slurm has no such variable, only a list for all nodes.
        local_size: "",
    };
    checked(env, names, rank, size).map(Some)
}

fn rendezvous(env: Lookup<'_>, claim: &Claim, deadline: Instant) -> Result<Rendezvous, Error> {
    match claim.kind {
        LauncherKind::Own => own_rendezvous(env, claim, deadline),
        LauncherKind::Torchrun => torch_rendezvous(env, claim),
        kind => match address_with_secret(env)? {
            Some(address) => Ok(address),
            None => launcher_rendezvous(env, claim, kind),
        },
    }
}

fn own_rendezvous(env: Lookup<'_>, claim: &Claim, deadline: Instant) -> Result<Rendezvous, Error> {
    if let Some(id) = vars::text(env, UNIQUE_ID) {
        return Ok(Rendezvous::UniqueId(id));
    }
    if let Some(path) = vars::text(env, "SPARK_CCL_UNIQUE_ID_FILE") {
        let id = files::read(Path::new(&path), LONGEST_ID_FILE, deadline);
        let id = id.map_err(|source| Error::File {
            variable: "SPARK_CCL_UNIQUE_ID_FILE".to_owned(),
            path,
            source,
        })?;
        let id = String::from_utf8_lossy(&id).trim().to_owned();
        return Ok(Rendezvous::UniqueId(id));
    }
    let names = ["SPARK_CCL_COMM_ID", "NCCL_COMM_ID"];
    let set = |name| vars::text(env, name).map(|value| (name, value));
    if let Some((name, value)) = names.into_iter().find_map(set) {
        let expected = "host:port or [IPv6 address]:port";
        let (host, port) =
            host_and_port(&value).ok_or_else(|| vars::invalid(name, &value, expected))?;
        return Ok(Rendezvous::Address {
            host,
            port,
            setting: name,
            bind: true,
        });
    }
    master(env)?.ok_or_else(|| Error::Missing {
        variable: UNIQUE_ID.to_owned(),
        because: format!("{}={} is", claim.rank.0, claim.rank.1),
        hint:
            "set it, or SPARK_CCL_UNIQUE_ID_FILE, SPARK_CCL_COMM_ID, or MASTER_ADDR and MASTER_PORT"
                .to_owned(),
    })
}

fn torch_rendezvous(env: Lookup<'_>, claim: &Claim) -> Result<Rendezvous, Error> {
    let missing = || Error::Missing {
        variable: match vars::text(env, "MASTER_ADDR") {
            Some(_) => "MASTER_PORT",
            None => "MASTER_ADDR",
        }
        .to_owned(),
        because: format!("{}={} is", claim.rank.0, claim.rank.1),
        hint: "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there".to_owned(),
    };
    match master(env)?.ok_or_else(missing)? {
        Rendezvous::Address { host, port, .. }
            if vars::flag(env, "TORCHELASTIC_USE_AGENT_STORE") =>
        {
            // A restarted group of workers must not read the values that its predecessor left.
            let run = vars::text(env, "TORCHELASTIC_RUN_ID").unwrap_or_default();
            let restart = vars::text(env, "TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
            let prefix = format!("spark_ccl/{run}/{restart}/");
            Ok(Rendezvous::KeyValue(Box::new(TcpStore::new(
                host, port, prefix,
            ))))
        }
        address => Ok(address),
    }
}

/// The rendezvous at `MASTER_ADDR` and `MASTER_PORT`, if a secret is set, too. Setting all three
/// under an MPI launcher means that they are to be used instead of its key-value space.
fn address_with_secret(env: Lookup<'_>) -> Result<Option<Rendezvous>, Error> {
    let has_secret = ["SPARK_CCL_SECRET", "SPARK_CCL_SECRET_FILE"]
        .iter()
        .any(|name| vars::text(env, name).is_some());
    if has_secret { master(env) } else { Ok(None) }
}

fn launcher_rendezvous(
    env: Lookup<'_>,
    claim: &Claim,
    kind: LauncherKind,
) -> Result<Rendezvous, Error> {
    let has_pmix = vars::text(env, "PMIX_NAMESPACE").is_some();
    if kind == LauncherKind::OpenMpi || kind == LauncherKind::Slurm && has_pmix {
        return Ok(Rendezvous::KeyValue(Box::new(PmixSpace)));
    }
    if let Some(fd) = vars::number(env, "PMI_FD", "the number of an open file descriptor")? {
        let fd = i32::try_from(fd)
            .map_err(|_| vars::invalid("PMI_FD", &fd.to_string(), "a file descriptor"))?;
        return Ok(Rendezvous::KeyValue(Box::new(Pmi1Space::new(fd))));
    }
    if kind == LauncherKind::Slurm {
        return slurm_rendezvous(env);
    }
    Err(Error::Missing {
        variable: "PMI_FD".to_owned(),
        because: format!("{}={} is", claim.rank.0, claim.rank.1),
        hint: "set MASTER_ADDR, MASTER_PORT and SPARK_CCL_SECRET on all ranks".to_owned(),
    })
}

/// The rendezvous of a Slurm step without PMI: the step's first node, and a port that differs
/// between a job's steps.
fn slurm_rendezvous(env: Lookup<'_>) -> Result<Rendezvous, Error> {
    const LIST: &str = "SLURM_STEP_NODELIST";
    let list = vars::text(env, LIST).unwrap_or_default();
    let host = node_list::first_host(&list)
        .ok_or_else(|| vars::invalid(LIST, &list, "a node list such as node[01-03,7]"))?;
    let job = vars::number(env, "SLURM_JOB_ID", "a job's number")?.unwrap_or(0);
    let step = vars::number(env, "SLURM_STEP_ID", "a step's number")?.unwrap_or(0);
    let port = slurm_port(job, step);
    Ok(Rendezvous::Address {
        host,
        port,
        setting: LIST,
        bind: true,
    })
}

/// A port in 20000..32000, below those that Linux gives to outgoing connections. The ports of one
/// job's steps are far from those of the next job.
fn slurm_port(job: u32, step: u32) -> u16 {
    const FIRST: u64 = 20_000;
    const COUNT: u64 = 12_000;
    let offset = u64::from(job) * 7919 + u64::from(step);
    (FIRST + offset % COUNT) as u16
}

fn master(env: Lookup<'_>) -> Result<Option<Rendezvous>, Error> {
    let host = vars::text(env, "MASTER_ADDR");
    let port = vars::port(env, "MASTER_PORT")?;
    Ok(host.zip(port).map(|(host, port)| Rendezvous::Address {
        host,
        port,
        setting: "MASTER_ADDR",
        bind: true,
    }))
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        // In an IPv6 address without brackets, the port is ambiguous.
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|&port| port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests;
