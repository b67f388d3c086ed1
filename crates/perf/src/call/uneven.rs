//! The counts of alltoallv, in which the amount grows with the distance to the receiver.

use spark_ccl::Blocks;

/// Rounds a number of elements down to a multiple of 16 bytes.
pub(super) fn floor_to_16_bytes(count: usize, element: usize) -> usize {
    count - count % (16 / element)
}

/// The number of elements that any rank sends to the rank at `distance` after it, of `whole`
/// elements in total.
///
/// Distance 0 (the rank itself) gets nothing, and the largest distance the most. The sum over all
/// distances is at most `whole`, and the same on every rank, for sends and for receives.
pub(crate) fn share(whole: usize, element: usize, ranks: usize, distance: usize) -> usize {
    if ranks == 1 {
        return floor_to_16_bytes(whole, element);
    }
    let weights = (ranks * (ranks - 1) / 2) as u128;
    let exact = whole as u128 * distance as u128 / weights;
    floor_to_16_bytes(exact as usize, element)
}

/// The number of elements that a rank sends in total; it receives the same number.
pub(crate) fn total(whole: usize, element: usize, ranks: usize) -> usize {
    (0..ranks)
        .map(|distance| share(whole, element, ranks, distance))
        .sum()
}

/// The elements that `rank` sends to each peer.
pub(crate) fn sends(whole: usize, element: usize, ranks: usize, rank: usize) -> Blocks {
    let counts = (0..ranks).map(|to| share(whole, element, ranks, (to + ranks - rank) % ranks));
    Blocks::packed(&counts.collect::<Vec<_>>())
}

/// The elements that `rank` receives from each peer.
pub(crate) fn receives(whole: usize, element: usize, ranks: usize, rank: usize) -> Blocks {
    let counts = (0..ranks).map(|from| share(whole, element, ranks, (rank + ranks - from) % ranks));
    Blocks::packed(&counts.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree() {
        for ranks in [1, 2, 3, 5, 8] {
            let whole = 1000 * ranks;
            for a in 0..ranks {
                let sent = sends(whole, 4, ranks, a);
                assert_eq!(sent.counts().iter().sum::<usize>(), total(whole, 4, ranks));
                assert!(total(whole, 4, ranks) <= whole);
                for b in 0..ranks {
                    assert_eq!(sent.counts()[b], receives(whole, 4, ranks, b).counts()[a]);
                }
            }
        }
    }

    #[test]
    fn farther_gets_more() {
        let sent = sends(6000, 4, 4, 1);
        assert_eq!(sent.counts(), [3000, 0, 1000, 2000]);
        assert_eq!(sent.begins(), [0, 3000, 3000, 4000]);
    }
}
