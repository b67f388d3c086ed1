//! Chooses what executes the collectives: the library's own engines, in host memory or on GPUs, or
//! NCCL.

use std::path::Path;

use spark_ccl::{Backend, Communicator, RedOp};

use crate::cli::args::{BackendArg, MeasureArgs, MemoryArg};
use crate::error::Error;
use crate::ranks::hosts::reduce;

/// Exists if NVIDIA's driver is loaded.
const DRIVER: &str = "/dev/nvidiactl";

/// The chosen backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) backend: BackendArg,
    /// The reason why it is not NCCL, if that may be unexpected.
    pub(crate) note: Option<String>,
    /// The number of GPUs that this process may use; 0 if that was not determined.
    gpus: usize,
}

/// The parts of the machine that a backend for GPUs needs.
trait Machine {
    /// The number of GPUs, if all that the backend needs is there.
    fn gpus(&self, backend: BackendArg) -> Result<usize, Error>;

    /// A cheap test whether there may be a GPU.
    fn seems_to_have_gpus(&self) -> bool;
}

/// This machine.
struct LocalMachine;

impl Choice {
    /// Chooses by the arguments and by the parts of the machine.
    pub(crate) fn new(args: &MeasureArgs) -> Result<Self, Error> {
        Self::on(&LocalMachine, args)
    }

    fn on(machine: &impl Machine, args: &MeasureArgs) -> Result<Self, Error> {
        match (args.backend, host_flag(args)) {
            (None, flag) => Ok(Self::by_default(machine, args, flag)),
            (Some(BackendArg::Host), _) => Ok(Self::host(args.note.clone())),
            (Some(_), Some(flag)) => Err(Error::usage(format!(
                "{flag} only applies to host memory: leave it out, or use --backend host"
            ))),
            (Some(backend), None) => Ok(Self {
                backend,
                note: args.note.clone(),
                gpus: machine.gpus(backend)?,
            }),
        }
    }

    fn by_default(machine: &impl Machine, args: &MeasureArgs, flag: Option<&str>) -> Self {
        let flag = flag.or(args.ranks.procs.map(|_| "--procs"));
        let reason = match (flag, machine.seems_to_have_gpus()) {
            (_, false) => return Self::host(None),
            (Some(flag), true) => format!("{flag} implies host memory; --backend nccl uses GPUs"),
            (None, true) => match machine.gpus(BackendArg::Nccl) {
                Ok(gpus) => {
                    return Self {
                        backend: BackendArg::Nccl,
                        note: None,
                        gpus,
                    };
                }
                Err(error) => error.to_string(),
            },
        };
        Self::host(Some(format!("No GPUs are used: {reason}")))
    }

    fn host(note: Option<String>) -> Self {
        Self {
            backend: BackendArg::Host,
            note,
            gpus: 0,
        }
    }

    /// The arguments; uses all GPUs if nothing gives the number of ranks.
    pub(crate) fn complete(&self, args: &MeasureArgs) -> Result<MeasureArgs, Error> {
        let mut args = args.clone();
        let ranks = &mut args.ranks;
        let open = ranks.nthreads.is_none() && ranks.ngpus.is_none() && ranks.procs.is_none();
        if self.backend != BackendArg::Host && open && spark_ccl::launcher()?.is_none() {
            ranks.ngpus = Some(self.gpus);
        }
        Ok(args)
    }

    /// Refuses a run whose processes have chosen differently: a launcher may have started some on
    /// machines without GPUs.
    pub(crate) fn agree(&self, comm: &Communicator) -> Result<(), Error> {
        let mut with_gpus = [u64::from(self.backend != BackendArg::Host)];
        reduce(comm, &mut with_gpus, RedOp::Sum)?;
        let without = comm.size() as u64 - with_gpus[0];
        if with_gpus[0] == 0 || without == 0 {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{} of {} threads would take GPUs, and {without} host memory, since not all have found \
             a GPU and NCCL: give all of them the same --backend",
            with_gpus[0],
            comm.size()
        )))
    }

    /// The arguments that make started processes choose the same.
    pub(crate) fn child_arguments(&self) -> Vec<String> {
        let backends = self.backend.backends().iter().map(ToString::to_string);
        let backend = format!("--backend={}", backends.collect::<Vec<_>>().join(","));
        let note = self.note.as_ref().map(|note| format!("--note={note}"));
        std::iter::once(backend).chain(note).collect()
    }
}

impl Machine for LocalMachine {
    #[cfg(feature = "cuda")]
    fn gpus(&self, backend: BackendArg) -> Result<usize, Error> {
        let gpus = spark_ccl::cuda::devices()?;
        if backend.backends().contains(&Backend::Nccl) {
            spark_ccl::cuda::nccl_version()?;
        }
        Ok(gpus.len())
    }

    #[cfg(not(feature = "cuda"))]
    fn gpus(&self, _: BackendArg) -> Result<usize, Error> {
        Err(Error::without_cuda())
    }

    fn seems_to_have_gpus(&self) -> bool {
        Path::new(DRIVER).exists()
    }
}

