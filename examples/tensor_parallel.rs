//! Two linear layers that are divided among the ranks, as in tensor-parallel transformers: the
//! first by columns, the second by rows. So each rank goes from one to the other by itself, and one
//! `all_reduce` gives all the output.
//!
//! By itself it runs four ranks as threads: `cargo run --example tensor_parallel`. Under a launcher
//! it takes the ranks that the launcher made.

use std::ops::Range;

use spark_ccl::{Communicator, Error, RedOp, bf16};

const TOKENS: usize = 16;
const INPUTS: usize = 8;
const HIDDEN: usize = 32;
const OUTPUTS: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if spark_ccl::launcher()?.is_some() {
        return Ok(rank(&Communicator::from_env()?)?);
    }
    let ranks = Communicator::local(4)?;
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|comm| std::thread::spawn(move || rank(&comm)))
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a rank panicked")??;
    }
    Ok(())
}

fn rank(comm: &Communicator) -> Result<(), Error> {
    // A real program loads its part only.
    let (first, second) = (
        Linear::new(INPUTS, HIDDEN, 1),
        Linear::new(HIDDEN, OUTPUTS, 2),
    );
    let input = whole_numbers(TOKENS * INPUTS, 3);

    let own = share(HIDDEN, comm);
    let hidden = first.columns(own.clone()).forward(&input);
    // A sum over some of the hidden values; the others' are on the other ranks.
    let mut output = second.rows(own.clone()).forward(&activated(hidden));
    comm.all_reduce_in_place(&mut output, RedOp::Sum).run()?;

    let alone = second.forward(&activated(first.forward(&input)));
    assert_eq!(output, alone);
    println!(
        "rank {} of {} has {} of {HIDDEN} hidden values, and the output of one rank",
        comm.rank(),
        comm.size(),
        own.len()
    );
    comm.finalize()
}

/// The part of `len` that this rank has.
fn share(len: usize, comm: &Communicator) -> Range<usize> {
    len * comm.rank() / comm.size()..len * (comm.rank() + 1) / comm.size()
}

/// A matrix of weights, row by row: a row for each input, a column for each output.
struct Linear {
    weights: Vec<bf16>,
    columns: usize,
}

impl Linear {
    fn new(rows: usize, columns: usize, seed: usize) -> Self {
        let weights = whole_numbers(rows * columns, seed);
        Self { weights, columns }
    }

    fn rows(&self, range: Range<usize>) -> Self {
        let weights = &self.weights[range.start * self.columns..range.end * self.columns];
        Self {
            weights: weights.to_vec(),
            columns: self.columns,
        }
    }

    fn columns(&self, range: Range<usize>) -> Self {
        let rows = self.weights.chunks(self.columns);
        Self {
            weights: rows.flat_map(|row| row[range.clone()].to_vec()).collect(),
            columns: range.len(),
        }
    }

    /// The product for each token, accumulated in `f32`.
    fn forward(&self, tokens: &[bf16]) -> Vec<bf16> {
        let rows = self.weights.len() / self.columns;
        let mut output = Vec::new();
        for token in tokens.chunks(rows) {
            for column in 0..self.columns {
                let weights = self.weights[column..].iter().step_by(self.columns);
                let products = token
                    .iter()
                    .zip(weights)
                    .map(|(x, w)| x.to_f32() * w.to_f32());
                output.push(bf16::from_f32(products.sum()));
            }
        }
        output
    }
}

fn activated(mut values: Vec<bf16>) -> Vec<bf16> {
    for value in &mut values {
        *value = value.max(bf16::ZERO);
    }
    values
}

/// -1, 0 and 1. All sums here are whole numbers up to 256, which bf16 has exactly: so the order of
/// a sum does not matter.
fn whole_numbers(len: usize, seed: usize) -> Vec<bf16> {
    let number = |i: usize| (i * i + seed * i / 3 + i / 7) % 3;
    (0..len)
        .map(|i| bf16::from_f32(number(i) as f32 - 1.0))
        .collect()
}
