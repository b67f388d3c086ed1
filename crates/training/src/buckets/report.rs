//! The report that each rank gives the others at the end of a step: its number, the gradients that
//! it lacks, and one that is not finite.

use spark_ccl::Communicator;

use crate::agreement::{Complaint, outliers};
use crate::error::Error;
use crate::model::Model;

/// Words before those of the gradients that are there.
const HEAD: usize = 3;

/// A tensor of which some ranks had no gradient in a step. Theirs counted as zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absent {
    /// Its number in the model.
    pub tensor: usize,
    /// Its name.
    pub name: String,
    /// The ranks without a gradient, in order.
    pub ranks: Vec<usize>,
}

/// A number that is not finite, in a gradient of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotFinite {
    pub(super) tensor: usize,
    pub(super) element: usize,
}

/// A rank's report as words; those of all ranks have one length.
pub(super) fn encode(
    step: u64,
    not_finite: Option<NotFinite>,
    is_filled: impl ExactSizeIterator<Item = bool>,
) -> Vec<u64> {
    let (tensor, element) = not_finite.map_or((0, 0), |it| (it.tensor as u64 + 1, it.element));
    let mut words = vec![step, tensor, element as u64];
    words.resize(HEAD + is_filled.len().div_ceil(64), 0);
    for (tensor, is_filled) in is_filled.enumerate() {
        words[HEAD + tensor / 64] |= u64::from(is_filled) << (tensor % 64);
    }
    words
}

/// The reports of all ranks.
pub(super) struct Reports<'a> {
    model: &'a Model,
    words: &'a [u64],
    size: usize,
}

impl<'a> Reports<'a> {
    pub(super) fn new(model: &'a Model, words: &'a [u64], size: usize) -> Self {
        Self { model, words, size }
    }

    fn by_rank(&self) -> impl Iterator<Item = &'a [u64]> {
        self.words.chunks(self.words.len() / self.size)
    }

    /// Whether all ranks are in one step; else the first that is not, as an error.
    pub(super) fn check_steps(&self, comm: &Communicator) -> Result<(), Error> {
        let steps: Vec<_> = self.by_rank().map(|report| report[0]).collect();
        let Some(rank) = outliers(&steps).next() else {
            return Ok(());
        };
        let usual = steps.iter().find(|it| **it != steps[rank]).unwrap_or(&0);
        let problem = format!(
            "ends step {}, but expected {usual}: it has skipped or repeated \
                               steps",
            steps[rank]
        );
        Err(Error::Step(Complaint::new(problem).culprit(comm, rank)?))
    }

    /// Whether all gradients are finite; else the first that is not, as an error.
    pub(super) fn check_finite(&self, comm: &Communicator) -> Result<(), Error> {
        let mut reports = self.by_rank().enumerate();
        let Some((rank, report)) = reports.find(|(_, report)| report[1] != 0) else {
            return Ok(());
        };
        let info = &self.model.tensors()[report[1] as usize - 1];
        let problem = format!(
            "element {} of its gradient is infinite or NaN; no rank has used \
                               the gradients of this step",
            report[2]
        );
        let complaint = Complaint::of(&info.name, problem);
        Err(Error::NotFinite(complaint.culprit(comm, rank)?))
    }

    /// The gradients that some ranks lack.
    pub(super) fn absent(&self) -> Vec<Absent> {
        let tensors = self.model.tensors().iter().enumerate();
        let absent = tensors.filter_map(|(tensor, info)| {
            let lacks = |report: &[u64]| report[HEAD + tensor / 64] >> (tensor % 64) & 1 == 0;
            let reports = self.by_rank().enumerate();
            let ranks = reports.filter_map(|(rank, report)| lacks(report).then_some(rank));
            let ranks: Vec<_> = ranks.collect();
            (!ranks.is_empty()).then(|| Absent {
                tensor,
                name: info.name.clone(),
                ranks,
            })
        });
        absent.collect()
    }
}
