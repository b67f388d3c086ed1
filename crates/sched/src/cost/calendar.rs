//! The busy times of a resource that serves one request at a time.

use std::collections::VecDeque;

/// The most busy intervals that are stored. Nothing is served before the intervals that were
/// dropped.
const REMEMBERED: usize = 512;

/// A port or a processor. Requests may come in any order of time: each gets the first gap that is
/// long enough.
#[derive(Debug, Clone, Default)]
pub(super) struct Calendar {
    /// Begin and end of each interval, in order and disjoint.
    busy: VecDeque<(f64, f64)>,
    /// The end of the last interval that was dropped.
    closed: f64,
}

impl Calendar {
    /// Reserves `duration` from `earliest` or later; returns the beginning.
    pub(super) fn book(&mut self, earliest: f64, long: f64) -> f64 {
        let mut begin = earliest.max(self.closed);
        let mut place = self.busy.partition_point(|(_, end)| *end <= begin);
        while let Some((next, end)) = self.busy.get(place)
            && *next < begin + long
        {
            begin = *end;
            place += 1;
        }
        if long > 0.0 {
            self.insert(place, begin, begin + long);
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
        if self.busy.len() > REMEMBERED
            && let Some((_, end)) = self.busy.pop_front()
        {
            self.closed = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(calendar: &mut Calendar, earliest: f64, long: f64, begin: f64) {
        let booked = calendar.book(earliest, long);
        assert!((booked - begin).abs() < 1e-9, "{booked} for {begin}");
    }

    #[test]
    fn gaps_are_filled_when_they_are_long_enough() {
        let mut calendar = Calendar::default();
        books(&mut calendar, 10.0, 5.0, 10.0);
        books(&mut calendar, 30.0, 5.0, 30.0);
        books(&mut calendar, 12.0, 10.0, 15.0);
        books(&mut calendar, 0.0, 10.0, 0.0);
        // Only 25 to 30 is free before the end.
        books(&mut calendar, 0.0, 6.0, 35.0);
        books(&mut calendar, 0.0, 5.0, 25.0);
        assert_eq!(calendar.busy, [(0.0, 41.0)]);
    }

    #[test]
    fn what_is_forgotten_stays_closed() {
        let mut calendar = Calendar::default();
        for turn in 0..2 * REMEMBERED {
            calendar.book(turn as f64, 0.5);
        }
        assert_eq!(calendar.busy.len(), REMEMBERED);
        books(&mut calendar, 0.0, 0.5, REMEMBERED as f64 - 0.5);
    }
}
