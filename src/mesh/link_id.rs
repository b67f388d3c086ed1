//! Names of links, each a peer and a lane, and the numbers by which the session knows a link's
//! sockets.

use spark_ccl_sched::Rank;

/// Lanes of collectives; the next one carries point-to-point messages, and the last one slots.
const COLLECTIVE_LANES: usize = 2;
/// The lane of point-to-point messages.
pub(crate) const POINT_TO_POINT_LANE: usize = COLLECTIVE_LANES;
/// The lane of slots. The engine does not use its link, but gives it away.
pub(crate) const SLOTS_LANE: usize = POINT_TO_POINT_LANE + 1;
/// The number of links between two ranks.
pub(crate) const LANES: usize = SLOTS_LANE + 1;

/// A peer and a lane: the name of a link.
pub(crate) type LinkId = (Rank, usize);

/// The session's number for a socket of a lane, among all sockets of the link's kind and peer.
pub(super) fn stream_number(lane: usize, socket: u32) -> u32 {
    socket * LANES as u32 + lane as u32
}

/// The lane and the socket of a [`stream_number`].
pub(super) fn lane_and_socket(number: u32) -> (usize, usize) {
    (number as usize % LANES, number as usize / LANES)
}

/// The index of a link id among all.
#[inline]
pub(crate) fn index((peer, lane): LinkId) -> usize {
    peer as usize * LANES + lane
}
