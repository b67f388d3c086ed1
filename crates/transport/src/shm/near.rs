//! Whether the peer's core shares a cache with this one.
//!
//! Where they share none, a store to a line that the peer has read waits until the peer's cache has
//! given the line up. Stores past the caches then fill slots 3 to 8 times as fast. Near cores take
//! up to 51 % longer with these stores (docs/what-bounds-it.md). The system's own description of
//! caches is no help: threads move, and a virtual machine may be told that all of its processors
//! share one.
//!
//! So the sender times loads of a line that the peer has just written. On EPYCs they take 30 ns
//! where a cache is shared, and 100 to 200 ns where none is. It times nine every 50 ms, before long
//! messages, and the peer does nothing for that. On a Xeon, whose cores all share one cache, they
//! take 50 to 125 ns, and stores past the caches gain nothing: so the limit depends on the
//! processor.

use std::time::{Duration, Instant};

use crate::LinkError;

/// The limit of AMD's processors. The near lines that were measured take half of this at most, and
/// far ones 100 ns and more.
const FAR_OF_AMD: Duration = Duration::from_nanos(75);
/// The same, of others. Of a Xeon's lines, all near, the second shortest of nine takes 125 ns at
/// most. Far ones, such as another socket's, were not measured.
const FAR_OF_OTHERS: Duration = Duration::from_nanos(150);
/// The samples for one choice.
const SAMPLES: usize = 9;
/// How many of them may be shorter than the one that decides. A load is shorter if another one has
/// fetched the line already, and longer if anything disturbs it, which happens more often.
const SHORTER: usize = 1;
/// A line that has waited for longer may have been evicted: even a near one comes from memory then.
const FRESH: Duration = Duration::from_micros(100);
/// The pause after a choice, before the samples for the next one. The first choice may be wrong
/// soon: the system may have yet to move the ranks to cores of their own.
const REST: Duration = Duration::from_millis(50);
/// Messages without a look at the clock, during that pause and after a look that gave no sample.
/// Two looks follow, so that all repeats after 17 messages. Few calls send a multiple of that, so
/// looks fall on all parts of a call.
const PAUSE: u32 = 15;
/// The time for which a change stands.
const STANDS: Duration = Duration::from_secs(1);
/// A clock that takes this long to read says nothing, and costs much.
const SLOW_CLOCK: Duration = Duration::from_nanos(100);
/// Messages until a slow clock is tried again: it may have been disturbed only once.
const LONG_PAUSE: u32 = 1 << 16;

/// How far away the peer's core is.
#[derive(Debug)]
pub(super) struct Distance {
    /// Lines that take longer to load are of far peers.
    limit: Duration,
    is_far: bool,
    /// What the last samples said. Only a second time in a row do they change the choice: near
    /// lines, too, are slow while long calls keep the memory busy.
    seemed_far: bool,
    /// When the choice was changed.
    changed: Option<Instant>,
    /// When the last sample for a choice was taken.
    measured: Option<Instant>,
    /// When `measure` last loaded the line, unless messages have gone without it since.
    looked: Option<Instant>,
    samples: [Duration; SAMPLES],
    taken: usize,
    /// Messages until the clock is read again.
    pause: u32,
    /// The line may have been loaded, unseen by `measure`.
    is_spoilt: bool,
}

impl Default for Distance {
    fn default() -> Self {
        Self {
            limit: far_of(&vendor()),
            is_far: false,
            seemed_far: false,
            changed: None,
            measured: None,
            looked: None,
            samples: [Duration::ZERO; SAMPLES],
            taken: 0,
            pause: 0,
            is_spoilt: false,
        }
    }
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
            self.pause_for(PAUSE);
            return Ok(());
        }
        let is_news = look()?;
        let end = Instant::now();
        self.judge(is_news, start, end, end.elapsed());
        Ok(())
    }

    fn pause_for(&mut self, messages: u32) {
        (self.pause, self.looked) = (messages, None);
    }

    /// Takes a look for a sample if the peer has written the line since the look before, a short
    /// time ago. `clock` is how long it takes to read the clock.
    fn judge(&mut self, is_news: bool, start: Instant, end: Instant, clock: Duration) {
        let is_spoilt = std::mem::take(&mut self.is_spoilt);
        let before = self.looked.replace(start);
        let is_fresh = before.is_some_and(|before| start.duration_since(before) < FRESH);
        if clock >= SLOW_CLOCK {
            self.pause_for(LONG_PAUSE);
        } else if is_news && is_fresh && !is_spoilt {
            self.note(end, end.duration_since(start).saturating_sub(clock));
        } else if before.is_some() {
            self.pause_for(PAUSE);
        }
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
        let (_, &mut line, _) = self.samples.select_nth_unstable(SHORTER);
        (self.taken, self.measured) = (0, Some(now));
        let may_change = (self.changed).is_none_or(|last| now.duration_since(last) >= STANDS);
        let is_far = line > self.limit;
        let is_sure = std::mem::replace(&mut self.seemed_far, is_far) == is_far;
        if may_change && is_sure && self.is_far != is_far {
            (self.is_far, self.changed) = (is_far, Some(now));
        }
    }
}

