//! The accesses to a rank's memory with which a later access may still race.

use std::ops::Range;

use super::clocks::Event;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) by: Event,
    /// The first element.
    pub(super) start: usize,
    /// The number of the access to the rank's memory.
    pub(super) index: u32,
    pub(super) is_write: bool,
    /// The owner waits for it before it ends.
    pub(super) is_awaited: bool,
}

#[derive(Default)]
pub(super) struct Open {
    segments: Vec<Segment>,
    /// The index of the segment of each element.
    segment_of: Vec<u32>,
}

/// A range of elements with the same accesses.
struct Segment {
    range: Range<usize>,
    accesses: Vec<Access>,
}

impl Open {
    /// Calls `on_race` with the earlier accesses that `access` races with, possibly repeatedly. It
    /// may omit an access that comes before another one to the same element.
    pub(super) fn add(
        &mut self,
        access: Access,
        range: Range<usize>,
        is_before: impl Fn(Event) -> bool,
        mut on_race: impl FnMut(&Access),
    ) {
        self.extend(range.end);
        let mut start = range.start;
        while start < range.end {
            let segment = self.cut(start..range.end);
            start = segment.range.end;
            segment.accesses.retain(|earlier| {
                let is_before = is_before(earlier.by);
                if !is_before && (earlier.is_write || access.is_write) {
                    on_race(earlier);
                }
                !(is_before && access.supersedes(earlier))
            });
            segment.accesses.push(access);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Access> {
        self.segments.iter().flat_map(|segment| &segment.accesses)
    }

    fn extend(&mut self, end: usize) {
        let start = self.segment_of.len();
        if start < end {
            self.segment_of.resize(end, self.segments.len() as u32);
            self.segments.push(Segment {
                range: start..end,
                accesses: Vec::new(),
            });
        }
    }

    /// The segment that starts where `range` does, and that ends with it or earlier.
    fn cut(&mut self, range: Range<usize>) -> &mut Segment {
        let segment_at_start = |open: &Self| open.segment_of[range.start] as usize;
        for at in [range.start, range.end] {
            let index = segment_at_start(self);
            let segment = &self.segments[index].range;
            if segment.start < at && at < segment.end {
                self.split(index, at);
            }
        }
        let index = segment_at_start(self);
        &mut self.segments[index]
    }

    /// Makes the shorter part the new segment, so that each element changes its segment only
    /// rarely, however finely a long segment is divided.
    fn split(&mut self, index: usize, at: usize) {
        let new = self.segments.len() as u32;
        let segment = &mut self.segments[index];
        let (left, right) = (segment.range.start..at, at..segment.range.end);
        let (short, long) = if left.len() < right.len() {
            (left, right)
        } else {
            (right, left)
        };
        segment.range = long;
        let accesses = segment.accesses.clone();
        self.segment_of[short.clone()].fill(new);
        self.segments.push(Segment {
            range: short,
            accesses,
        });
    }
}

impl Access {
    pub(super) fn place(&self) -> (usize, u32) {
        (self.start, self.index)
    }

    /// Whether `earlier`, which comes before this access, can be dropped. All that comes after this
    /// access also comes after `earlier`: so a later access that races with `earlier` also races
    /// with this one.
    fn supersedes(&self, earlier: &Self) -> bool {
        let races_alike = self.is_write || !earlier.is_write;
        // Only accesses that are not awaited are compared with the owner's end.
        let ends_alike = earlier.is_awaited || !self.is_awaited;
        races_alike && ends_alike
    }
}
