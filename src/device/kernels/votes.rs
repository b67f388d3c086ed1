//! Agreement of ranks on a way when they join: each tells its abilities, and all do the same.

use super::offer::{ELSEWHERE, PACKETS};
use crate::api::communicator::Communicator;
use crate::error::Error;

pub(super) const BACKEND: &str = "SPARK_CCL_BACKEND=engine";

/// Tells all ranks `say` of this rank's result. If all have succeeded, returns the result, and the
/// byte of each rank. Else returns this rank's own error, or one that names the first rank that
/// failed. Collective.
pub(super) fn agree<R>(
    comm: &Communicator,
    own: Result<R, Error>,
    say: impl FnOnce(&R) -> u8,
) -> Result<(R, Vec<u8>), Error> {
    let said = [own.as_ref().map_or(0, say)];
    let mut all = vec![0; comm.size()];
    let told = comm.all_gather(&said, &mut all).internal().run();
    // This rank's own error says more than the news that others have given up meanwhile.
    let own = own?;
    told?;
    match all.iter().position(|&said| said == 0) {
        None => Ok((own, all)),
        Some(rank) => Err(Error::Unsupported {
            what: BACKEND.to_owned(),
            reason: format!(
                "{} cannot use it; its own message says why",
                comm.inner.watch.member(rank as u32)
            ),
        }),
    }
}

/// Returns `own` if it is `Ok` on all ranks; else why it failed here, or on which rank it failed.
/// Collective.
pub(super) fn if_all_have<R>(
    comm: &Communicator,
    own: Result<R, String>,
) -> Result<Result<R, String>, Error> {
    let (own, ways) = agree(
        comm,
        Ok(own),
        |own| {
            if own.is_ok() { PACKETS } else { ELSEWHERE }
        },
    )?;
    let without = ways.iter().position(|&way| way == ELSEWHERE);
    Ok(match (own, without) {
        (Ok(_), Some(rank)) => Err(other_says_why(comm, rank)),
        (own, _) => own,
    })
}

pub(super) fn other_says_why(comm: &Communicator, rank: usize) -> String {
    let other = comm.inner.watch.member(rank as u32);
    format!("{other} has none to offer; it says why")
}
