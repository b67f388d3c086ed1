//! The hosts that a command is about: this one, others over ssh, or recorded ones from files.
//!
//! Knows where the descriptions come from. Must not know what is looked for in them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spark_ccl_config::Env;
use spark_ccl_console::print_error;
use spark_ccl_topology::{self as topology, Host};

use crate::error::Error;
use crate::remote::{self, Answer, HostArgs, run_on_all};

/// The time limit for a host to describe itself.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest file with descriptions, in bytes.
const LONGEST: u64 = 64 << 20;

/// The hosts that are named on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SurveyArgs {
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    /// Hosts that were written down: files that `topo --json` made, or folders with recorded `/sys`
    /// and `/proc`, separated by commas [default, without -H: this host]
    #[arg(long, value_name = "FILE,..", value_delimiter = ',', conflicts_with_all = ["list", "hostfile"])]
    from: Vec<PathBuf>,
}

impl SurveyArgs {
    /// Hosts that are asked over the network.
    pub(crate) fn of(hosts: HostArgs) -> Self {
        Self {
            hosts,
            from: Vec::new(),
        }
    }
}

/// A host, and how its clock was read.
#[derive(Debug, Clone)]
pub(crate) struct Surveyed {
    pub(crate) host: Host,
    /// The lead of its clock before this machine's, and the error of that, both in seconds; `None`
    /// for a host that was written down.
    pub(crate) clock_ahead: Option<(f64, f64)>,
    /// How it is reached; `None` for this machine without a name, and for one that was written
    /// down.
    pub(crate) reached: Option<remote::Host>,
}

/// A host that could not be read.
#[derive(Debug)]
pub(crate) struct Unreached {
    pub(crate) name: String,
    /// Why, and what to do.
    pub(crate) error: Error,
}

/// The hosts, in the order in which they are named; all of them must answer.
pub(crate) fn survey(args: &SurveyArgs) -> Result<Vec<Host>, Error> {
    let found = survey_each(args)?.into_iter();
    let hosts = found.map(|one| one.map(|it| it.host).map_err(|it| it.error));
    hosts.collect()
}

/// The hosts, in the order in which they are named, or why one does not answer.
pub(crate) fn survey_each(args: &SurveyArgs) -> Result<Vec<Result<Surveyed, Unreached>>, Error> {
    let found = each(args)?;
    for host in found.iter().flatten().map(|one| &one.host) {
        if !host.left_out.is_empty() {
            print_error(format_args!(
                "{}: these interfaces are left out, since a shell reads their names otherwise: {}",
                host.name,
                host.left_out.join(", ")
            ));
        }
    }
    Ok(found)
}

fn each(args: &SurveyArgs) -> Result<Vec<Result<Surveyed, Unreached>>, Error> {
    let hosts = args.hosts.hosts()?;
    if !hosts.is_empty() {
        return asked(args, &hosts);
    }
    if args.from.is_empty() {
        let host = topology::live(&Env::from_process())?;
        return Ok(vec![Ok(written(host))]);
    }
    let mut found = Vec::new();
    for path in &args.from {
        found.extend(read(path)?.into_iter().map(|host| Ok(written(host))));
    }
    Ok(found)
}

/// Has every host describe itself, all at once; the answers come in the order of the hosts.
pub(crate) fn asked(
    args: &SurveyArgs,
    hosts: &[remote::Host],
) -> Result<Vec<Result<Surveyed, Unreached>>, Error> {
    let remote = args.hosts.ssh.remote()?;
    let answers = run_on_all(&remote, hosts, &["topo", "--json"], |_| Vec::new(), LIMIT);
    let both = hosts.iter().zip(answers);
    Ok(both.map(|(host, answer)| surveyed(host, answer)).collect())
}

/// Reads a host's answer. Its clock was read between its own start and end: another host may
/// have taken longer.
fn surveyed(
    host: &remote::Host,
    answer: Result<Answer, remote::Error>,
) -> Result<Surveyed, Unreached> {
    let read = answer.map_err(Error::from).and_then(|answer| {
        let mut described = described(&host.name, &answer)?;
        // Its own name may not resolve here, and two hosts may share one.
        described.name.clone_from(&host.name);
        Ok(Surveyed {
            clock_ahead: Some(ahead(described.clock, answer.times.map(seconds))),
            reached: Some(host.clone()),
            host: described,
        })
    });
    read.map_err(|error| Unreached {
        name: host.name.clone(),
        error,
    })
}

/// Reads the description that a host has printed.
fn described(name: &str, answer: &Answer) -> Result<Host, Error> {
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !answer.status.success() {
        let said = format!("spark-perf topo: {}", said(&answer.stderr));
        return Err(unreadable(name, &said));
    }
    Host::from_json(&said(answer.json())).map_err(|error| unreadable(name, &error))
}

