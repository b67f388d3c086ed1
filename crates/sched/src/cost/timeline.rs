//! The busy times of a resource that serves one request at a time.

use std::collections::VecDeque;

/// The number of busy intervals that are stored. Nothing is reserved before the intervals that were
/// dropped.
const MAX_INTERVALS: usize = 512;

/// A port or a processor. Requests may come in any order of time: each gets the first gap that is
/// long enough.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeline {
    /// Begin and end of each interval, in order and disjoint.
    busy: VecDeque<(f64, f64)>,
    /// The end of the last interval that was dropped.
    dropped_until: f64,
}

impl Timeline {
    /// Reserves `duration` from `earliest` or later; returns the beginning.
    pub(super) fn reserve(&mut self, earliest: f64, duration: f64) -> f64 {
        let mut begin = earliest.max(self.dropped_until);
        let mut place = self.busy.partition_point(|(_, end)| *end <= begin);
        while let Some((next, end)) = self.busy.get(place)
            && *next < begin + duration
        {
            begin = *end;
            place += 1;
        }
        if duration > 0.0 {
            self.insert(place, begin, begin + duration);
        }
        begin
    }

    fn insert(&mut self, place: usize, begin: f64, mut end: f64) {
        if let Some((next, far)) = self.busy.get(place)
            && *next <= end
        {
            end = *far;
            self.busy.remove(place);
        }
        match place
            .checked_sub(1)
            .and_then(|last| self.busy.get_mut(last))
        {
            Some((_, last)) if *last >= begin => *last = end,
            _ => self.busy.insert(place, (begin, end)),
        }
        if self.busy.len() > MAX_INTERVALS
            && let Some((_, end)) = self.busy.pop_front()
        {
            self.dropped_until = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserves(timeline: &mut Timeline, earliest: f64, duration: f64, begin: f64) {
        let reserved = timeline.reserve(earliest, duration);
        assert!((reserved - begin).abs() < 1e-9, "{reserved} for {begin}");
    }

    #[test]
    fn gaps_are_filled_when_they_are_long_enough() {
        let mut timeline = Timeline::default();
        reserves(&mut timeline, 10.0, 5.0, 10.0);
        reserves(&mut timeline, 30.0, 5.0, 30.0);
        reserves(&mut timeline, 12.0, 10.0, 15.0);
        reserves(&mut timeline, 0.0, 10.0, 0.0);
        // Only 25 to 30 is free before the end.
        reserves(&mut timeline, 0.0, 6.0, 35.0);
        reserves(&mut timeline, 0.0, 5.0, 25.0);
        assert_eq!(timeline.busy, [(0.0, 41.0)]);
    }

    #[test]
    fn nothing_is_reserved_before_dropped_intervals() {
        let mut timeline = Timeline::default();
        for turn in 0..2 * MAX_INTERVALS {
            timeline.reserve(turn as f64, 0.5);
        }
        assert_eq!(timeline.busy.len(), MAX_INTERVALS);
        reserves(&mut timeline, 0.0, 0.5, MAX_INTERVALS as f64 - 0.5);
    }
}
