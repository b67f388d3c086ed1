//! How ranks tell each other what is wrong, so that all return the same error. Knows no models and
//! no tensors.

use spark_ccl::Communicator;

use crate::error::{Culprit, Error};

/// A rank's own part of a call, or its complaint about itself.
pub(crate) type Outcome<T> = Result<T, Complaint>;

/// A problem that a rank has found with itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint {
    tensor: Option<String>,
    problem: String,
}

/// The most bytes of a rank's text that others read.
const MOST: usize = 1 << 26;

impl Complaint {
    /// About a tensor.
    pub(crate) fn of(tensor: &str, problem: String) -> Self {
        Self {
            tensor: Some(tensor.to_owned()),
            problem,
        }
    }

    /// About no tensor.
    pub(crate) fn new(problem: String) -> Self {
        Self {
            tensor: None,
            problem,
        }
    }

    /// The same complaint, with the place that it is about before it.
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.problem = format!("{place}: it {}", self.problem);
        self
    }

    /// The complaint as a rank's error, with the rank's host and process.
    pub(crate) fn culprit(self, comm: &Communicator, rank: usize) -> Result<Culprit, Error> {
        let peer = comm.peer(rank)?;
        Ok(Culprit {
            rank,
            host: peer.host,
            pid: peer.pid,
            tensor: self.tensor,
            problem: self.problem,
        })
    }
}

impl From<Error> for Complaint {
    fn from(error: Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Returns this rank's own result, or on all ranks the first rank's complaint as an error.
/// Collective, so no rank waits for one that could not do its part.
pub(crate) fn all<T>(
    comm: &Communicator,
    outcome: Outcome<T>,
    kind: impl FnOnce(Culprit) -> Error,
) -> Result<T, Error> {
    let (done, complaint) = match outcome {
        Ok(done) => (Some(done), None),
        Err(complaint) => (None, Some(complaint)),
    };
    check(comm, complaint, kind)?;
    done.ok_or_else(|| Error::Invalid {
        what: "an agreement",
        problem: "the ranks do not agree whether one has failed".to_owned(),
    })
}

/// Returns the first rank's complaint as an error on all ranks, if a rank has one. Collective.
pub(crate) fn check(
    comm: &Communicator,
    own: Option<Complaint>,
    kind: impl FnOnce(Culprit) -> Error,
) -> Result<(), Error> {
    let mut complains = vec![0_u8; comm.size()];
    let complains_here = u8::from(own.is_some());
    let call = comm.all_gather(&complains_here, &mut complains);
    call.by_any_path().named("agreement").run()?;
    let Some(first) = complains.iter().position(|&it| it != 0) else {
        return Ok(());
    };
    let own = own.unwrap_or_else(|| Complaint::new(String::new()));
    let tensor = own.tensor.as_deref().unwrap_or_default();
    let text = tell(comm, first, format!("{tensor}\0{}", own.problem).as_bytes())?;
    let text = String::from_utf8_lossy(&text);
    let (tensor, problem) = text.split_once('\0').unwrap_or(("", &text));
    let complaint = Complaint {
        tensor: (!tensor.is_empty()).then(|| tensor.to_owned()),
        problem: problem.to_owned(),
    };
    Err(kind(complaint.culprit(comm, first)?))
}

/// The root's bytes, on all ranks. Collective.
pub(crate) fn tell(comm: &Communicator, root: usize, own: &[u8]) -> Result<Vec<u8>, Error> {
    let mut len = [own.len().min(MOST) as u64];
    let call = comm.broadcast_in_place(&mut len, root);
    call.by_any_path().named("length of a text").run()?;
    let mut bytes = own.to_owned();
    bytes.resize(len[0] as usize, 0);
    let call = comm.broadcast_in_place(&mut bytes, root);
    call.by_any_path().named("text").run()?;
    Ok(bytes)
}

/// The ranks whose values are not the most frequent one; of two that are equally frequent, the one
/// of the lower rank counts.
pub(crate) fn outliers<T: PartialEq>(values: &[T]) -> impl Iterator<Item = usize> {
    let frequency = |it: &T| values.iter().filter(|other| *other == it).count();
    let most = values.iter().map(frequency).max().unwrap_or(0);
    let usual = values.iter().find(|it| frequency(it) == most);
    let others = values.iter().enumerate();
    others.filter_map(move |(rank, it)| (Some(it) != usual).then_some(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_value_is_right() {
        let of = |values: &[u8]| outliers(values).collect::<Vec<_>>();
        assert_eq!(of(&[3, 3, 3]), [0; 0]);
        assert_eq!(of(&[1, 3, 3]), [0]);
        assert_eq!(of(&[1, 3]), [1]);
        assert_eq!(of(&[1, 3, 3, 1, 2]), [1, 2, 4]);
        assert_eq!(of(&[]), [0; 0]);
    }
}
