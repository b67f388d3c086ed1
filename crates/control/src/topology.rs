//! The topology of the control streams: which ranks hold one to each other. A pure function of the
//! ranks.

use std::collections::BTreeSet;

/// Worlds of up to this many ranks are fully connected.
const FULLY_CONNECTED: u32 = 8;

/// The ranks that `rank` holds a control stream to, in ascending order.
///
/// Everyone else in a world of up to 8 ranks; in larger ones the ranks at distance 1, 2, 4, ... on
/// either side, about `2 log2(size)`. The relation is symmetric: `a` is a neighbour of `b` exactly
/// when `b` is one of `a`. Empty when `rank` is not below `size`.
pub fn neighbours(rank: u32, size: u32) -> Vec<u32> {
    if rank >= size {
        return Vec::new();
    }
    if size <= FULLY_CONNECTED {
        return (0..size).filter(|&other| other != rank).collect();
    }
    let (rank, size) = (u64::from(rank), u64::from(size));
    let distances = (0..).map(|power| 1u64 << power);
    let found: BTreeSet<u32> = distances
        .take_while(|&distance| distance < size)
        .flat_map(|distance| [rank + distance, rank + size - distance])
        .map(|other| (other % size) as u32)
        .collect();
    found.into_iter().collect()
}

/// The distance of two ranks around the ring of all ranks. A message that each rank forwards to its
/// neighbour closest to the destination arrives after at most `log2(size)` hops.
pub(crate) fn distance(a: u32, b: u32, size: u32) -> u32 {
    let ahead = a.abs_diff(b);
    ahead.min(size - ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_worlds_are_fully_connected() {
        assert_eq!(neighbours(0, 1), []);
        assert_eq!(neighbours(1, 3), [0, 2]);
        assert_eq!(neighbours(7, 8), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(neighbours(8, 8), []);
    }

    #[test]
    fn large_worlds_have_few_streams_and_both_ends_agree() {
        for size in [9, 16, 17, 100, 1000] {
            for rank in 0..size {
                let mine = neighbours(rank, size);
                assert!(!mine.contains(&rank));
                assert!(mine.len() <= 2 * (u32::BITS - size.leading_zeros()) as usize);
                for other in mine {
                    assert!(neighbours(other, size).contains(&rank), "{rank} {other}");
                }
            }
        }
    }

    #[test]
    fn neighbours_lead_closer_to_every_rank() {
        for size in [9_u32, 16, 17, 100, 1000] {
            for to in 1..size {
                let mut at = 0;
                for _ in 0..=size.ilog2() {
                    let next = neighbours(at, size);
                    let next = next
                        .into_iter()
                        .min_by_key(|&next| distance(next, to, size));
                    if at != to {
                        assert!(distance(next.unwrap(), to, size) < distance(at, to, size));
                        at = next.unwrap();
                    }
                }
                assert_eq!(at, to, "of {size}");
            }
        }
    }
}
