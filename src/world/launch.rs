//! The rank of this process, and where the ranks meet: from the user's settings, or else from
//! the launcher.

use std::time::Instant;

use spark_ccl_bootstrap::UniqueId;
use spark_ccl_config::Env;
use spark_ccl_launcher::{Launch, LauncherKind, Rendezvous};

use super::deadline::deadline_in;
use crate::error::Error;

/// A launcher's description of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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
    let deadline = deadline_in(env.init_timeout());
    Ok(detect(&env, deadline)?.map(|launch| LaunchInfo {
        kind: launch.kind.to_string(),
        rank: launch.rank as usize,
        size: launch.size as usize,
        local_rank: launch.local_rank.map(|rank| rank as usize),
    }))
}

/// The environment that makes a process of this host rank `rank` of `size` for
/// [`Communicator::from_env`](crate::Communicator::from_env). It holds the id's secret.
///
/// The process that has created the id must live until the ranks are connected.
///
/// ```no_run
/// use spark_ccl::{Communicator, rank_variables};
/// use std::process::Command;
///
/// let id = Communicator::builder().unique_id()?;
/// for rank in 0..2 {
///     Command::new("./my-program").envs(rank_variables(&id, rank, 2)).spawn()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn rank_variables(id: &UniqueId, rank: usize, size: usize) -> [(&'static str, String); 5] {
    spark_ccl_launcher::rank_variables(narrow(rank), narrow(size), id.to_string())
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The program's own settings of this process's rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaunchOverrides {
    pub(crate) rank: Option<usize>,
    pub(crate) size: Option<usize>,
    /// Name or address of rank 0's host, and a port there.
    pub(crate) meeting: Option<(String, u16)>,
}

impl LaunchOverrides {
    /// This process's rank and meeting place: as the user has set them, or else from the
    /// launcher.
    ///
    /// A file that the launcher's variables name is read until the deadline.
    pub(crate) fn launch(&self, env: &Env, deadline: Instant) -> Result<Launch, Error> {
        let LaunchOverrides {
            rank,
            size,
            meeting,
        } = self;
        let meeting = meeting.clone().map(|(host, port)| Rendezvous::Address {
            host,
            port,
            setting: "meet_at",
            bind: true,
        });
        let (rank, size) = (rank.map(narrow), size.map(narrow));
        let launch = match (rank, size, meeting) {
            (Some(rank), Some(size), Some(rendezvous)) => Launch {
                kind: LauncherKind::Own,
                rank,
                size,
                local_rank: None,
                local_size: None,
                rendezvous,
            },
            (rank, size, meeting) => {
                let launch = detect(env, deadline)?.ok_or_else(no_launcher)?;
                let differs = rank.is_some_and(|rank| rank != launch.rank)
                    || size.is_some_and(|size| size != launch.size);
                let by_launcher = matches!(launch.rendezvous, Rendezvous::KeyValue(_));
                if differs && by_launcher && meeting.is_none() {
                    return Err(renumbered(&launch));
                }
                Launch {
                    rank: rank.unwrap_or(launch.rank),
                    size: size.unwrap_or(launch.size),
                    rendezvous: meeting.unwrap_or(launch.rendezvous),
                    ..launch
                }
            }
        };
        if launch.rank < launch.size {
            return Ok(launch);
        }
        Err(Error::Launcher(format!(
            "rank {} of {} ranks: ranks are 0 to {}",
            launch.rank,
            launch.size,
            launch.size.saturating_sub(1)
        )))
    }
}

/// The ranks of that launch meet by the launcher's own numbers.
fn renumbered(launch: &Launch) -> Error {
    Error::Launcher(format!(
        "the program says another rank or size than {}, whose ranks meet as it has numbered them \
         ({} of {}): say with `Builder::meet_at`, too, where they meet",
        launch.kind, launch.rank, launch.size
    ))
}

fn no_launcher() -> Error {
    Error::Launcher(
        "no launcher was found: start the ranks with `spark-perf launch --local 2 -- PROGRAM`, \
         torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            .to_owned(),
    )
}

fn detect(env: &Env, deadline: Instant) -> Result<Option<Launch>, Error> {
    let look = |name: &str| env.get(name).map(str::to_owned);
    spark_ccl_launcher::detect(&look, deadline).map_err(|error| Error::Launcher(error.to_string()))
}
