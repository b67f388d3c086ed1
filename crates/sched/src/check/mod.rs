//! Proves that schedules do what their collective says.
//!
//! All ranks' schedules run in lock-step over links of limited size, on memory in which each
//! element remembers what it is made of. Found are: deadlocks, messages whose ends disagree, lost
//! and doubled contributions, results that differ between ranks in the order of reduction,
//! contributions that are read other than as input (which an executor would not scale), writes
//! outside of what a rank owns, and races in registered memory.

mod goal;
mod memory;
mod model;
mod order;
mod value;

pub use goal::{Goal, Layout, Want};
pub use value::{Contributions, Sums, Value};

use spark_ccl_types::Operation;

use crate::fault::Fault;
use crate::lockstep::{self, Totals, Window};
use crate::schedule::{Schedule, schedule};
use crate::shape::{Algorithm, Shape, Unsupported};
use crate::step::Rank;
use crate::steps::Steps;
use model::Checker;

/// A collective among some ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The collective.
    pub operation: Operation,
    /// How it is done.
    pub algorithm: Algorithm,
    /// Whether the buffers share memory.
    pub in_place: bool,
    /// Number of ranks.
    pub size: u32,
    /// Elements, see [`Shape::count`].
    pub count: u64,
    /// The root, where there is one.
    pub root: Rank,
    /// See [`Shape::chunk`]; links hold twice as much.
    pub chunk: u64,
    /// Elements per message.
    pub slice: u64,
}

impl Case {
    /// The schedules of all ranks.
    ///
    /// # Errors
    ///
    /// Those of [`schedule`].
    pub fn schedules(&self) -> Result<Vec<Schedule>, Unsupported> {
        (0..self.size)
            .map(|rank| {
                schedule(
                    self.operation,
                    self.algorithm,
                    self.in_place,
                    self.shape(rank),
                )
            })
            .collect()
    }

    /// What `rank` sees of it.
    pub fn shape(&self, rank: Rank) -> Shape {
        Shape {
            rank,
            size: self.size,
            count: self.count,
            root: self.root,
            chunk: self.chunk,
            hosts: None,
        }
    }

    /// What its links hold.
    pub fn window(&self) -> Window {
        Window::for_chunk(self.chunk, self.slice)
    }
}

/// Runs `ranks` on elements of kind `V`, and compares all that they leave in memory with `goal`.
///
/// # Errors
///
/// The first [`Fault`] found.
pub fn check<V: Value, S: Steps>(
    goal: &impl Goal,
    ranks: &[S],
    window: Window,
) -> Result<Totals, Fault> {
    let mut checker = Checker::<V>::new(goal, ranks);
    let totals = lockstep::run_model(ranks, window, &mut checker)?;
    checker.finish(goal)?;
    Ok(totals)
}
