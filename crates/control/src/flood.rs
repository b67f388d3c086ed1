//! Flooding: each rank forwards each piece of news exactly once. Knows which news it has seen;
//! what news means is in `state.rs`.

use crate::wire::{Flood, News};

/// Recognises floods that have arrived before, in constant memory per origin.
///
/// Streams keep order, even across reopening, and every rank forwards floods in the order of their
/// first arrival. So the floods of one origin reach every rank in the order in which they were
/// sent, on any path, and a high-water mark per origin is enough.
pub(crate) struct Seen {
    marks: Vec<u64>,
}

impl Seen {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            marks: vec![0; size],
        }
    }

    /// Whether `flood` arrives for the first time. From now on it counts as seen.
    pub(crate) fn is_new(&mut self, flood: &Flood) -> bool {
        let Some(mark) = self.marks.get_mut(flood.origin as usize) else {
            return false;
        };
        let new = flood.counter > *mark;
        *mark = flood.counter.max(*mark);
        new
    }

    /// Gives `news` from `origin` itself the next number.
    pub(crate) fn originate(&mut self, origin: u32, news: News) -> Flood {
        let counter = self.marks.get_mut(origin as usize).map_or(0, |mark| {
            *mark += 1;
            *mark
        });
        Flood {
            origin,
            counter,
            news,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use proptest::prelude::*;

    use super::*;
    use crate::topology::neighbours;

    /// A world with arbitrary delays: each stream is a queue, and `choices` picks the stream that
    /// delivers next.
    struct World {
        alive: Vec<bool>,
        seen: Vec<Seen>,
        streams: HashMap<(u32, u32), VecDeque<Flood>>,
        heard: Vec<Vec<(u32, u64)>>,
    }

    impl World {
        fn new(size: u32) -> Self {
            let nobody = vec![Vec::new(); size as usize];
            let seen = (0..size).map(|_| Seen::new(size as usize)).collect();
            Self {
                alive: vec![true; size as usize],
                seen,
                streams: HashMap::new(),
                heard: nobody,
            }
        }

        fn send(&mut self, from: u32, except: Option<u32>, flood: &Flood) {
            for to in neighbours(from, self.seen.len() as u32) {
                if Some(to) != except {
                    self.streams
                        .entry((from, to))
                        .or_default()
                        .push_back(flood.clone());
                }
            }
        }

        fn originate(&mut self, origin: u32, news: News) {
            let flood = self.seen[origin as usize].originate(origin, news);
            self.heard[origin as usize].push((origin, flood.counter));
            self.send(origin, None, &flood);
        }

        /// Delivers until nothing is in flight, and kills `victims` one after another meanwhile.
        fn run(&mut self, mut choices: impl FnMut() -> usize, mut victims: Vec<u32>) {
            loop {
                let mut open: Vec<(u32, u32)> = self.streams.keys().copied().collect();
                open.sort_unstable();
                if open.is_empty() {
                    return;
                }
                let (from, to) = open[choices() % open.len()];
                let queue = self.streams.get_mut(&(from, to)).unwrap();
                let flood = queue.pop_front().unwrap();
                if queue.is_empty() {
                    self.streams.remove(&(from, to));
                }
                if self.alive[to as usize] && self.seen[to as usize].is_new(&flood) {
                    self.heard[to as usize].push((flood.origin, flood.counter));
                    self.send(to, Some(from), &flood);
                }
                if choices().is_multiple_of(4)
                    && let Some(victim) = victims.pop()
                {
                    self.kill(victim);
                }
            }
        }

        /// Kills a rank: its received frames are lost, and its sent frames still arrive.
        fn kill(&mut self, victim: u32) {
            self.alive[victim as usize] = false;
        }
    }

    fn random(mut state: u64) -> impl FnMut() -> usize {
        move || {
            state = state
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) as usize
        }
    }

    proptest! {
        /// News reaches every live rank once and in order while up to log2(size) - 1 ranks die.
        #[test]
        fn news_reach_everyone_alive(size in 4u32..=24, seed in any::<u64>()) {
            let mut choices = random(seed);
            let deaths = size.ilog2() - 1;
            let origin = choices() as u32 % size;
            let victims: Vec<u32> = (0..deaths)
                .map(|_| choices() as u32 % size)
                .filter(|&victim| victim != origin)
                .collect();
            let mut world = World::new(size);
            for _ in 0..5 {
                world.originate(origin, News::Goodbye);
            }
            world.run(choices, victims);
            let expected: Vec<(u32, u64)> = (1..=5).map(|counter| (origin, counter)).collect();
            for rank in 0..size {
                if world.alive[rank as usize] {
                    prop_assert_eq!(&world.heard[rank as usize], &expected, "rank {}", rank);
                }
            }
        }
    }

    /// All sets of three dead ranks of 16, up to rotation, with news from every survivor.
    #[test]
    fn no_three_deaths_cut_a_world_of_16() {
        for (b, c) in (1..16).flat_map(|b| (b + 1..16).map(move |c| (b, c))) {
            let mut world = World::new(16);
            for victim in [0, b, c] {
                world.kill(victim);
            }
            let alive: Vec<u32> = (0..16).filter(|rank| ![0, b, c].contains(rank)).collect();
            for &rank in &alive {
                world.originate(rank, News::Goodbye);
            }
            world.run(|| 1, Vec::new());
            for &rank in &alive {
                assert_eq!(
                    world.heard[rank as usize].len(),
                    alive.len(),
                    "0 {b} {c}: {rank}"
                );
            }
        }
    }
}
