//! The ranks that exchange slots in a call.

use spark_ccl_types::{Operation, Side};

use crate::Form;

/// The ranks to which this rank sends in each of two steps, and those from which it receives: a bit
/// each. Its own bit stands for data that stay here. `Exchange` of the kernels uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Route {
    /// The ranks that get this rank's input, and the ranks that get its results.
    pub to: [u32; 2],
    /// The ranks from which this rank gets input, and results.
    pub from: [u32; 2],
    /// The ranks that pass on a share of the buffer; none in the direct form.
    pub sharers: u32,
}

impl Route {
    /// The route of a rank's call; `root` is ignored if the operation has no root.
    ///
    /// ```
    /// use spark_ccl_slots::{Form, Route};
    /// use spark_ccl_types::Operation;
    ///
    /// let route = Route::new(Operation::Gather, Form::Direct, 1, 0, 3);
    /// assert_eq!((route.to, route.from), ([0b001, 0], [0, 0]));
    /// ```
    pub fn new(operation: Operation, form: Form, rank: usize, root: usize, ranks: usize) -> Self {
        match form {
            Form::Direct => Self::direct(operation, rank, root, ranks),
            Form::Shared => Self::shared(operation, rank, root, ranks),
        }
    }

    fn direct(operation: Operation, rank: usize, root: usize, ranks: usize) -> Self {
        let partners = |side| match operation.at_root() {
            Some(only) if only != side => 1 << root,
            Some(_) if rank != root => 0,
            _ => all(ranks),
        };
        Self {
            to: [partners(Side::Input), 0],
            from: [partners(Side::Output), 0],
            sharers: 0,
        }
    }

    /// A root has no share, so each rank sends and gets at most the whole buffer once.
    fn shared(operation: Operation, rank: usize, root: usize, ranks: usize) -> Self {
        let (all, only) = (all(ranks), 1 << root);
        let sharers = match operation.at_root() {
            None => all,
            Some(_) => all & !only,
        };
        let (to, from) = match (operation.at_root(), rank == root) {
            (None, _) => ([all, all], [all, all]),
            (Some(Side::Input), true) => ([sharers, 0], [only, 0]),
            (Some(Side::Input), false) => ([0, sharers], [only, sharers]),
            (Some(Side::Output), true) => ([sharers, 0], [0, sharers]),
            (Some(Side::Output), false) => ([sharers, only], [all, 0]),
        };
        Self { to, from, sharers }
    }
}

fn all(ranks: usize) -> u32 {
    (1 << ranks) - 1
}

/// All operations that have routes.
#[cfg(test)]
pub(crate) const OPERATIONS: [Operation; 8] = [
    Operation::AllReduce,
    Operation::ReduceScatter,
    Operation::AllGather,
    Operation::AllToAll,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::Gather,
    Operation::Scatter,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_sends_the_other_one_gets() {
        for operation in OPERATIONS {
            for form in Form::of(operation) {
                for (ranks, root) in [(3, 0), (4, 2), (8, 7)] {
                    let routes = (0..ranks).map(|rank| {
                        let route = Route::new(operation, *form, rank, root, ranks);
                        assert_eq!(
                            route.sharers.count_ones() as usize,
                            match form {
                                Form::Direct => 0,
                                Form::Shared => form.sharers(operation, ranks),
                            }
                        );
                        route
                    });
                    let routes: Vec<_> = routes.collect();
                    for (step, one, other) in (0..2)
                        .flat_map(|step| (0..ranks).map(move |one| (step, one)))
                        .flat_map(|(step, one)| (0..one).map(move |other| (step, one, other)))
                    {
                        for (one, other) in [(one, other), (other, one)] {
                            let sent = routes[one].to[step] >> other & 1;
                            let got = routes[other].from[step] >> one & 1;
                            assert_eq!(sent, got, "{operation} {form:?} {one} {other}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_root_without_results_waits_for_nobody() {
        use Operation::{Broadcast, Scatter};
        for operation in [Broadcast, Scatter] {
            for &form in Form::of(operation) {
                let route = Route::new(operation, form, 1, 1, 3);
                assert_eq!(route.from, [0b010, 0], "{operation}");
            }
        }
    }
}
