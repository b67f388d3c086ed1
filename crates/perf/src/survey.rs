//! The hosts that a command is about: this one, or those that files describe.
//!
//! Knows where the descriptions come from. Must not know what is looked for in them.

use std::path::{Path, PathBuf};

use spark_ccl_config::Env;
use spark_ccl_topology::{self as topology, Host};

use crate::error::Error;

/// The hosts that are named on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SurveyArgs {
    /// Hosts that were written down: files that `topo --json` made, or folders with recorded `/sys` and `/proc`, separated by
    /// commas [default: this host]
    #[arg(long, value_name = "FILE,..", value_delimiter = ',')]
    pub(crate) from: Vec<PathBuf>,
}

/// A host, and how its clock was read.
#[derive(Debug, Clone)]
pub(crate) struct Surveyed {
    pub(crate) host: Host,
    /// How far its clock is ahead of this machine's, and how exact that is, both in seconds; `None` for a host that was
    /// written down.
    pub(crate) clock_ahead: Option<(f64, f64)>,
}

/// The hosts, in the order in which they are named.
pub(crate) fn survey(args: &SurveyArgs) -> Result<Vec<Surveyed>, Error> {
    if args.from.is_empty() {
        let host = topology::live(&Env::from_process())?;
        return Ok(vec![written(host)]);
    }
    let mut hosts = Vec::new();
    for path in &args.from {
        hosts.extend(read(path)?.into_iter().map(written));
    }
    Ok(hosts)
}

fn written(host: Host) -> Surveyed {
    Surveyed {
        host,
        clock_ahead: None,
    }
}

/// The hosts that a file or folder describes.
fn read(path: &Path) -> Result<Vec<Host>, Error> {
    if path.is_dir() {
        return Ok(vec![topology::recorded(path)?]);
    }
    let reading = Error::system(format!("reading {}", path.display()));
    let text = std::fs::read_to_string(path).map_err(reading)?;
    hosts(&text).map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
}

/// One host, or a list of hosts.
fn hosts(text: &str) -> Result<Vec<Host>, topology::Error> {
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
    use spark_ccl_topology::testing;

    use super::*;

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
        let args = SurveyArgs {
            from: vec![both, one.clone(), tree],
        };
        let found = survey(&args).unwrap();
        let names: Vec<_> = found.iter().map(|one| one.host.name.as_str()).collect();
        assert_eq!(names, ["spark-1", "spark-2", "spark-1", "spark-1"]);
        std::fs::write(&one, "{}").unwrap();
        let args = SurveyArgs { from: vec![one] };
        let error = survey(&args).unwrap_err();
        assert_eq!(error.exit_code(), 6, "{error}");
        assert!(error.to_string().contains("one.json"), "{error}");
    }
}
