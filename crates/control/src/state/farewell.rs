//! Leaving the world in an orderly way, so that the other ranks do not take this one for dead.
//!
//! On a stream that can be reopened, the neighbour confirms the goodbye. The stream stays open
//! until then, and is even reopened for the goodbye if it is broken. Once one neighbour that stays
//! has the goodbye, it also has everything that this rank has forwarded, and floods it to all
//! others. The remaining neighbours then get a short time only.

use std::time::{Duration, Instant};

use super::ControlState;
use crate::neighbour::Neighbour;
use crate::wire::News;

/// How long a farewell may take if a neighbour does not read.
const FAREWELL: Duration = Duration::from_millis(300);
/// The time that it may take if streams are broken and no neighbour has the goodbye yet.
const FAREWELL_UNHEARD: Duration = Duration::from_secs(2);

/// The progress of this rank's farewell.
pub(crate) struct Farewell {
    began: Instant,
    /// Whether a stream is broken, or was during the farewell.
    was_broken: bool,
    /// Whether a neighbour that stays has the goodbye.
    is_heard: bool,
}

impl ControlState {
    /// Starts to leave the world.
    pub(crate) fn say_goodbye(&mut self, now: Instant) -> Farewell {
        self.neighbours
            .iter_mut()
            .for_each(|neighbour| neighbour.outbound.drop_notices());
        self.originate(News::Goodbye);
        self.board = None;
        Farewell {
            began: now,
            was_broken: false,
            is_heard: false,
        }
    }

    /// Closes the streams on which everything has been delivered. Returns for how much longer to
    /// wait for the others; `None` if the farewell is over.
    pub(crate) fn continue_farewell(
        &mut self,
        farewell: &mut Farewell,
        now: Instant,
    ) -> Option<Duration> {
        for neighbour in self
            .neighbours
            .iter_mut()
            .filter(|neighbour| !neighbour.is_done_writing())
        {
            let has_left = self.departures.contains_key(&neighbour.peer);
            if has_left || neighbour.has_delivered_all() {
                farewell.is_heard |= !has_left;
                neighbour.close();
            }
        }
        farewell.was_broken |= self.neighbours.iter().any(Neighbour::is_broken);
        let limit = if farewell.was_broken && !farewell.is_heard {
            FAREWELL_UNHEARD
        } else {
            FAREWELL
        };
        // A stream that is closed here is still read until the neighbour closes it. Otherwise the
        // kernel may reset the connection, and what was written may be lost.
        let waits = self
            .neighbours
            .iter()
            .any(|neighbour| neighbour.is_reading || !neighbour.is_done_writing());
        let left = limit.saturating_sub(now.saturating_duration_since(farewell.began));
        (waits && !left.is_zero()).then_some(left)
    }

    /// Reads from a neighbour while this rank leaves. The end of its stream is not reported as a
    /// death.
    pub(crate) fn serve_leaving(&mut self, index: usize, now: Instant) {
        let (frames, end) = self.neighbours[index].read(self.names.len() as u32, now);
        self.handle_frames(index, frames, now);
        self.neighbours[index].flush();
        if let Some(end) = end
            && !self.start_repair(index, &end, now)
        {
            self.neighbours[index].is_reading = false;
            self.neighbours[index].close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use socket2::Socket;
    use spark_ccl_fork::Unshared;

    use super::*;
    use crate::neighbour::StreamEnding;
    use crate::wire::{self, Frame, Heartbeat};

    /// A rank with a neighbour over TCP, and the neighbour's end of the connection.
    fn rank(now: Instant) -> (ControlState, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (neighbour, _) = listener.accept().unwrap();
        let known = Neighbour::new(1, Unshared::new(Socket::from(stream)), true, now).unwrap();
        let names: Arc<[Arc<str>]> = ["rank 0".into(), "rank 1".into()].into();
        (ControlState::new(0, names, vec![known], None), neighbour)
    }

    #[test]
    fn a_neighbour_that_says_nothing_is_waited_for_a_little() {
        let now = Instant::now();
        let (mut state, _neighbour) = rank(now);
        let mut farewell = state.say_goodbye(now);
        assert_eq!(state.continue_farewell(&mut farewell, now), Some(FAREWELL));
        let half = FAREWELL / 2;
        assert_eq!(
            state.continue_farewell(&mut farewell, now + half),
            Some(half)
        );
        assert!(
            !state.neighbours[0].is_done_writing(),
            "the goodbye may have to be said again"
        );
        assert_eq!(state.continue_farewell(&mut farewell, now + FAREWELL), None);
    }

    #[test]
    fn a_neighbour_that_cannot_be_told_is_tried_for_longer_and_not_for_ever() {
        let now = Instant::now();
        let (mut state, _neighbour) = rank(now);
        assert!(state.start_repair(0, &StreamEnding::Closed, now));
        let mut farewell = state.say_goodbye(now);
        let left = state.continue_farewell(&mut farewell, now + FAREWELL);
        assert_eq!(left, Some(FAREWELL_UNHEARD.saturating_sub(FAREWELL)));
        assert_eq!(
            state.continue_farewell(&mut farewell, now + FAREWELL_UNHEARD),
            None
        );
    }

    #[test]
    fn a_stream_is_closed_once_the_neighbour_has_the_goodbye() {
        let now = Instant::now();
        let (mut state, neighbour) = rank(now);
        let mut farewell = state.say_goodbye(now);
        let heartbeat = Heartbeat {
            received: 1,
            hears: Vec::new(),
        };
        let heartbeat = wire::encode(&Frame::Heartbeat(heartbeat));
        let mut frames = Vec::new();
        state.neighbours[0]
            .take(&heartbeat, 2, now, &mut frames)
            .unwrap();
        assert!(state.continue_farewell(&mut farewell, now).is_some());
        assert!(state.neighbours[0].is_done_writing() && farewell.is_heard);
        drop(neighbour);
        while state.neighbours[0].is_reading {
            state.serve_leaving(0, now);
        }
        assert_eq!(state.continue_farewell(&mut farewell, now), None);
    }
}
