//! Checks the arguments of C: pointers, numbers, codes. Knows no call.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

use spark_ccl::{DType, ReduceOp};

use crate::failure::Failure;

/// A pointer that must not be null.
///
/// # Errors
/// The pointer is null; the message has `name`.
pub fn given<P: Pointer>(pointer: P, name: &str) -> Result<P, Failure> {
    if pointer.is_missing() {
        return Err(Failure::invalid(format!("{name} is a null pointer")));
    }
    Ok(pointer)
}

/// A pointer of either kind.
pub trait Pointer: Copy {
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
/// frees while the slice is used. If `count` is 0, any pointer will do.
///
/// # Errors
/// The pointer is null or not aligned, or the elements are more than memory can hold.
pub unsafe fn slice<'a, T>(start: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
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
    // bytes: all was checked. So the caller has `count` initialised elements there, and lets nobody
    // write or free them while the slice is used.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

/// A number, which must not be negative.
///
/// # Errors
/// The number is negative.
pub fn natural(value: c_int, name: &str) -> Result<usize, Failure> {
    usize::try_from(value).map_err(|_| Failure::invalid(format!("{name} is {value}, below 0")))
}

/// A string; `None` if the pointer is null.
///
/// # Safety
/// `start` is null, or points to a string that ends in a null character, and that nobody writes or
/// frees while it is used.
pub unsafe fn text<'a>(start: *const c_char) -> Option<Cow<'a, str>> {
    // SAFETY: `start` is not null, so the caller has a string there that ends in a null character,
    // and lets nobody write or free it while the result is used.
    (!start.is_null()).then(|| unsafe { CStr::from_ptr(start) }.to_string_lossy())
}

/// The element type of a code; `enumeration` is the name of its type in C.
///
/// # Errors
/// No element type has this code.
pub fn dtype(code: c_int, enumeration: &str) -> Result<DType, Failure> {
    let known = u8::try_from(code).ok().and_then(DType::from_code);
    known.ok_or_else(|| unknown(code, enumeration, DType::ALL.len()))
}

/// The reduction of a code; `enumeration` is the name of its type in C.
///
/// # Errors
/// No reduction has this code.
pub fn reduction(code: c_int, enumeration: &str) -> Result<ReduceOp, Failure> {
    let known = u8::try_from(code).ok().and_then(ReduceOp::from_code);
    known.ok_or_else(|| unknown(code, enumeration, ReduceOp::ALL.len()))
}

/// The failure for a code that is not one of an enumeration's `len` values.
fn unknown(code: c_int, enumeration: &str, len: usize) -> Failure {
    Failure::invalid(format!(
        "{code} is no {enumeration} (expected 0 to {})",
        len - 1
    ))
}
