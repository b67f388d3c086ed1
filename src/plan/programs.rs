//! Remembers the programs of calls that were made before, so that a repeated call is not planned
//! again. Knows signatures; does not know what a program does.

use std::collections::HashMap;

use spark_ccl_types::Signature;

use super::{Planner, Program};
use crate::error::Error;
use crate::task::Task;

/// The most programs that are remembered: more than the different calls of a training step.
const LIMIT: usize = 4096;

/// The programs of a communicator's calls, each made once.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    all: Vec<(Key, Program)>,
    index: HashMap<Key, usize>,
    /// The program that was used last: training loops repeat themselves.
    last: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The words of the signature, without the name, and without the buffers' place in registered
    /// memory.
    words: [u64; 2],
    in_place: bool,
}

impl Programs {
    /// The program of a checked collective; the planner makes it the first time.
    #[inline]
    pub(crate) fn get(&mut self, planner: &Planner, task: &Task) -> Result<&Program, Error> {
        self.find(planner, task)?;
        Ok(self.last())
    }

    /// Has [`last`](Self::last) return the program of a checked collective.
    #[inline]
    pub(crate) fn find(&mut self, planner: &Planner, task: &Task) -> Result<(), Error> {
        let key = Key {
            words: Signature {
                name: 0,
                place: u64::from(task.signature.place != 0),
                ..task.signature
            }
            .words(),
            in_place: task.in_place,
        };
        if self.all.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = self.place(key, planner, task)?;
        }
        Ok(())
    }

    /// The program that was found last.
    #[inline]
    pub(crate) fn last(&self) -> &Program {
        &self.all[self.last].1
    }

    fn place(&mut self, key: Key, planner: &Planner, task: &Task) -> Result<usize, Error> {
        if let Some(&place) = self.index.get(&key) {
            return Ok(place);
        }
        let program = planner.program(task)?;
        if self.all.len() >= LIMIT {
            self.all.clear();
            self.index.clear();
        }
        self.all.push((key, program));
        self.index.insert(key, self.all.len() - 1);
        Ok(self.all.len() - 1)
    }
}