/// The lead of a clock that was read between two times, and the error of that.
fn ahead(clock: f64, [before, after]: [f64; 2]) -> (f64, f64) {
    (clock - f64::midpoint(before, after), (after - before) / 2.0)
}

/// Since 1970.
fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

fn written(host: Host) -> Surveyed {
    Surveyed {
        host,
        clock_ahead: None,
        reached: None,
    }
}

/// The hosts that a file or folder describes.
fn read(path: &Path) -> Result<Vec<Host>, Error> {
    if path.is_dir() {
        return Ok(vec![topology::recorded(path)?]);
    }
    let text = text(path).map_err(Error::system(format!("reading {}", path.display())))?;
    hosts(&text).map_err(|error| unreadable(&path.display().to_string(), &error))
}

/// The text of a file with descriptions. A pipe is welcome, but a device may have no end.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

fn unreadable(from: &str, reason: &impl ToString) -> Error {
    Error::Unreadable {
        from: from.to_owned(),
        reason: reason.to_string(),
    }
}

/// One host, or a list of hosts.
pub(crate) fn hosts(text: &str) -> Result<Vec<Host>, topology::Error> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Array(all)) => all
            .iter()
            .map(|one| Host::from_json(&one.to_string()))
            .collect(),
        _ => Ok(vec![Host::from_json(text)?]),
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use clap::Parser;
    use spark_ccl_console::Failure;
    use spark_ccl_topology::testing;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: SurveyArgs,
    }

    fn from(files: &[&Path]) -> Result<Vec<Host>, Error> {
        let files: Vec<_> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        survey(&Only::parse_from(["survey", "--from", &files.join(",")]).args)
    }

    #[test]
    fn hosts_come_from_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let [one, both] = ["one.json", "both.json"].map(|name| folder.path().join(name));
        let tree = folder.path().join("tree");
        let recorded = testing::pair();
        recorded[0].write(&tree);
        let pair = testing::hosts(&recorded);
        std::fs::write(&one, pair[0].to_json()).unwrap();
        std::fs::write(&both, serde_json::to_string(&pair).unwrap()).unwrap();
        let found = from(&[&both, &one, &tree]).unwrap();
        let names: Vec<_> = found.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["spark-1", "spark-2", "spark-1", "spark-1"]);
        std::fs::write(&one, "{}").unwrap();
        let error = from(&[&one]).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert!(error.to_string().contains("one.json"), "{error}");
        let both = ["survey", "--from", "a.json", "-H", "b"];
        assert!(Only::try_parse_from(both).is_err());
    }

    #[test]
    fn a_shell_may_greet_before_the_description() {
        let host = &testing::hosts(&testing::pair())[0];
        let answer = Answer {
            status: std::process::ExitStatus::default(),
            stdout: format!("Welcome!\n[ 7 updates ]\n{}\n", host.to_json()).into_bytes(),
            stderr: Vec::new(),
            times: [UNIX_EPOCH; 2],
        };
        assert_eq!(described("spark-1", &answer).unwrap().name, host.name);
    }

    #[test]
    fn a_host_is_called_as_the_user_calls_it() {
        let answer = Answer {
            status: ExitStatus::default(),
            stdout: testing::spark("spark", 1).host().to_json().into_bytes(),
            stderr: Vec::new(),
            times: [UNIX_EPOCH; 2],
        };
        // Two boxes may both call themselves `spark`.
        let named = &remote::parse_list("nvidia@10.0.0.2").unwrap()[0];
        let host = surveyed(named, Ok(answer)).unwrap().host;
        assert_eq!(host.name, "nvidia@10.0.0.2");
        // What `topo --json` prints of it can be read again.
        let named = &remote::parse_list("fe80::1%enp1s0").unwrap()[0];
        let text = Host {
            name: named.name.clone(),
            ..host
        };
        assert_eq!(Host::from_json(&text.to_json()).unwrap().name, named.name);
    }

    #[test]
    fn a_clock_is_read_between_two_times() {
        let (by, exact) = ahead(107.0, [100.0, 102.0]);
        assert!((by - 6.0).abs() < 1e-9 && (exact - 1.0).abs() < 1e-9);
    }

    #[test]
    fn each_host_has_times_of_its_own() {
        let mut host = testing::spark("spark-1", 1).host();
        host.clock = 108.0;
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let ahead = |from, to| {
            let answer = Answer {
                status: ExitStatus::default(),
                stdout: host.to_json().into_bytes(),
                stderr: Vec::new(),
                times: [at(from), at(to)],
            };
            let named = &remote::parse_list("spark-1").unwrap()[0];
            surveyed(named, Ok(answer)).unwrap().clock_ahead.unwrap()
        };
        for ((from, to), expected) in [((99, 101), (8.0, 1.0)), ((98, 118), (0.0, 10.0))] {
            let (by, exact) = ahead(from, to);
            assert!((by - expected.0).abs() < 1e-9 && (exact - expected.1).abs() < 1e-9);
        }
    }
}
