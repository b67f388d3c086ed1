//! Bindings to the part of PMIx's C interface that is used here (version 2 of its ABI: releases 3
//! to 6).

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

pub(super) type Status = i32;

pub(super) const SUCCESS: Status = 0;
pub(super) const NOT_FOUND: Status = -46;
/// The operation is complete, and no callback follows.
pub(super) const OPERATION_SUCCEEDED: Status = -157;
/// The scope `PMIX_GLOBAL`: all ranks may read the value.
pub(super) const GLOBAL: u8 = 3;
/// The longest key, including its NUL.
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

/// `pmix_value_t`: a type and a union of 24 bytes, of which only the byte object is used here.
#[repr(C)]
pub(super) struct Value {
    kind: u16,
    data: *const u8,
    length: usize,
    rest_of_union: usize,
}

impl Value {
    /// A byte object that points to `bytes`. The library must copy them before they are freed.
    pub(super) fn bytes(bytes: &[u8]) -> Self {
        Self {
            kind: BYTE_OBJECT,
            data: bytes.as_ptr(),
            length: bytes.len(),
            rest_of_union: 0,
        }
    }

    /// A copy of the bytes; `None` if the value is not a byte object.
    ///
    /// # Safety
    /// If the type says that this is a byte object, the pointer must be null or valid for reads of
    /// the length.
    pub(super) unsafe fn to_bytes(&self) -> Option<Vec<u8>> {
        if self.kind != BYTE_OBJECT {
            return None;
        }
        if self.length == 0 || self.data.is_null() {
            return Some(Vec::new());
        }
        // SAFETY: the value is a byte object whose pointer is not null, so the pointer is valid for
        // reads of the length, as this function requires. The bytes are copied at once.
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

/// The functions of the library, which stays loaded until the process exits.
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
    /// Opens the library. The error lists each name that was tried, with the loader's message.
    pub(super) fn open() -> Result<Self, String> {
        Self::open_first(&file_names())
    }

    fn open_first(names: &[PathBuf]) -> Result<Self, String> {
        let mut tried = Vec::new();
        for name in names {
            match Self::open_file(name) {
                Ok(api) => {
                    spark_ccl_log::debug!("PMIx from {}", name.display());
                    return Ok(api);
                }
                Err(error) => tried.push(format!("{}: {}", name.display(), reason(&error))),
            }
        }
        Err(tried.join("; "))
    }

    fn open_file(name: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: loading a library runs its initialisers. The name is that of PMIx's library,
        // whose initialisers only set up its own state.
        let library = unsafe { Library::new(name) }?;
        // Leaked: the library's thread keeps running, so the library must never be unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: each type is that of the function in pmix.h, which version 2 of the ABI keeps.
        // The library is never unloaded, so the pointers stay valid.
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
        // SAFETY: the function accepts any status, before and after PMIx_Init, and returns null or
        // a static string.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return "unknown status".to_owned();
        }
        // SAFETY: the pointer is not null, so it is to a static C string, which ends with NUL.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// The loader's own message, which is the error's source.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The places to look: first the loader's search path, then Debian's copy outside of it.
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
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

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
        // A library, but not PMIx.
        assert!(Api::open_first(&[PathBuf::from("libc.so.6")]).is_err());
    }

    #[test]
    fn a_value_gives_its_bytes_back() {
        let value = Value::bytes(b"seven");
        // SAFETY: the value was made from a static slice, so pointer and length are valid.
        assert_eq!(unsafe { value.to_bytes() }.as_deref(), Some(&b"seven"[..]));
        let other = Value { kind: 3, ..value };
        // SAFETY: the type is not that of a byte object, for which nothing is promised.
        assert_eq!(unsafe { other.to_bytes() }, None);
    }
}
