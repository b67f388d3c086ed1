//! Assigns GPUs to ranks.

use serde::{Deserialize, Serialize};
use spark_ccl::{Backend, Communicator};
use spark_ccl_console::settings;

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

/// The place of a rank.
struct Place<'a> {
    host: &'a str,
    ordinal: usize,
    bus: &'a str,
    /// The number of GPUs that its process may use.
    visible: usize,
}

/// The GPUs of this thread's ranks, by CUDA's numbers. Each thread of `control` has `each` ranks.
///
/// Runs in which ranks would share a GPU are refused, unless a test wants that of the engine. The
/// backends also refuse them, but say less.
pub(super) fn own(
    control: &Communicator,
    each: usize,
    backends: &[Backend],
) -> Result<Vec<usize>, Error> {
    let threads = share(control, &VisibleGpus::here()?)?;
    let hosts = (0..threads.len()).map(|thread| Ok(control.peer(thread)?.host));
    let hosts: Vec<String> = hosts.collect::<Result<_, Error>>()?;
    let places = places(&hosts, &threads, each);
    let is_engine = backends == [Backend::Engine];
    let may_share = is_engine && settings()?.gpu.may_be_shared;
    if !may_share && let Some(problem) = shared(&places) {
        let hint = if is_engine {
            "; in tests, SPARK_CCL_SHARE_GPU=1 allows it"
        } else {
            ""
        };
        return Err(Error::usage(problem + hint));
    }
    let own = places.iter().skip(control.rank() * each).take(each);
    Ok(own.map(|place| place.ordinal).collect())
}

/// The places of all ranks: those of a host use the GPUs that they see in turn.
fn places<'a>(hosts: &'a [String], threads: &'a [VisibleGpus], each: usize) -> Vec<Place<'a>> {
    let mut places: Vec<Place<'_>> = Vec::new();
    for (host, threads) in hosts.iter().zip(threads) {
        let gpus = &threads.gpus;
        for _ in 0..each {
            let before = places.iter().filter(|place| place.host == host).count();
            let ordinal = before % gpus.len().max(1);
            places.push(Place {
                host,
                ordinal,
                bus: gpus.get(ordinal).map_or("", String::as_str),
                visible: gpus.len(),
            });
        }
    }
    places
}

/// Describes which ranks would share a GPU, if any.
fn shared(places: &[Place<'_>]) -> Option<String> {
    places.iter().enumerate().find_map(|(rank, place)| {
        let Place {
            host, bus, visible, ..
        } = place;
        let mut before = places[..rank].iter();
        let other = before.position(|other| other.host == *host && other.bus == *bus)?;
        let visible = match visible {
            1 => "1 GPU is".to_owned(),
            count => format!("{count} GPUs are"),
        };
        Some(format!(
            "ranks {other} and {rank} would share GPU {bus} of {host}, and each needs its own: \
             {visible} visible there; lower -g, -t, --procs, or the number of processes"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(hosts: &[&str], gpus: &[&[&str]], each: usize) -> Option<String> {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let threads = gpus.iter().map(|gpus| VisibleGpus {
            gpus: gpus.iter().map(ToString::to_string).collect(),
        });
        shared(&places(&hosts, &threads.collect::<Vec<_>>(), each))
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
