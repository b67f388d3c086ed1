//! Where the blocks of an `all_to_all_v` are in a buffer: counts and displacements, unchecked.
//! Whether they fit a buffer and each other is checked with the call.

use std::sync::Arc;

/// The blocks of a buffer, one for each rank: how many elements each has, and where it begins.
///
/// Cloning it copies nothing. Where blocks follow each other, a slice or array of their counts will
/// do wherever blocks are asked for.
///
/// ```
/// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
/// use spark_ccl::Blocks;
///
/// let (sent, mut received) = (vec![7_u32; 4], vec![0_u32; 10]);
/// comm.all_to_all_v(&sent, &[4], &mut received, Blocks::at(&[4], &[6])).run()?;
/// assert_eq!(received, [0, 0, 0, 0, 0, 0, 7, 7, 7, 7]);
/// # Ok::<(), spark_ccl::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    pub(crate) counts: Arc<[usize]>,
    pub(crate) begins: Arc<[usize]>,
}

impl Blocks {
    /// `counts[p]` elements for rank `p`, one block after the other from the buffer's start.
    pub fn packed(counts: &[usize]) -> Self {
        let mut end = 0_usize;
        let begins = counts.iter().map(|&count| {
            let begin = end;
            // The call refuses a block beyond its buffer.
            end = end.saturating_add(count);
            begin
        });
        Self {
            begins: begins.collect(),
            counts: counts.into(),
        }
    }

    /// `counts[p]` elements from `begins[p]` on for rank `p`.
    pub fn at(counts: &[usize], begins: &[usize]) -> Self {
        Self {
            counts: counts.into(),
            begins: begins.into(),
        }
    }

    /// By rank: how many elements.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// By rank: where they begin.
    pub fn begins(&self) -> &[usize] {
        &self.begins
    }

    /// Two ranks whose blocks have an element in common, if there are any, the lower rank first. No
    /// block may end beyond what a `usize` counts.
    pub(crate) fn overlapping(&self) -> Option<[usize; 2]> {
        let full = || (0..self.counts.len()).filter(|&rank| self.counts[rank] > 0);
        let meet =
            |one: usize, next: usize| self.begins[one] + self.counts[one] > self.begins[next];
        // Most blocks follow each other in the order of ranks, which needs no sorting.
        if full()
            .zip(full().skip(1))
            .all(|(one, next)| !meet(one, next))
        {
            return None;
        }
        let mut in_order: Vec<_> = full().collect();
        in_order.sort_unstable_by_key(|&rank| self.begins[rank]);
        let pair = in_order.windows(2).find(|pair| meet(pair[0], pair[1]))?;
        Some([pair[0].min(pair[1]), pair[0].max(pair[1])])
    }
}

impl From<&Blocks> for Blocks {
    fn from(blocks: &Blocks) -> Self {
        blocks.clone()
    }
}

impl From<&[usize]> for Blocks {
    fn from(counts: &[usize]) -> Self {
        Self::packed(counts)
    }
}

impl From<&Vec<usize>> for Blocks {
    fn from(counts: &Vec<usize>) -> Self {
        Self::packed(counts)
    }
}

impl<const N: usize> From<&[usize; N]> for Blocks {
    fn from(counts: &[usize; N]) -> Self {
        Self::packed(counts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether an element of the buffer is in two blocks, element by element.
    fn shares_an_element(blocks: &Blocks) -> bool {
        let mut seen = std::collections::HashSet::new();
        let all = blocks.begins.iter().zip(&*blocks.counts);
        let mut elements = all.flat_map(|(&begin, &count)| begin..begin + count);
        elements.any(|element| !seen.insert(element))
    }

    proptest! {
        #[test]
        fn blocks_overlap_where_they_share_an_element(
            blocks in prop::collection::vec((0..6_usize, 0..40_usize), 0..9)
        ) {
            let (counts, begins): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
            let blocks = Blocks::at(&counts, &begins);
            let found = blocks.overlapping();
            prop_assert_eq!(found.is_some(), shares_an_element(&blocks));
            if let Some([one, other]) = found {
                prop_assert!(one < other);
                let of = |rank: usize| (counts[rank], begins[rank]);
                let two = [of(one), of(other)];
                let pair = Blocks::at(&two.map(|(count, _)| count), &two.map(|(_, begin)| begin));
                prop_assert!(shares_an_element(&pair));
            }
            prop_assert_eq!(Blocks::packed(&counts).overlapping(), None);
        }
    }
}
