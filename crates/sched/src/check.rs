//! Proves that schedules compute the result of their collective. Knows what a collective means;
//! does not know how schedules are made.
//!
//! All ranks' schedules run in lock-step over links of limited size, on memory whose elements
//! record their origin. The checker finds deadlocks, messages whose two ends disagree, lost and
//! duplicate contributions, and results whose order of reduction differs between ranks. It finds
//! contributions that are not read as input (which an executor would not scale) or scaled more than
//! once, writes outside of a rank's own memory, and races in registered memory.

mod goal;
mod memory;
mod model;
mod order;
mod value;

pub use goal::{Goal, Layout, Want};
use model::Checker;
use spark_ccl_types::{Algorithm, Operation};
pub use value::{Contributions, Sums, Value};

use crate::defect::Defect;
use crate::lockstep::{self, Totals, Window};
use crate::schedule::{Schedule, schedule};
use crate::shape::{Shape, Unsupported};
use crate::step::Rank;
use crate::steps::Steps;

/// A collective of a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The collective.
    pub operation: Operation,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether the buffers share memory.
    pub in_place: bool,
    /// The number of ranks.
    pub size: u32,
    /// The number of elements, as in [`Shape::count`].
    pub count: u64,
    /// The root, if there is one.
    pub root: Rank,
    /// As in [`Shape::chunk`]; links hold twice as much.
    pub chunk: u64,
    /// The elements of a message.
    pub slice: u64,
}

impl Case {
    /// The schedules of all ranks.
    ///
    /// # Errors
    ///
    /// The same as for [`schedule`].
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

    /// The shape for `rank`.
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

    /// The window of its links.
    pub fn window(&self) -> Window {
        Window::for_chunk(self.chunk, self.slice)
    }
}

/// Runs `ranks` on elements of type `V`, and compares the whole memory with `goal` at the end.
///
/// # Errors
///
/// The first [`Defect`] found.
pub fn check<V: Value, S: Steps>(
    goal: &impl Goal,
    ranks: &[S],
    window: Window,
) -> Result<Totals, Defect> {
    let mut checker = Checker::<V>::new(goal, ranks);
    let totals = lockstep::run_model(ranks, window, &mut checker)?;
    checker.finish(goal)?;
    Ok(totals)
}