fn far_of(vendor: &str) -> Duration {
    match vendor {
        // Hygon's processors are AMD's by design.
        "AuthenticAMD" | "HygonGenuine" => FAR_OF_AMD,
        _ => FAR_OF_OTHERS,
    }
}

/// Who made this processor, as it says itself; empty where that is not known.
fn vendor() -> String {
    #[cfg(target_arch = "x86_64")]
    if let Some(vendor) = raw_cpuid::CpuId::new().get_vendor_info() {
        return vendor.as_str().to_owned();
    }
    String::new()
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
    fn the_second_shortest_of_several_loads_chooses() {
        let [near, far] = [
            [500, 500, 500, 30, 500, 500, 500, 30, 500],
            [200, 200, 200, 200, 5, 200, 200, 200, 200],
        ];
        // Loads that are not due lie between.
        let twice = |nanos: [u64; SAMPLES]| choices([&nanos[..], &[0; 4], &nanos].concat());
        assert_eq!(twice(near).last(), Some(&false));
        assert_eq!(twice(far).last(), Some(&true));
        assert!(!twice(far)[..21].contains(&true));
    }

    /// The measured times of near and far lines (docs/what-bounds-it.md).
    #[test]
    fn the_limit_parts_near_and_far_lines_of_each_processor() {
        let is_far = |vendor, nanos| Duration::from_nanos(nanos) > far_of(vendor);
        assert_eq!(
            [10, 30, 100, 210].map(|nanos| is_far("AuthenticAMD", nanos)),
            [false, false, true, true]
        );
        assert_eq!(
            [50, 125].map(|nanos| is_far("GenuineIntel", nanos)),
            [false; 2]
        );
    }

    #[test]
    fn lines_that_are_slow_once_change_nothing() {
        let seen = choices((0..1000).map(|tick| if tick / 13 % 2 == 0 { 200 } else { 30 }));
        assert!(!seen.contains(&true));
    }

    #[test]
    fn a_change_stands_for_a_second() {
        let changes = |nanos: fn(u64) -> u64| {
            let seen = choices((0..1000).map(nanos));
            let changes = (1..1000).filter(move |&at| seen[at] != seen[at - 1]);
            changes.collect::<Vec<_>>()
        };
        // Choices are made at ticks 8, 21, 34, ..., 307: of nine samples, with 50 ms between.
        assert_eq!(changes(|tick| if tick < 300 { 200 } else { 30 }), [21, 320]);
        let often = changes(|tick| if tick / 26 % 2 == 0 { 200 } else { 30 });
        assert!((5..=10).contains(&often.len()), "{often:?}");
        assert!(
            often.windows(2).all(|pair| pair[1] - pair[0] >= 100),
            "{often:?}"
        );
    }

    /// Judges four looks, `micros` microseconds apart. Returns which were taken as samples.
    fn taken(distance: &mut Distance, is_news: bool, micros: u64) -> [bool; 4] {
        let start = Instant::now();
        [0, 1, 2, 3].map(|look| {
            let (start, before) = (start + Duration::from_micros(look * micros), distance.taken);
            let end = start + Duration::from_nanos(90);
            distance.judge(is_news, start, end, Duration::from_nanos(20));
            distance.taken > before
        })
    }

    #[test]
    fn only_lines_that_the_peer_has_just_written_count() {
        let fresh = &mut Distance::default();
        assert_eq!(taken(fresh, true, 90), [false, true, true, true]);
        assert_eq!((fresh.samples[2].as_nanos(), fresh.pause), (70, 0));
        assert!(!taken(fresh, false, 90).contains(&true));

        let evicted = &mut Distance::default();
        assert_eq!(taken(evicted, true, 110), [false; 4]);
        assert_eq!(evicted.pause, PAUSE);

        let spoilt = &mut Distance::default();
        spoilt.looked = Some(Instant::now());
        spoilt.spoil();
        assert_eq!(taken(spoilt, true, 90), [false, false, true, true]);
    }

    /// The looks before this number of messages.
    fn looks(distance: &mut Distance, messages: u32) -> u32 {
        let mut looks = 0;
        for _ in 0..messages {
            let look = || {
                looks += 1;
                Ok(false)
            };
            distance.measure(look).unwrap();
        }
        looks
    }

    #[test]
    fn looks_that_say_nothing_are_rare() {
        let (distance, slow) = (&mut Distance::default(), &mut Distance::default());
        assert!(looks(distance, 170) <= 20);
        let start = Instant::now();
        slow.judge(true, start, start, SLOW_CLOCK);
        assert_eq!(looks(slow, LONG_PAUSE), 0);
    }

    #[test]
    fn an_ended_link_is_no_sample() {
        let error = Distance::default().measure(|| Err(LinkError::Closed));
        assert_eq!(error.is_err(), cfg!(target_arch = "x86_64"));
    }
}
