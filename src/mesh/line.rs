//! How links are told apart.

use spark_ccl_sched::Rank;

/// Channels that collectives use; the next one carries point-to-point messages.
const COLLECTIVE_CHANNELS: usize = 2;
/// The channel of point-to-point messages.
pub(crate) const POINT_TO_POINT: usize = COLLECTIVE_CHANNELS;
/// Channels of every link.
pub(crate) const CHANNELS: usize = COLLECTIVE_CHANNELS + 1;

/// A peer, and a channel to it.
pub(crate) type Line = (Rank, usize);

/// The number of a line among all.
#[inline]
pub(crate) fn index((peer, lane): Line) -> usize {
    peer as usize * CHANNELS + lane
}
