//! The part of PMIx's C interface (version 2 of its ABI: releases 3 to 6) that is used here.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

pub(super) type Status = i32;

pub(super) const SUCCESS: Status = 0;
pub(super) const NOT_FOUND: Status = -46;
/// The operation is complete, and no callback follows.
pub(super) const OPERATION_SUCCEEDED: Status = -157;
/// The scope of values that all ranks may read.
pub(super) const GLOBAL: u8 = 3;
/// Longest key, with its NUL.
pub(super) const KEY_LENGTH: usize = 512;

const NAMESPACE_LENGTH: usize = 256;
const BYTE_OBJECT: u16 = 27;

/// `pmix_proc_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Proc {
    namespace: [c_char; NAMESPACE_LENGTH],
    pub(super) rank: u32,
}

impl Default for Proc {
    fn default() -> Self {
        Self {
            namespace: [0; NAMESPACE_LENGTH],
            rank: 0,
        }
    }
}

/// `pmix_value_t`: a type, and a union of 24 bytes whose byte object is the member used here.
#[repr(C)]
pub(super) struct Value {
    kind: u16,
    data: *const u8,
    length: usize,
    rest_of_union: usize,
}

impl Value {
    /// Points to `bytes`; the library must copy them before they go.
    pub(super) fn bytes(bytes: &[u8]) -> Self {
        Self {
            kind: BYTE_OBJECT,
            data: bytes.as_ptr(),
            length: bytes.len(),
            rest_of_union: 0,
        }
    }

    /// A copy of the bytes; `None` when it holds something else.
    ///
    /// # Safety
    /// A value that says it is a byte object has a true pointer and length.
    pub(super) unsafe fn to_bytes(&self) -> Option<Vec<u8>> {
        if self.kind != BYTE_OBJECT {
            return None;
        }
        if self.length == 0 || self.data.is_null() {
            return Some(Vec::new());
        }
        // SAFETY: the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(self.data, self.length) }.to_vec())
    }
}

/// `pmix_info_t` is only ever passed as a null pointer.
type Info = c_void;
type OnDone = extern "C" fn(Status, *mut c_void);
type OnValue = extern "C" fn(Status, *mut Value, *mut c_void);

type Init = unsafe extern "C" fn(*mut Proc, *const Info, usize) -> Status;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> Status;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status;
type Commit = unsafe extern "C" fn() -> Status;
type FenceNb =
    unsafe extern "C" fn(*const Proc, usize, *const Info, usize, OnDone, *mut c_void) -> Status;
type GetNb = unsafe extern "C" fn(
    *const Proc,
    *const c_char,
    *const Info,
    usize,
    OnValue,
    *mut c_void,
) -> Status;
type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;

/// The functions of the library, which stays open as long as the process.
pub(super) struct Api {
    pub(super) init: Init,
    pub(super) finalize: Finalize,
    pub(super) put: Put,
    pub(super) commit: Commit,
    pub(super) fence_nb: FenceNb,
    pub(super) get_nb: GetNb,
    error_string: ErrorString,
}

impl Api {
    /// Opens the library; the error lists each name that was tried and what the loader said.
    pub(super) fn open() -> Result<Self, String> {
        Self::open_first(&file_names())
    }

    fn open_first(names: &[PathBuf]) -> Result<Self, String> {
        let mut tried = Vec::new();
        for name in names {
            match Self::open_file(name) {
                Ok(api) => {
                    tracing::debug!("PMIx from {}", name.display());
                    return Ok(api);
                }
                Err(error) => tried.push(format!("{}: {}", name.display(), reason(&error))),
            }
        }
        Err(tried.join("; "))
    }

    fn open_file(name: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: the file is PMIx's library by its name; its initialisers only set up itself.
        let library = unsafe { Library::new(name) }?;
        // Its thread outlives any handle of ours.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the types are those of the functions in pmix.h, which version 2 of the ABI keeps.
        unsafe {
            Ok(Self {
                init: *library.get(b"PMIx_Init\0")?,
                finalize: *library.get(b"PMIx_Finalize\0")?,
                put: *library.get(b"PMIx_Put\0")?,
                commit: *library.get(b"PMIx_Commit\0")?,
                fence_nb: *library.get(b"PMIx_Fence_nb\0")?,
                get_nb: *library.get(b"PMIx_Get_nb\0")?,
                error_string: *library.get(b"PMIx_Error_string\0")?,
            })
        }
    }

    pub(super) fn text_of(&self, status: Status) -> String {
        // SAFETY: takes any number, and returns null or a static text.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return "unknown status".to_owned();
        }
        // SAFETY: not null, and ends with NUL.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// The loader's own words, which are the error's source.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The loader's own search comes first; Debian keeps a copy outside of it.
fn file_names() -> Vec<PathBuf> {
    vec![
        PathBuf::from("libpmix.so.2"),
        PathBuf::from(format!(
            "/usr/lib/{}-linux-gnu/pmix2/lib/libpmix.so.2",
            std::env::consts::ARCH
        )),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};

    /// The numbers are what Debian's `pmix.h` of PMIx 4.2 gives on a 64-bit machine.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<Proc>(), 260);
        assert_eq!(offset_of!(Proc, rank), 256);
        assert_eq!(size_of::<Value>(), 32);
        assert_eq!(align_of::<Value>(), 8);
        assert_eq!(offset_of!(Value, data), 8);
        assert_eq!(offset_of!(Value, length), 16);
    }

    #[test]
    fn a_missing_library_names_every_file_that_was_tried() {
        let names = ["/nonexistent/libpmix.so.2", "libpmix-nonexistent.so.2"].map(PathBuf::from);
        let Err(tried) = Api::open_first(&names) else {
            panic!("opened");
        };
        assert!(
            names
                .iter()
                .all(|name| tried.contains(name.to_str().unwrap())),
            "{tried}"
        );
        // A library, but another one.
        assert!(Api::open_first(&[PathBuf::from("libc.so.6")]).is_err());
    }

    #[test]
    fn a_value_gives_its_bytes_back() {
        let value = Value::bytes(b"seven");
        // SAFETY: made from a slice that lives.
        assert_eq!(unsafe { value.to_bytes() }.as_deref(), Some(&b"seven"[..]));
        let other = Value { kind: 3, ..value };
        // SAFETY: as above.
        assert_eq!(unsafe { other.to_bytes() }, None);
    }
}
