//! Parameters: NCCL's variables that have an effect here, as they are set now. A variable that is
//! not set is an empty text, and no number.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;
use std::str::FromStr;

use spark_ccl::{Builder, Communicator};
use spark_ccl_abi::arguments::{given, text};
use spark_ccl_abi::failure::{Failure, guarded};

use crate::status::Status;
use crate::types::ncclParamHandle_t;

thread_local! {
    /// The last texts that [`string`] and [`parameter`] have returned to this thread: the user
    /// reads them until the next call.
    static TEXTS: RefCell<[CString; 2]> = RefCell::default();
    /// The names that [`keys`] has returned last to this thread, and the address of each.
    static KEYS: RefCell<(Vec<CString>, Vec<*const c_char>)> = RefCell::default();
}

/// All parameters. The handle of a parameter is its place here, counted from 1.
fn names() -> Vec<&'static str> {
    let ours = Builder::variables().filter(|name| name.starts_with("NCCL_"));
    ours.collect()
}

/// The value of a parameter.
fn value(name: &str) -> String {
    let builder = Communicator::builder();
    builder.get(name).unwrap_or_default().to_owned()
}

/// The bytes of a value.
fn raw(value: String) -> Vec<u8> {
    if let Ok(number) = value.trim().parse::<i64>() {
        return number.to_ne_bytes().to_vec();
    }
    let mut bytes = value.into_bytes();
    bytes.push(0);
    bytes
}

/// The name of the parameter with this handle.
fn known(handle: ncclParamHandle_t) -> Result<&'static str, Failure> {
    let place = given(handle, "the handle")?.addr();
    names().get(place - 1).copied().ok_or_else(|| {
        Failure::invalid(format!(
            "there is no parameter {handle:p}: bind one to have its handle"
        ))
    })
}

/// The place of a parameter.
///
/// # Safety
/// `key` is null or a string that ends in a null character.
unsafe fn place(key: *const c_char) -> Result<usize, Failure> {
    // SAFETY: `given` has refused null, and otherwise `key` is a string that ends in a null
    // character (this function's contract). The text is not used after this function.
    let key = unsafe { text(given(key, "key")?) }.unwrap_or_default();
    let found = names().iter().position(|name| *name == key);
    found.ok_or_else(|| {
        Failure::invalid(format!(
            "{key:?} is no parameter here: ncclParamGetAllParameterKeys has those of NCCL's that \
             have an effect"
        ))
    })
}

/// Keeps a text for this thread, and returns its address.
fn keep(own: usize, text: String) -> *const c_char {
    // The value of a variable has no null character.
    let text = CString::new(text).unwrap_or_default();
    TEXTS.with_borrow_mut(|texts| {
        texts[own] = text;
        texts[own].as_ptr()
    })
}

/// `ncclParamBind`.
///
/// # Safety
/// `out` is null or can be written, and `key` is null or a string that ends in a null character.
pub(crate) unsafe fn bind(out: *mut ncclParamHandle_t, key: *const c_char) -> Status {
    guarded(|| {
        let out = given(out, "out")?;
        // SAFETY: `key` is null or a string that ends in a null character (this function's
        // contract).
        let place = unsafe { place(key) }?;
        // SAFETY: `given` has refused null, and otherwise `out` can be written (this function's
        // contract).
        unsafe { out.write(std::ptr::without_provenance_mut(place + 1)) };
        Ok(())
    })
}

/// `ncclParamGetI8` and the functions for other numbers.
///
/// # Safety
/// `out` is null or can be written.
pub(crate) unsafe fn number<T: FromStr>(handle: ncclParamHandle_t, out: *mut T) -> Status {
    guarded(|| {
        let (name, out) = (known(handle)?, given(out, "out")?);
        let value = value(name);
        let number = value.trim().parse::<T>().map_err(|_| {
            let kind = std::any::type_name::<T>();
            Failure::invalid(format!(
                "{name} is {value:?}, which is no number of type {kind}"
            ))
        })?;
        // SAFETY: `given` has refused null, and otherwise `out` can be written (this function's
        // contract).
        unsafe { out.write(number) };
        Ok(())
    })
}

