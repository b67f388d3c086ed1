//! Where the blocks of an `all_to_all_v` are in a buffer: counts and displacements, unchecked. Whether they fit a
//! buffer and each other is checked with the call.

use std::sync::Arc;

/// The blocks of a buffer, one for each rank: how many elements each has, and where it begins.
///
/// Cloning it copies nothing. Where blocks follow each other, a slice or array of their counts will do wherever blocks are
/// asked for.
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
            // What lies beyond any buffer is refused by the call.
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