/// The first given flag that only makes sense in host memory.
fn host_flag(args: &MeasureArgs) -> Option<&'static str> {
    let flags = [
        (
            matches!(
                args.operation.memory,
                Some(MemoryArg::Ordinary | MemoryArg::Registered)
            ),
            "--memory",
        ),
        (args.operation.path.is_some(), "--path"),
        (args.operation.algo.is_some(), "--algo"),
        (args.timing.buffers.is_some(), "--buffers"),
    ];
    let given = flags.into_iter().find(|(given, _)| *given);
    given.map(|(_, flag)| flag)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use spark_ccl_console::Failure;

    use super::*;

    struct FakeMachine {
        driver: bool,
        gpus: Option<usize>,
    }

    const WITH_GPUS: FakeMachine = FakeMachine {
        driver: true,
        gpus: Some(8),
    };
    const WITHOUT_NCCL: FakeMachine = FakeMachine {
        driver: true,
        gpus: None,
    };
    const WITHOUT_GPUS: FakeMachine = FakeMachine {
        driver: false,
        gpus: None,
    };

    impl Machine for FakeMachine {
        fn gpus(&self, backend: BackendArg) -> Result<usize, Error> {
            if backend == BackendArg::Engine && self.driver {
                return Ok(8);
            }
            let missing = || Error::NotImplemented("no libnccl".into());
            self.gpus.ok_or_else(missing)
        }

        fn seems_to_have_gpus(&self) -> bool {
            self.driver
        }
    }

    fn args(text: &str) -> MeasureArgs {
        let words = ["spark-perf", "all_reduce"].into_iter();
        MeasureArgs::try_parse_from(words.chain(text.split_whitespace())).unwrap()
    }

    fn choice(machine: &FakeMachine, text: &str) -> Result<(BackendArg, Option<String>), Error> {
        let choice = Choice::on(machine, &args(text))?;
        Ok((choice.backend, choice.note))
    }

    #[test]
    fn nccl_where_it_is_there() {
        for text in ["", "-t 2", "-g 4", "-M 1", "-R 2", "--memory 1"] {
            let found = choice(&WITH_GPUS, text).unwrap();
            assert_eq!(found, (BackendArg::Nccl, None), "{text}");
            let found = choice(&WITHOUT_GPUS, text).unwrap();
            assert_eq!(found, (BackendArg::Host, None), "{text}");
        }
        let (backend, note) = choice(&WITHOUT_NCCL, "").unwrap();
        assert_eq!(backend, BackendArg::Host);
        assert!(note.unwrap().contains("no libnccl"));
    }

    #[test]
    fn host_flags_keep_to_the_host() {
        for text in [
            "--memory registered",
            "--path safe",
            "--algo ring",
            "--buffers hot",
            "--procs 2",
        ] {
            let flag = text.split_whitespace().next().unwrap();
            let (backend, note) = choice(&WITH_GPUS, text).unwrap();
            assert_eq!(backend, BackendArg::Host);
            assert!(note.unwrap().contains(flag), "{text}");
            assert_eq!(choice(&WITHOUT_GPUS, text).unwrap().1, None);
            let asked = choice(&WITH_GPUS, &format!("--backend nccl {text}"));
            match asked {
                Ok((backend, _)) => assert_eq!((backend, flag), (BackendArg::Nccl, "--procs")),
                Err(error) => assert_eq!(error.exit_code(), 6, "{text}"),
            }
        }
        assert!(choice(&WITHOUT_NCCL, "--backend nccl").is_err());
        assert!(choice(&WITHOUT_GPUS, "--backend engine").is_err());
        let engine = choice(&WITHOUT_NCCL, "--backend engine --explain").unwrap();
        assert_eq!(engine, (BackendArg::Engine, None));
        assert!(choice(&WITHOUT_NCCL, "--backend engine,nccl").is_err());
        let both = choice(&WITH_GPUS, "--backend engine,nccl").unwrap();
        assert_eq!(both, (BackendArg::EngineAndNccl, None));
        let host = choice(&WITH_GPUS, "--backend host").unwrap();
        assert_eq!(host, (BackendArg::Host, None));
    }

    #[test]
    fn all_gpus_unless_told_otherwise() {
        let gpus = |text: &str| {
            let args = args(text);
            let choice = Choice::on(&WITH_GPUS, &args).unwrap();
            choice.complete(&args).unwrap().ranks.ngpus
        };
        assert_eq!(gpus(""), Some(8));
        assert_eq!(gpus("-g 2"), Some(2));
        assert_eq!(gpus("-t 2"), None);
        assert_eq!(gpus("--backend nccl --procs 2"), None);
        assert_eq!(gpus("--backend engine"), Some(8));
        assert_eq!(gpus("--backend host"), None);
    }

    #[test]
    fn processes_choose_what_was_chosen_for_them() {
        for text in [
            "--algo ring",
            "-g 2",
            "--backend engine",
            "--backend engine,nccl",
        ] {
            let first = Choice::on(&WITH_GPUS, &args(text)).unwrap();
            let words: Vec<_> = ["spark-perf".to_owned(), "all_reduce".to_owned()]
                .into_iter()
                .chain(first.child_arguments())
                .collect();
            let args = MeasureArgs::try_parse_from(words).unwrap();
            assert_eq!(Choice::on(&WITH_GPUS, &args).unwrap(), first, "{text}");
        }
    }
}
