//! Where the ranks of a run come from: a launcher, processes that spark-perf starts, or threads.

use spark_ccl::{Backend, Builder, Communicator, UniqueId};

use crate::cli::options::LinkOptions;
use crate::cli::ranks::RankCounts;
use crate::error::Error;

/// The most ranks for which schedules are tested, and for which the inputs of checks are exact.
const MOST_RANKS: usize = 4096;
/// The most ranks that may be threads of one process.
const MOST_THREADS: usize = 1024;

/// The source of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum World {
    /// A launcher, or another spark-perf, has started the processes.
    Launched {
        /// The index of this process.
        process: usize,
        /// The number of processes.
        processes: usize,
    },
    /// This process starts the others.
    Parent {
        /// The number of processes.
        processes: usize,
    },
    /// This is the only process.
    Alone,
}

impl World {
    /// Chooses by the numbers that were given, and the environment.
    pub(crate) fn find(counts: RankCounts) -> Result<Self, Error> {
        if let Some(launch) = spark_ccl::launcher()? {
            let (process, processes) = (launch.rank, launch.size);
            return match counts.processes {
                Some(procs) if procs != processes => Err(Error::usage(format!(
                    "--procs {procs}: {} has started {processes} processes; leave --procs out to \
                     take those",
                    launch.kind
                ))),
                _ => Ok(Self::Launched { process, processes }),
            };
        }
        let threads = counts.threads.is_some() || counts.each.is_some();
        Ok(
            match counts.processes.unwrap_or(if threads { 1 } else { 2 }) {
                1 => Self::Alone,
                processes => Self::Parent { processes },
            },
        )
    }

    /// The number of processes.
    pub(crate) fn processes(self) -> usize {
        match self {
            Self::Launched { processes, .. } | Self::Parent { processes } => processes,
            Self::Alone => 1,
        }
    }

    /// The number of ranks in all processes.
    pub(crate) fn ranks(self, counts: RankCounts) -> Result<usize, Error> {
        let (processes, each) = (self.processes(), local_ranks(counts)?);
        processes
            .checked_mul(each)
            .filter(|&ranks| ranks <= MOST_RANKS)
            .ok_or_else(|| {
                Error::usage(format!(
                    "{processes} processes of {each} ranks: at most {MOST_RANKS} ranks are possible"
                ))
            })
    }

    /// The index of this process; rank 0 is in the first process.
    pub(crate) fn process(self) -> usize {
        match self {
            Self::Launched { process, .. } => process,
            Self::Parent { .. } | Self::Alone => 0,
        }
    }
}

/// The ranks that are threads of one process.
pub(crate) fn local_ranks(counts: RankCounts) -> Result<usize, Error> {
    let (threads, each) = (counts.threads(), counts.each());
    threads
        .checked_mul(each)
        .filter(|&ranks| ranks <= MOST_THREADS)
        .ok_or_else(|| {
            Error::usage(format!(
                "-t {threads} -g {each}: more than {MOST_THREADS} threads"
            ))
        })
}

/// A builder with these settings.
pub(crate) fn builder(links: &LinkOptions) -> Builder {
    let mut builder = Communicator::builder().backend(Backend::Host);
    if let Some(timeout) = links.timeout {
        builder = builder.operation_timeout(timeout);
    }
    if let Some(path) = links.path {
        builder = builder.path(path);
    }
    if let Some(algorithms) = &links.algorithms {
        builder = builder.algorithms(algorithms.clone());
    }
    builder
}

/// The results of the ranks of this process.
pub(crate) type Results<R> = Vec<(usize, Result<R, Error>)>;

/// Runs `body` as each rank of this process.
pub(crate) fn run<R, F>(
    world: World,
    counts: RankCounts,
    builder: &Builder,
    body: F,
) -> Result<Results<R>, Error>
where
    R: Send,
    F: Fn(Communicator) -> Result<R, Error> + Sync,
{
    let local = local_ranks(counts)?;
    let first = world.process() * local;
    let size = world.processes() * local;
    let body = &body;
    match world {
        World::Launched { .. } if local == 1 => {
            Ok(in_threads(first, vec![|| body(builder.from_env()?)]))
        }
        World::Launched { .. } => {
            let processes = builder.from_env()?;
            let id = &share_id(builder, &processes)?;
            let rank = |index| move || body(builder.connect(id, first + index, size)?);
            Ok(in_threads(first, (0..local).map(rank).collect()))
        }
        World::Alone | World::Parent { .. } => {
            let ranks = builder.local(local)?.into_iter();
            let rank = |comm| move || body(comm);
            Ok(in_threads(first, ranks.map(rank).collect()))
        }
    }
}

/// A new unique id, shared through `comm`, for a communicator with more ranks than `comm` has.
pub(crate) fn share_id(builder: &Builder, comm: &Communicator) -> Result<UniqueId, Error> {
    let own = if comm.rank() == 0 {
        Some(builder.unique_id()?)
    } else {
        None
    };
    let mut bytes = own.as_ref().map_or([0; UniqueId::LEN], |id| *id.as_bytes());
    comm.broadcast_in_place(&mut bytes[..], 0)
        .by_any_path()
        .run()?;
    match own {
        Some(id) => Ok(id),
        None => Ok(UniqueId::from_bytes(&bytes).map_err(spark_ccl::Error::from)?),
    }
}

/// Runs each body in a thread of its own; a single one runs in this thread.
pub(crate) fn in_threads<R: Send, F: FnOnce() -> Result<R, Error> + Send>(
    first: usize,
    mut bodies: Vec<F>,
) -> Results<R> {
    if bodies.len() == 1
        && let Some(body) = bodies.pop()
    {
        return vec![(first, body())];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = bodies.into_iter().map(|body| scope.spawn(body)).collect();
        let join = |(index, thread): (usize, std::thread::ScopedJoinHandle<'_, _>)| {
            let rank = first + index;
            (rank, thread.join().unwrap_or(Err(Error::Panicked { rank })))
        };
        threads.into_iter().enumerate().map(join).collect()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use spark_ccl_console::Failure;

    use super::*;
    use crate::cli::args::MeasureArgs;

    fn world(args: &[&str]) -> Result<World, Error> {
        let args = MeasureArgs::parse_from(["spark-perf", "all_reduce"].iter().chain(args));
        World::find(args.ranks.checked()?)
    }

    #[test]
    fn two_processes_unless_told_otherwise() {
        assert_eq!(world(&[]).unwrap(), World::Parent { processes: 2 });
        assert_eq!(
            world(&["--procs", "3"]).unwrap(),
            World::Parent { processes: 3 }
        );
        assert_eq!(world(&["--procs", "1"]).unwrap(), World::Alone);
        assert_eq!(world(&["-t", "2"]).unwrap(), World::Alone);
        assert_eq!(
            world(&["-t", "2", "--procs", "2"]).unwrap(),
            World::Parent { processes: 2 }
        );
    }

    #[test]
    fn zero_counts_are_refused() {
        for flag in ["--procs", "-t", "-g"] {
            assert_eq!(world(&[flag, "0"]).unwrap_err().exit_code(), 6);
        }
        let args = MeasureArgs::parse_from(["spark-perf", "all_reduce", "-t", "100", "-g", "100"]);
        assert!(local_ranks(args.ranks.checked().unwrap()).is_err());
    }
}
