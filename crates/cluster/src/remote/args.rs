//! The arguments that name hosts, and say how to reach them.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use clap::Args;

use super::error::Error;
use super::hosts::{Host, parse_file, parse_list, settled};
use super::shell;

/// The exit code of ssh for its own failures.
const SSH_FAILED: i32 = 255;
/// The exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;

/// The hosts, and the way to reach them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostArgs {
    /// Hosts as ssh knows them: names, addresses, user@host; with the number of ranks, where there
    /// are ranks. Comes more than once, too
    #[arg(short = 'H', long = "host", value_name = "HOST[:SLOTS],..")]
    pub(crate) list: Vec<String>,
    /// A file with a host on each line: HOST, HOST:SLOTS or HOST slots=SLOTS; # begins a comment.
    /// Hostfiles of Open MPI (max-slots=N) and MPICH are taken; headings of groups are left out
    #[arg(long, value_name = "FILE")]
    pub(crate) hostfile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
}

/// The way to reach hosts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct SshArgs {
    /// The ssh client and its options, separated by spaces
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// spark-perf on the other hosts [default: where it is here, or else on the PATH, or in
    /// ~/.cargo/bin]
    #[arg(long, value_name = "PATH")]
    remote_program: Option<String>,
}

impl HostArgs {
    /// The hosts that are named, each once, in order; none if none are.
    pub(crate) fn hosts(&self) -> Result<Vec<Host>, Error> {
        let mut hosts = Vec::new();
        for list in &self.list {
            let named = |why| Error::Usage(format!("-H {list}: {why}"));
            hosts.extend(parse_list(list).map_err(named)?);
        }
        if let Some(path) = &self.hostfile {
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
            let listed = text.and_then(|text| parse_file(&text));
            let named = |why| Error::Usage(format!("--hostfile {}: {why}", path.display()));
            hosts.extend(listed.map_err(named)?);
        }
        Ok(settled(hosts))
    }
}

/// Reaches hosts by the ssh client.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    ssh: Vec<String>,
    program: Option<String>,
}

impl SshArgs {
    /// The flags as words of another command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec!["--ssh".to_owned(), self.ssh.clone()];
        if let Some(program) = &self.remote_program {
            words.extend(["--remote-program".to_owned(), program.clone()]);
        }
        words
    }

    pub(crate) fn remote(&self) -> Result<Remote, Error> {
        let ssh: Vec<String> = self.ssh.split_whitespace().map(str::to_owned).collect();
        if ssh.is_empty() {
            return Err(Error::Usage("--ssh: names no program".to_owned()));
        }
        Ok(Remote {
            ssh,
            program: self.remote_program.clone(),
        })
    }
}

/// Options for programs: no questions, and an end when the other side is gone. Those of `--ssh`
/// come before them, and the first of each name counts.
const OPTIONS: [&str; 9] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
];

impl Remote {
    /// With this in place of the ssh client.
    #[cfg(test)]
    pub(super) fn by(words: &[&str]) -> Self {
        Self {
            ssh: words.iter().map(|&word| word.to_owned()).collect(),
            program: None,
        }
    }

    /// The command that runs spark-perf with these arguments on a host. All users of both hosts see
    /// the arguments: secrets go through standard input.
    pub(crate) fn command(&self, host: &Host, arguments: &[&str]) -> Command {
        if host.is_here {
            let mut command = Command::new("/proc/self/exe");
            command.args(arguments);
            return command;
        }
        let mut command = Command::new(&self.ssh[0]);
        command
            .args(&self.ssh[1..])
            .args(OPTIONS)
            .args(["--", &host.name])
            .arg(shell::find_and_run(self.program.as_deref(), arguments));
        command
    }

    /// The error of a command over ssh that could not be started.
    pub(crate) fn not_started(&self, host: &Host, source: std::io::Error) -> Error {
        let program = if host.is_here {
            "spark-perf"
        } else {
            &self.ssh[0]
        };
        Error::start(host, program, source)
    }

    /// Why a command that has ended did not even run, if so; `said` is its standard error.
    pub(crate) fn failure(host: &Host, status: ExitStatus, said: &[u8]) -> Option<Error> {
        match status.code() {
            _ if host.is_here => None,
            Some(SSH_FAILED) => Some(Error::ssh(host, said)),
            Some(NOT_FOUND) => Some(Error::missing(host)),
            _ => None,
        }
    }
}
