//! What calls may have besides their arguments.

use crate::status::Failure;
use std::ffi::{c_char, c_int, c_void};

/// `spark_ccl_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub(crate) struct_size: usize,
    pub(crate) request: *mut u64,
    pub(crate) name: *const c_char,
    pub(crate) factor: *const c_void,
    pub(crate) registered: c_int,
}

/// The caller's options, as many as it knows; the others are at their defaults.
///
/// # Safety
/// They are null, or point to as many bytes as they say.
pub(crate) unsafe fn read(options: *const Options) -> Result<Options, Failure> {
    let mut own = Options {
        struct_size: size_of::<Options>(),
        request: std::ptr::null_mut(),
        name: std::ptr::null(),
        factor: std::ptr::null(),
        registered: 0,
    };
    if options.is_null() {
        return Ok(own);
    }
    // SAFETY: not null, and then the first field is there by this function's contract.
    let known = unsafe { options.cast::<usize>().read_unaligned() };
    if known < size_of::<usize>() {
        return Err(Failure::invalid(format!(
            "struct_size of the options is {known}; begin with SPARK_CCL_OPTIONS_INIT"
        )));
    }
    let bytes = known.min(size_of::<Options>());
    // SAFETY: so many bytes are there, and there is room for them; any bytes are pointers and numbers.
    unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut own).cast(), bytes);
    }
    Ok(own)
}
