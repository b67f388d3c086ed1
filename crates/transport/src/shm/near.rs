//! Whether the peer's core shares a cache with this one.
//!
//! Where they share none, a store to a line that the peer has read waits until the peer's cache has
//! given it up: slots are filled 3 to 8 times as fast by stores past the caches. Near cores take up
//! to 51 % longer with these (docs/what-bounds-it.md). What the system says of caches does not
//! decide: threads move, and a virtual machine may be told that all of its processors share one.
//!
//! So the sender times loads of a line that the peer has just written, without the peer's help: on
//! an EPYC they take 30 ns where a cache is shared, and 100 to 200 ns where none is. Nine are timed
//! every 50 ms, before long messages.

use std::time::{Duration, Instant};

use crate::LinkError;

/// A line of a far peer takes longer: twice as long as a near one's, and half as long as a far
/// one's, as far as was measured.
const FAR: Duration = Duration::from_nanos(75);
/// Whatever disturbs a load makes it longer, and a line that another load has fetched already makes
/// it shorter; the median decides.
const SAMPLES: usize = 9;
/// The time between samples for one median and for the next. The first one may be of ranks that the
/// system has yet to move to cores of their own.
const REST: Duration = Duration::from_millis(50);
/// Meanwhile, the clock is read at every so many messages.
const PAUSE: u32 = 16;
/// The time for which a change stands.
const STANDS: Duration = Duration::from_secs(1);
/// A clock that takes longer to read says nothing.
const SLOW_CLOCK: Duration = Duration::from_nanos(100);

/// How far away the peer's core is.
#[derive(Debug, Default)]
pub(super) struct Distance {
    is_far: bool,
    /// When that was changed.
    changed: Option<Instant>,
    /// When the last median was taken.
    measured: Option<Instant>,
    samples: [Duration; SAMPLES],
    taken: usize,
    /// Messages until the clock is read again.
    pause: u32,
    /// The line may have been loaded, unseen by `measure`.
    is_spoilt: bool,
}

impl Distance {
    #[inline]
    pub(super) fn is_far(&self) -> bool {
        self.is_far
    }

    /// To be called when something else loads the line.
    #[inline]
    pub(super) fn spoil(&mut self) {
        self.is_spoilt = true;
    }

    /// To be called before each long message. Now and then, it times `look`, which loads a line of
    /// the peer's and returns whether the peer has written it since the last load.
    #[inline]
    pub(super) fn measure(
        &mut self,
        look: impl FnOnce() -> Result<bool, LinkError>,
    ) -> Result<(), LinkError> {
        // Only there can slots be stored past the caches.
        if cfg!(not(target_arch = "x86_64")) {
            return Ok(());
        }
        if self.pause > 0 {
            self.pause -= 1;
            return Ok(());
        }
        let start = Instant::now();
        if !self.is_due(start) {
            self.pause = PAUSE;
            return Ok(());
        }
        let is_news = look()?;
        let end = Instant::now();
        let clock = end.elapsed();
        let is_spoilt = std::mem::take(&mut self.is_spoilt);
        if is_news && !is_spoilt && clock < SLOW_CLOCK {
            self.note(end, end.duration_since(start).saturating_sub(clock));
        }
        Ok(())
    }

    fn is_due(&self, now: Instant) -> bool {
        (self.measured).is_none_or(|last| now.duration_since(last) >= REST)
    }

    /// Takes a sample. The last of several may change the choice.
    fn note(&mut self, now: Instant, took: Duration) {
        self.samples[self.taken] = took;
        self.taken += 1;
        if self.taken < SAMPLES {
            return;
        }
        self.samples.sort_unstable();
        let median = self.samples[SAMPLES / 2];
        (self.taken, self.measured) = (0, Some(now));
        let may_change = (self.changed).is_none_or(|last| now.duration_since(last) >= STANDS);
        if may_change && self.is_far != (median > FAR) {
            (self.is_far, self.changed) = (median > FAR, Some(now));
            spark_ccl_log::info!(
                "a line of a peer's core takes {median:?}: slots are stored {} the caches",
                if self.is_far { "past" } else { "to" }
            );
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Notes a sample of each length whenever one is due, by a clock that ticks each 10 ms. Returns
    /// the choice after each tick.
    fn choices(nanos: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let (mut distance, start) = (Distance::default(), Instant::now());
        let choice = |(tick, nanos)| {
            let now = start + tick * Duration::from_millis(10);
            if distance.is_due(now) {
                distance.note(now, Duration::from_nanos(nanos));
            }
            distance.is_far()
        };
        (0..).zip(nanos).map(choice).collect()
    }

    #[test]
    fn the_median_of_several_lines_chooses() {
        let near = [30, 30, 30, 30, 30, 500, 500, 500, 500];
        let far = [5, 5, 5, 5, 150, 150, 150, 150, 150];
        assert_eq!(choices(near).last(), Some(&false));
        assert_eq!(choices(far).last(), Some(&true));
        assert!(!choices(far)[..8].contains(&true));
    }

    #[test]
    fn a_change_stands_for_a_second() {
        let changes = |nanos: fn(u64) -> u64| {
            let seen = choices((0..1000).map(nanos));
            let changes = (1..1000).filter(move |&at| seen[at] != seen[at - 1]);
            changes.collect::<Vec<_>>()
        };
        // Medians are taken at ticks 8, 21, 34, ..., 307: of nine samples, with 50 ms between.
        assert_eq!(changes(|tick| if tick < 300 { 150 } else { 30 }), [8, 307]);
        let often = changes(|tick| if tick / 13 % 2 == 0 { 150 } else { 30 });
        assert!((5..=10).contains(&often.len()), "{often:?}");
        assert!(
            often.windows(2).all(|pair| pair[1] - pair[0] >= 100),
            "{often:?}"
        );
    }

    #[test]
    fn only_lines_that_the_peer_has_written_since_count() {
        let mut distance = Distance::default();
        let mut looks = 0;
        let mut measure = |distance: &mut Distance, is_news| {
            distance.measure(|| {
                looks += 1;
                Ok(is_news)
            })
        };
        for _ in 0..3 {
            measure(&mut distance, false).unwrap();
            distance.spoil();
            measure(&mut distance, true).unwrap();
        }
        assert_eq!(distance.taken, 0);
        let error = distance.measure(|| Err(LinkError::Closed));
        assert_eq!(error.is_err(), cfg!(target_arch = "x86_64"));
    }
}
