//! Assigns GPUs to ranks.

use serde::{Deserialize, Serialize};
use spark_ccl::{Backend, Communicator};

use crate::cli;
use crate::error::Error;
use crate::ranks::hosts::share;

/// The GPUs that the process of a thread may use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct VisibleGpus {
    /// Their PCI bus ids.
    gpus: Vec<String>,
}

impl VisibleGpus {
    /// The GPUs that this process may use.
    pub(super) fn here() -> Result<Self, Error> {
        let devices = spark_ccl::cuda::devices()?;
        let gpus = devices.into_iter().map(|device| device.bus_id);
        Ok(Self {
            gpus: gpus.collect(),
        })
    }
}

/// Refuses runs in which ranks would share a GPU, unless a test wants that of the engine. The
/// backends also refuse them, but say less. Each thread of `control` has `each` ranks.
pub(super) fn check(
    control: &Communicator,
    each: usize,
    backends: &[Backend],
) -> Result<(), Error> {
    let threads = share(control, &VisibleGpus::here()?)?;
    if backends == [Backend::Engine] && cli::settings()?.share_gpu {
        return Ok(());
    }
    let hosts = (0..threads.len()).map(|thread| Ok(control.peer(thread)?.host));
    let hosts: Vec<String> = hosts.collect::<Result<_, Error>>()?;
    shared(&hosts, &threads, each).map_or(Ok(()), |problem| Err(Error::Usage(problem)))
}

/// Describes which ranks would share a GPU, if any. The ranks of a host use the GPUs that they see
/// in turn.
fn shared(hosts: &[String], threads: &[VisibleGpus], each: usize) -> Option<String> {
    let mut taken: Vec<(&str, &str, usize)> = Vec::new();
    for (thread, (host, visible)) in hosts.iter().zip(threads).enumerate() {
        for rank in thread * each..(thread + 1) * each {
            let before = taken.iter().filter(|(other, ..)| other == host).count();
            let gpu = visible.gpus.get(before % visible.gpus.len().max(1))?;
            let same = |(other, place, _): &&(&str, &str, usize)| other == host && place == gpu;
            if let Some((.., other)) = taken.iter().find(same) {
                return Some(format!(
                    "ranks {other} and {rank} would share GPU {gpu} of {host}, and each needs its own: {} \
                     visible there; lower -g, -t, --procs, or the number of processes",
                    match visible.gpus.len() {
                        1 => "1 GPU is".to_owned(),
                        count => format!("{count} GPUs are"),
                    }
                ));
            }
            taken.push((host, gpu, rank));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(hosts: &[&str], gpus: &[&[&str]], each: usize) -> Option<String> {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let threads = gpus.iter().map(|gpus| VisibleGpus {
            gpus: gpus.iter().map(ToString::to_string).collect(),
        });
        shared(&hosts, &threads.collect::<Vec<_>>(), each)
    }

    #[test]
    fn a_gpu_has_one_rank() {
        assert_eq!(problem(&["x"], &[&["a", "b"]], 2), None);
        assert_eq!(problem(&["x", "x"], &[&["a", "b"], &["a", "b"]], 1), None);
        // The launcher has given each process its own GPU.
        assert_eq!(problem(&["x", "x"], &[&["a"], &["b"]], 1), None);
        assert_eq!(problem(&["x", "y"], &[&["a"], &["a"]], 1), None);

        let text = problem(&["x"], &[&["a", "b"]], 3).unwrap();
        assert!(
            text.contains("ranks 0 and 2 would share GPU a of x"),
            "{text}"
        );
        assert!(text.contains("2 GPUs are"), "{text}");
        let text = problem(&["x", "x"], &[&["a"], &["a"]], 1).unwrap();
        assert!(text.contains("1 GPU is"), "{text}");
    }
}
