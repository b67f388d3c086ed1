//! Prints what is measured: rank 0 alone, a line at a time or one document at the end.

use std::fmt::Write as _;

use serde::Serialize;
use spark_ccl::Communicator;
use spark_ccl_console::{
    exit, json, print,
    rails::{Measured, MemoryKind, RailEnds},
};

use super::args::PairArgs;
use crate::error::Error;

/// The output of a measurement, on each rank.
pub(crate) struct Output<R> {
    /// `None` on the rank that prints nothing.
    shown: Option<Measured<R>>,
    json: bool,
    text: fn(&R) -> String,
    wrong: u64,
}

impl<R: Serialize> Output<R> {
    /// Prints the rails and the head of the table. Rows are written by `text`.
    pub(crate) fn begin(
        comm: &Communicator,
        args: &PairArgs,
        what: &str,
        rails: Vec<RailEnds>,
        (head, text): (&str, fn(&R) -> String),
    ) -> Result<Self, Error> {
        let is_first = comm.rank() == 0;
        if is_first && !args.json {
            print(&(titles(what, args.memory, &rails) + head))?;
        }
        let measured = || Measured {
            what: what.to_owned(),
            memory: args.memory,
            rails,
            rows: Vec::new(),
        };
        Ok(Self {
            shown: is_first.then(measured),
            json: args.json,
            text,
            wrong: 0,
        })
    }

    /// Counts wrong bytes of both ranks, and prints the row, which only rank 0 makes.
    pub(crate) fn row(&mut self, wrong: u64, row: impl FnOnce() -> R) -> Result<(), Error> {
        self.wrong += wrong;
        let Some(measured) = &mut self.shown else {
            return Ok(());
        };
        let row = row();
        if !self.json {
            print(&(self.text)(&row))?;
        }
        measured.rows.push(row);
        Ok(())
    }

    /// Prints the document; returns the exit code.
    pub(crate) fn end(self) -> Result<u8, Error> {
        if let Some(measured) = self.shown.filter(|_| self.json) {
            print(&json(&measured)?)?;
        }
        Ok(if self.wrong == 0 { 0 } else { exit::WRONG })
    }
}

fn titles(what: &str, memory: MemoryKind, rails: &[RailEnds]) -> String {
    let mut text = format!("# {what}, {}\n", memory.name());
    for (index, rail) in rails.iter().enumerate() {
        let _ = write!(text, "# rail {index}: {}", rail.name());
        if let Some(us) = rail.round_trip_us {
            let _ = write!(text, ", round trip {us:.1} us");
        }
        if let Some(why) = &rail.unbound {
            let _ = write!(
                text,
                ", not bound to them, so routes choose what carries it ({why})"
            );
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_the_memory_and_the_rails() {
        let rails = [RailEnds {
            ends: ["a (10.0.0.1)", "b (10.0.0.2)"].map(str::to_owned),
            unbound: None,
            round_trip_us: Some(12.34),
        }];
        let expected = "# TCP, one way, pinned memory\n# rail 0: a (10.0.0.1) to b (10.0.0.2), round trip 12.3 us\n";
        assert_eq!(titles("TCP, one way", MemoryKind::Pinned, &rails), expected);
        assert_eq!(
            titles("read", MemoryKind::Host, &[]),
            "# read, host memory\n"
        );
    }
}
