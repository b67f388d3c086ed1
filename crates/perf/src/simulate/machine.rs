//! The modelled machines.

use std::fmt;

use spark_ccl::Operation;
use spark_ccl_sched::cost::{Fabric, LinkCost, estimate, simulate};
use spark_ccl_sched::{Algorithm, Defect, Shape, Unsupported, schedule};

use super::args::{Path, SimulateArgs, Topology};
use crate::error::Error;

/// The bytes of a message, and half of what a link holds until its receiver takes messages.
const SLICE: u64 = 128 << 10;
const CHUNK: u64 = 1 << 20;
/// The GB/s of a DGX Spark's memory. A reduction moves three bytes per byte, and a copy two.
const SPARK_MEMORY: f64 = 273.0;
const GPU_MEMORY: f64 = 4800.0;

/// The latencies of a message that its receiver fetches: of the announcement, the request, and the
/// data.
const FETCH: f64 = 3.0;

/// A machine with any number of ranks, and the operation that they run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    pub(super) operation: Operation,
    pub(super) fabric: Fabric,
    /// Up to this number of ranks, every message is simulated.
    exact: u32,
}

/// A modelled time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Time {
    pub(super) us: f64,
    /// Whether every message was simulated.
    pub(super) is_exact: bool,
}

/// Writes microseconds, with a mark at those of a closed form.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_exact { ' ' } else { '~' };
        f.pad(&format!("{mark}{:.1}", self.us))
    }
}

impl Machine {
    pub(super) fn new(args: &SimulateArgs, operation: Operation) -> Result<Self, Error> {
        let alpha = positive("--alpha", args.alpha)?;
        let beta = positive("--beta", args.beta)?;
        if args.rails == 0 || args.rails > 8 {
            return Err(Error::usage(format!(
                "--rails {}: a host has 1 to 8 network cards",
                args.rails
            )));
        }
        if args.rails < 8 && args.topology != Topology::Hosts8 {
            return Err(Error::usage(
                "--rails is for --topology hosts8: elsewhere every rank has a port of its own"
                    .into(),
            ));
        }
        let (fetches, copies) = match args.path {
            Path::Safe => (1.0, 2e-3),
            Path::ZeroCopy if args.topology == Topology::Hosts8 => {
                return Err(Error::usage(
                    "--path zero-copy is modelled between hosts: not for --topology hosts8".into(),
                ));
            }
            Path::ZeroCopy => (FETCH, 0.0),
        };
        let memory = positive("--memory", args.memory)?;
        let outer = |usual_alpha: f64, usual_beta: f64, usual_memory: f64| LinkCost {
            latency_us: fetches * alpha.unwrap_or(usual_alpha),
            overhead_us: 0.0,
            wire_us_per_byte: 1e-3 / beta.unwrap_or(usual_beta),
            copy_us_per_byte: copies / memory.unwrap_or(usual_memory),
            reduce_us_per_byte: 3e-3 / memory.unwrap_or(usual_memory),
            slice_bytes: SLICE,
        };
        let across = outer(5.0, 50.0, GPU_MEMORY);
        let fabric = match args.topology {
            Topology::Sparks => Fabric::Switch(outer(5.0, 23.7, SPARK_MEMORY)),
            Topology::SparkRing => Fabric::Cables(outer(5.0, 23.7, SPARK_MEMORY)),
            Topology::Hosts8 => Fabric::Hosts {
                per_host: 8,
                cards: args.rails,
                inside: LinkCost {
                    latency_us: 1.0,
                    wire_us_per_byte: 1e-3 / 337.0,
                    ..across
                },
                across,
            },
        };
        Ok(Self {
            operation,
            fabric,
            exact: args.exact,
        })
    }

    /// The time if the larger buffer of a rank has `bytes` bytes.
    pub(super) fn time(&self, algorithm: Algorithm, ranks: u32, bytes: u64) -> Result<Time, Error> {
        let shape = Shape {
            rank: 0,
            size: ranks,
            count: if self.operation.is_divided() {
                bytes / u64::from(ranks)
            } else {
                bytes
            },
            root: 0,
            chunk: CHUNK,
            hosts: None,
        };
        let is_exact = ranks <= self.exact;
        let us = if is_exact {
            self.simulate_messages(algorithm, shape)
                .map_err(|error| Error::usage(format!("{algorithm} on {ranks} ranks: {error}")))?
        } else {
            estimate(self.operation, algorithm, &shape, 1, &self.fabric)
        };
        Ok(Time { us, is_exact })
    }

    fn simulate_messages(
        &self,
        algorithm: Algorithm,
        shape: Shape,
    ) -> Result<f64, SimulationError> {
        let ranks = (0..).zip(self.fabric.hosts(shape.size));
        let schedules: Result<Vec<_>, Unsupported> = ranks
            .map(|(rank, hosts)| {
                let shape = Shape {
                    rank,
                    hosts: Some(hosts),
                    ..shape
                };
                schedule(self.operation, algorithm, true, shape)
            })
            .collect();
        Ok(simulate(&schedules?, shape.chunk, 1, &self.fabric)?)
    }
}

#[derive(Debug, thiserror::Error)]
enum SimulationError {
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("a defect of the schedule, please report it: {0}")]
    Defect(#[from] Defect),
}

fn positive(flag: &str, value: Option<f64>) -> Result<Option<f64>, Error> {
    match value {
        Some(value) if !(value > 0.0 && value.is_finite()) => Err(Error::usage(format!(
            "{flag} {value}: expected a number above 0"
        ))),
        value => Ok(value),
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = |link: &LinkCost| {
            format!(
                "alpha {} us, beta {:.4} GB/s",
                (link.latency_us * 1e3).round() / 1e3,
                1e-3 / link.wire_us_per_byte
            )
        };
        match &self.fabric {
            Fabric::Switch(port) => write!(f, "one port per rank, {}", link(port)),
            Fabric::Cables(port) => {
                write!(f, "cables to both neighbours, {} for both", link(port))
            }
            Fabric::Hosts {
                per_host,
                cards,
                inside,
                across,
            } => write!(
                f,
                "{per_host} ranks per host, {}; {cards} rails per host, {} each",
                link(inside),
                link(across)
            ),
        }
    }
}
