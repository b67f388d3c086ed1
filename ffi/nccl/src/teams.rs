//! Teams: ranks at equal distances. Without a device API, no rank reaches another rank's memory by
//! load and store, so each is alone in its team for that.

use std::ffi::c_int;

use spark_ccl_abi::failure::{Failure, guarded};

use crate::comm::find;
use crate::status::Status;
use crate::types::{ncclCftTeamMode_t, ncclComm_t, ncclTeam_t};

const ALONE: ncclTeam_t = ncclTeam_t {
    nRanks: 1,
    rank: 0,
    stride: 1,
};

/// `ncclTeamWorld`, and `ncclTeamRail`: all ranks.
pub(crate) fn world(comm: ncclComm_t) -> ncclTeam_t {
    of(comm, |size, rank| ncclTeam_t {
        nRanks: size,
        rank,
        stride: 1,
    })
}

/// `ncclTeamLsa`, and `ncclTeamCftMultimem`: this rank.
pub(crate) fn alone(comm: ncclComm_t) -> ncclTeam_t {
    of(comm, |_, _| ALONE)
}

/// `ncclTeamCft`, in any mode: this rank.
pub(crate) fn alone_in(comm: ncclComm_t, _mode: ncclCftTeamMode_t) -> ncclTeam_t {
    alone(comm)
}

/// `ncclTeamRankToWorld`; -1 for an unknown communicator, or a number that the team lacks.
pub(crate) fn rank_in_world(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    let world = world(comm);
    if world.nRanks == 0 {
        return -1;
    }
    from(world.rank, team, rank)
}

/// `ncclTeamRankToLsa`; -1 for an unknown communicator, or a number that the team lacks.
pub(crate) fn rank_alone(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    if alone(comm).nRanks == 0 {
        return -1;
    }
    from(0, team, rank)
}

/// The number in the communicator of a rank of a team, if this rank's number is `own`.
fn from(own: c_int, team: ncclTeam_t, rank: c_int) -> c_int {
    let ranks = rank.checked_sub(team.rank);
    let distance = ranks.and_then(|ranks| ranks.checked_mul(team.stride));
    distance
        .and_then(|distance| own.checked_add(distance))
        .unwrap_or(-1)
}

/// A team of a communicator; one without ranks if the communicator is unknown.
fn of(comm: ncclComm_t, team: impl FnOnce(c_int, c_int) -> ncclTeam_t) -> ncclTeam_t {
    let mut found = None;
    let _: Status = guarded(|| {
        let comm = find(comm)?;
        let [size, rank] = [comm.inner.size(), comm.inner.rank()]
            .map(|number| c_int::try_from(number).unwrap_or(c_int::MAX));
        found = Some(team(size, rank));
        Ok::<_, Failure>(())
    });
    found.unwrap_or(ncclTeam_t {
        nRanks: 0,
        rank: 0,
        stride: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_below_0() {
        let team = ncclTeam_t {
            nRanks: 2,
            rank: 1,
            stride: 3,
        };
        assert_eq!((from(4, team, 0), from(4, team, 2)), (1, 7));
        for rank in [c_int::MIN, c_int::MAX, c_int::MAX / 2] {
            assert_eq!(from(4, team, rank), -1, "{rank}");
        }
    }
}
