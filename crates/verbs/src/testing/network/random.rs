//! Random numbers from a seed.

use std::time::Duration;

/// The longest pause between two steps of a device.
const LONGEST: u64 = 200;

/// The generator `SplitMix64` (Steele, Lea, Flood, 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end
    }

    /// Pauses or not: three times of four, the next step follows at once.
    pub(super) fn pause(&mut self) {
        if self.below(4) == 0 {
            std::thread::sleep(self.delay());
        }
    }

    pub(super) fn delay(&mut self) -> Duration {
        Duration::from_micros(self.below(LONGEST))
    }

    /// The pieces of a message of `bytes` bytes, each with its start and end, in any order. Each
    /// starts at a word.
    pub(super) fn pieces(&mut self, bytes: usize) -> Vec<[usize; 2]> {
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < bytes {
            let most = (bytes - start).div_ceil(8);
            let end = (start + 8 * (1 + self.below(most as u64) as usize)).min(bytes);
            pieces.push([start, end]);
            start = end;
        }
        for place in (1..pieces.len()).rev() {
            pieces.swap(place, self.below(place as u64 + 1) as usize);
        }
        pieces
    }
}
