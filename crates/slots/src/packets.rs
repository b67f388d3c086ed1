//! Packets: short calls whose flags are among their data, without a bell, a fence or a flag behind
//! them. `kernels/packets.h` has the GPU's part, and `kernels/slots_layout.h` the same numbers.
//!
//! A packet is 16 bytes: in each half, the end of its slot's number above four bytes of data. The
//! sender's proxy polls them, and the carrier writes them into the peer's inbox, where halves may
//! become visible in any order. There are no credits: a slot is filled again once a later call has
//! shown that the peer has consumed it.

#[cfg(test)]
mod depth;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{
    BLOCK, LINE, PACKET_SLOTS, PACKETS, RECORD_OF_PACKETS as RECORD, RENEWED_EACH,
};
use crate::{Error, PostBox, Record};

const LOW: u64 = u32::MAX as u64;
/// The number of packets that are polled together: so few that little is read twice while they
/// come.
const AT_ONCE: usize = 32;

impl PostBox {
    /// The number of the last slot of packets that begun calls send and receive.
    pub fn packets_wanted(&self) -> u64 {
        // Relaxed: a thread that has acquired the beginning of a call sees its number.
        self.word_at(self.shape().packets()).load(Ordering::Relaxed)
    }

    /// Appends the words of a slot (record and block) that have come to `words`. Returns whether
    /// the slot is complete.
    ///
    /// # Errors
    /// No kernel writes this record.
    pub(crate) fn take_packets(&self, number: u64, words: &mut Vec<u64>) -> Result<bool, Error> {
        let halves = self.halves(number);
        if words.len() < RECORD && !take(&halves[..2 * RECORD], number, words) {
            return Ok(false);
        }
        let length = record_of(words).length;
        if length > BLOCK as u64 {
            return Err(Error::Length {
                lane: 0,
                number,
                length,
                payload: BLOCK,
            });
        }
        let end = RECORD + (length as usize).div_ceil(size_of::<u64>());
        while words.len() < end {
            let next = words.len()..end.min(words.len() + AT_ONCE);
            if !take(&halves[2 * next.start..2 * next.end], number, words) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the words of a slot, and now and then all of its packets, so that no old packet ever
    /// has a number that is expected again.
    pub(crate) fn put_packets(&self, number: u64, words: impl ExactSizeIterator<Item = u64>) {
        let (packets, _) = self.halves(number).as_chunks();
        let (packets, _) = packets.split_at(packets_of(number, words.len()));
        let (used, rest) = packets.split_at(words.len());
        for (packet, word) in used.iter().zip(words) {
            put(packet, number, word);
        }
        for packet in rest {
            put(packet, number, 0);
        }
    }

    /// All halves of a slot.
    pub(crate) fn halves(&self, number: u64) -> &[AtomicU64] {
        let index = number as usize % PACKET_SLOTS;
        let start = self.shape().packets() + LINE + index * PACKETS * 2 * size_of::<u64>();
        self.words_from(start, 2 * PACKETS)
    }
}

/// Takes the words of these halves, if all have come.
fn take(halves: &[AtomicU64], number: u64, words: &mut Vec<u64>) -> bool {
    let (known, flag) = (words.len(), number << 32);
    let mut differs = 0;
    let (packets, _) = halves.as_chunks();
    words.extend(packets.iter().map(|[low, high]| {
        // Relaxed: each half has its flag with it, and no other read depends on it.
        let [low, high] = [low, high].map(|half| half.load(Ordering::Relaxed));
        differs |= (low ^ flag) | (high ^ flag);
        low & LOW | high << 32
    }));
    let have_come = differs <= LOW;
    if !have_come {
        words.truncate(known);
    }
    have_come
}

fn put([low, high]: &[AtomicU64; 2], number: u64, word: u64) {
    let values = halves_of(number, word);
    // Relaxed: a half has its flag with it, and is written at once.
    low.store(values[0], Ordering::Relaxed);
    high.store(values[1], Ordering::Relaxed);
}

/// The number of packets that are written of a slot with this number of words.
pub(crate) fn packets_of(number: u64, words: usize) -> usize {
    let is_renewed = number % RENEWED_EACH < PACKET_SLOTS as u64;
    if is_renewed { PACKETS } else { words }
}

/// The packet of a word.
pub(crate) fn halves_of(number: u64, word: u64) -> [u64; 2] {
    [word & LOW, word >> 32].map(|data| number << 32 | data)
}

/// The record in the first words of a slot.
pub(crate) fn record_of(words: &[u64]) -> Record {
    Record {
        call: words[0],
        words: [words[1], words[2]],
        total: words[3],
        start: 0,
        length: words[3],
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::conformance::plain;

    fn new() -> PostBox {
        plain(Shape::new(1, 1, 128).unwrap())
    }

    fn store(of: &PostBox, number: u64, (place, half): (usize, u64)) {
        of.halves(number)[place].store(half, Ordering::Relaxed);
    }

    #[test]
    fn a_slot_is_there_once_all_of_its_halves_have_come_in_any_order() {
        let words = [&[7, 8, 9, 120 << 3], &[u64::MAX, 1 << 40, 3].repeat(40)[..]].concat();
        for (number, step) in [(1, 1), (9, 11), (LOW + 4, 131)] {
            let of = new();
            let halves = words.iter().flat_map(|&word| halves_of(number, word));
            let halves: Vec<_> = halves.enumerate().collect();
            let (mut taken, count) = (Vec::new(), halves.len());
            for place in (0..count).map(|at| at * step % count).rev() {
                assert_eq!(of.take_packets(number, &mut taken), Ok(false));
                assert!(words.starts_with(&taken));
                store(&of, number, halves[place]);
            }
            assert_eq!(of.take_packets(number, &mut taken), Ok(true));
            assert_eq!(taken, words);
            let next = &mut Vec::new();
            assert_eq!(
                of.take_packets(number + PACKET_SLOTS as u64, next),
                Ok(false)
            );
        }
    }

    /// Without this, an old packet would be taken for a new one when numbers wrap.
    #[test]
    fn each_place_of_packets_is_written_now_and_then() {
        let of = new();
        for number in 3 * RENEWED_EACH - 2..3 * RENEWED_EACH + 4 {
            of.put_packets(number, [0; RECORD].into_iter());
        }
        for number in 3 * RENEWED_EACH..3 * RENEWED_EACH + PACKET_SLOTS as u64 {
            let halves = &of.halves(number)[2 * RECORD..];
            let mut words = Vec::new();
            assert!(take(halves, number, &mut words));
        }
    }

    #[test]
    fn a_record_that_no_kernel_writes_is_an_error() {
        let of = new();
        of.put_packets(1, [0, 0, 0, 1025].into_iter());
        let said = of.take_packets(1, &mut Vec::new()).unwrap_err().to_string();
        assert!(
            said.contains("something else has written its memory"),
            "{said}"
        );
    }
}
