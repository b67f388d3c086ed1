//! Blocks of calls in which each rank's have a length of their own.

use spark_ccl::Blocks;
use spark_ccl_abi::arguments::slice;
use spark_ccl_abi::failure::Failure;

/// Blocks for all ranks, and the elements of the buffer that they are in.
///
/// # Safety
/// `counts` and `begins` are null, or point to `size` numbers, which nobody writes until this
/// returns.
pub(crate) unsafe fn blocks(
    counts: *const usize,
    begins: *const usize,
    size: usize,
    side: &str,
) -> Result<(Blocks, usize), Failure> {
    // SAFETY: `counts` is null or points to `size` numbers, which nobody writes until this returns
    // (this function's contract). The slice is not used longer: `Blocks` copies its numbers.
    let counts = unsafe { slice(counts, size, &format!("{side}_counts")) }?;
    let blocks = if begins.is_null() {
        Blocks::packed(counts)
    } else {
        // SAFETY: `begins` is not null, so it points to `size` numbers, which nobody writes until
        // this returns (this function's contract). The slice is not used longer: its numbers are
        // collected.
        let begins = unsafe { slice(begins, size, &format!("{side}_begins")) }?;
        // The position of an empty block does not matter.
        let begins = begins.iter().zip(counts);
        let begins = begins.map(|(&begin, &count)| if count == 0 { 0 } else { begin });
        Blocks::at(counts, &begins.collect::<Vec<_>>())
    };
    let ends = blocks.counts().iter().zip(blocks.begins());
    let ends = ends.map(|(&count, &begin)| begin.saturating_add(count));
    let len = ends.max().unwrap_or(0);
    Ok((blocks, len))
}