/// `ncclParamGetStr`.
///
/// # Safety
/// `out` is null or can be written.
pub(crate) unsafe fn string(handle: ncclParamHandle_t, out: *mut *const c_char) -> Status {
    guarded(|| {
        let (name, out) = (known(handle)?, given(out, "out")?);
        // SAFETY: `given` has refused null, and otherwise `out` can be written (this function's
        // contract).
        unsafe { out.write(keep(0, value(name))) };
        Ok(())
    })
}

/// `ncclParamGet`: a number as the 8 bytes of an `int64_t`; else the text, with the null character
/// behind it.
///
/// # Safety
/// `out` is null, or as many bytes as `most` says can be written there. `len` is null or can be
/// written.
pub(crate) unsafe fn bytes(
    handle: ncclParamHandle_t,
    out: *mut c_void,
    most: c_int,
    len: *mut c_int,
) -> Status {
    guarded(|| {
        let name = known(handle)?;
        let (out, len) = (given(out, "out")?, given(len, "len")?);
        let value = raw(value(name));
        let needed = c_int::try_from(value.len()).unwrap_or(c_int::MAX);
        // SAFETY: `given` has refused null, and otherwise `len` can be written (this function's
        // contract).
        unsafe { len.write(needed) };
        if needed > most {
            return Err(Failure::invalid(format!(
                "maxLen is {most}, and {name} has {needed} bytes"
            )));
        }
        // SAFETY: `given` has refused null, and otherwise `most` bytes can be written there (this
        // function's contract), which are no fewer. The text is a variable of this function.
        unsafe {
            out.cast::<u8>()
                .copy_from_nonoverlapping(value.as_ptr(), value.len());
        };
        Ok(())
    })
}

/// `ncclParamGetParameter`.
///
/// # Safety
/// `key` is null or a string that ends in a null character. `out` and `len` are null or can be
/// written.
pub(crate) unsafe fn parameter(
    key: *const c_char,
    out: *mut *const c_char,
    len: *mut c_int,
) -> Status {
    guarded(|| {
        let (out, len) = (given(out, "value")?, given(len, "valueLen")?);
        // SAFETY: `given` has refused null, and otherwise both can be written (this function's
        // contract).
        unsafe {
            out.write(std::ptr::null());
            len.write(0);
        }
        // SAFETY: `key` is null or a string that ends in a null character (this function's
        // contract).
        let value = value(names()[unsafe { place(key) }?]);
        let bytes = c_int::try_from(value.len()).unwrap_or(c_int::MAX);
        // SAFETY: `given` has refused null, and otherwise `out` and `len` can be written (this
        // function's contract).
        unsafe {
            out.write(keep(1, value));
            len.write(bytes);
        }
        Ok(())
    })
}

/// `ncclParamGetAllParameterKeys`.
///
/// # Safety
/// `table` and `len` are null or can be written.
pub(crate) unsafe fn keys(table: *mut *mut *const c_char, len: *mut c_int) -> Status {
    guarded(|| {
        let (table, len) = (given(table, "table")?, given(len, "tableLen")?);
        let keys: Vec<_> = names().into_iter().flat_map(CString::new).collect();
        let places: Vec<_> = keys.iter().map(|key| key.as_ptr()).collect();
        let count = c_int::try_from(places.len()).unwrap_or(c_int::MAX);
        // The characters of a `CString` do not move when the vector does.
        let start = KEYS.with_borrow_mut(|kept| {
            *kept = (keys, places);
            kept.1.as_mut_ptr()
        });
        // SAFETY: `given` has refused null, and otherwise both can be written (this function's
        // contract).
        unsafe {
            table.write(start);
            len.write(count);
        }
        Ok(())
    })
}

/// `ncclParamDumpAll`: to the standard output, as NCCL does.
pub(crate) fn dump() {
    guarded::<Status>(|| {
        let builder = Communicator::builder();
        let mut out = std::io::stdout().lock();
        for name in names() {
            let value = builder.get(name).unwrap_or_default();
            // An error means that nobody reads the output, so nothing is lost.
            let _ = writeln!(out, "{name}={value}");
        }
        Ok(())
    });
}
