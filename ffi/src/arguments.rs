//! Checks the arguments of C: pointers, numbers, codes. Knows no call.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

use spark_ccl::{Blocks, DType, ReduceOp};

use crate::status::Failure;

/// A pointer that must not be null.
pub(crate) fn given<P: Pointer>(pointer: P, name: &str) -> Result<P, Failure> {
    if pointer.is_missing() {
        return Err(Failure::invalid(format!("{name} is a null pointer")));
    }
    Ok(pointer)
}

/// A pointer of either kind.
pub(crate) trait Pointer: Copy {
    /// Whether it is null.
    fn is_missing(self) -> bool;
}

impl<T> Pointer for *const T {
    fn is_missing(self) -> bool {
        self.is_null()
    }
}

impl<T> Pointer for *mut T {
    fn is_missing(self) -> bool {
        self.is_null()
    }
}

/// `count` elements from a pointer; empty if `count` is 0.
///
/// # Safety
/// `start` is null, not aligned, or points to `count` initialised elements, which nobody writes or
/// frees while the slice is used. Anything will do where `count` is 0.
pub(crate) unsafe fn slice<'a, T>(
    start: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let start = given(start, name)?;
    if count > isize::MAX as usize / size_of::<T>() || !start.is_aligned() {
        return Err(Failure::invalid(format!(
            "{name} cannot be {count} elements, or is not aligned to them"
        )));
    }
    // SAFETY: `start` is neither null nor misaligned, and `count` elements fit into `isize::MAX`
    // bytes: all was checked. So `count` initialised elements are there, which nobody writes while
    // the slice is used (this function's contract).
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// A number that must not be negative.
pub(crate) fn natural(value: c_int, name: &str) -> Result<usize, Failure> {
    usize::try_from(value).map_err(|_| Failure::invalid(format!("{name} is {value}, below 0")))
}

/// A string; `None` if the pointer is null.
///
/// # Safety
/// `start` is null, or points to a string that ends in a null character, and that nobody writes or
/// frees while it is used.
pub(crate) unsafe fn text<'a>(start: *const c_char) -> Option<Cow<'a, str>> {
    // SAFETY: `start` is not null, so it points to a string that ends in a null character, and that
    // nobody writes or frees while it is used (this function's contract).
    (!start.is_null()).then(|| unsafe { CStr::from_ptr(start) }.to_string_lossy())
}

pub(crate) fn dtype(code: c_int) -> Result<DType, Failure> {
    let known = u8::try_from(code).ok().and_then(DType::from_code);
    known.ok_or_else(|| unknown(code, "spark_ccl_dtype", DType::ALL.len()))
}

pub(crate) fn reduction(code: c_int) -> Result<ReduceOp, Failure> {
    let known = u8::try_from(code).ok().and_then(ReduceOp::from_code);
    known.ok_or_else(|| unknown(code, "spark_ccl_op", ReduceOp::ALL.len()))
}

/// The failure for a code that is not one of an enumeration's `len` values.
fn unknown(code: c_int, enumeration: &str, len: usize) -> Failure {
    Failure::invalid(format!(
        "{code} is no {enumeration} (expected 0 to {})",
        len - 1
    ))
}

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
