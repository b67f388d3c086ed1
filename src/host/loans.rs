//! The loans of an operation: memory that its peers read where it lies.

use spark_ccl_sched::Rank;

use super::wires::{Obstacle, Wires};

/// The last loan on each link to a peer.
#[derive(Debug, Default)]
pub(super) struct Loans(Vec<Loan>);

#[derive(Debug, Clone, Copy)]
struct Loan {
    peer: Rank,
    lane: usize,
    number: u64,
}

impl Loans {
    /// Takes note of a loan. Later ones return later, so the last one on each link is enough.
    pub(super) fn note(&mut self, peer: Rank, lane: usize, number: u64) {
        let mut known = self.0.iter_mut();
        match known.find(|loan| loan.peer == peer && loan.lane == lane) {
            Some(loan) => loan.number = number,
            None => self.0.push(Loan { peer, lane, number }),
        }
    }

    /// The obstacle of a peer that has yet to return loans, or no longer can.
    pub(super) fn outstanding(&mut self, wires: &mut Wires) -> Option<Obstacle> {
        while let Some(&Loan { peer, lane, number }) = self.0.last() {
            let tx = match wires.tx(peer, lane) {
                Ok(tx) => tx,
                Err(obstacle) => return Some(obstacle),
            };
            match tx.has_returned(number) {
                Ok(true) => self.0.pop(),
                Ok(false) => return Some(wires.busy(peer, lane)),
                Err(error) => return Some(Obstacle::Link { peer, error }),
            };
        }
        None
    }
}
