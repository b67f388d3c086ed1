//! Parts of memory that messages read and write at the same time.

use std::ops::Range;

/// Which of the parts that are read overlap one that is written: their places, in ascending order.
/// Empty parts overlap nothing.
///
/// # Errors
/// The places of two written parts that overlap, the lower one first.
///
/// ```
/// # use spark_ccl_types::overwritten;
/// assert_eq!(overwritten(&[0..4, 4..8], &[6..9, 9..12]), Ok(vec![1]));
/// assert_eq!(overwritten(&[], &[6..9, 0..7]), Err([0, 1]));
/// ```
pub fn overwritten(
    read: &[Range<usize>],
    written: &[Range<usize>],
) -> Result<Vec<usize>, [usize; 2]> {
    let full = (0..written.len()).filter(|&place| !written[place].is_empty());
    let mut in_order: Vec<_> = full.collect();
    in_order.sort_unstable_by_key(|&place| written[place].start);
    let meet = |pair: &&[usize]| written[pair[0]].end > written[pair[1]].start;
    if let Some(pair) = in_order.windows(2).find(meet) {
        return Err([pair[0].min(pair[1]), pair[0].max(pair[1])]);
    }
    // Apart from each other, they end in the same order.
    let is_overwritten = |part: &Range<usize>| {
        let first = in_order.partition_point(|&place| written[place].end <= part.start);
        let next = in_order.get(first).filter(|_| !part.is_empty());
        next.is_some_and(|&place| written[place].start < part.end)
    };
    let places = (0..read.len()).filter(|&place| is_overwritten(&read[place]));
    Ok(places.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_common_bytes_overlap() {
        let written = [30..40, 0..10, 20..20, 10..12];
        let read = [0..1, 12..30, 39..50, 40..50, 12..31, 20..20, 5..5, 29..41];
        assert_eq!(overwritten(&read, &written), Ok(vec![0, 2, 4, 7]));
        assert_eq!(overwritten(&read, &[]), Ok(vec![]));
        assert_eq!(overwritten(&[], &[5..9, 9..10, 8..9]), Err([0, 2]));
    }
}
