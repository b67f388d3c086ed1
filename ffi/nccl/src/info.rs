//! The version, and the texts of errors.

use std::ffi::{c_char, c_int};

use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{guarded, last_error};

use crate::banner;
use crate::config::check_encryption;
use crate::status::{Status, words};
use crate::types::{ncclComm_t, ncclEncryptionConfig_t};

/// `ncclGetVersion`.
///
/// # Safety
/// `version` is null or can be written.
pub(crate) unsafe fn version(version: *mut c_int) -> Status {
    guarded(|| {
        let version = given(version, "version")?;
        let told = banner::version()?;
        // SAFETY: `given` has refused null, and otherwise `version` can be written (this function's
        // contract).
        unsafe { version.write(told) };
        Ok(())
    })
}

/// `ncclGetErrorString`, for any number.
pub(crate) fn error_string(result: c_int) -> *const c_char {
    words(result).as_ptr()
}

/// `ncclGetLastError`: this thread's last error, of any communicator.
pub(crate) fn last_error_of(_comm: ncclComm_t) -> *const c_char {
    last_error()
}

/// `ncclSetEncryption`.
///
/// # Safety
/// `config` is null, or [as it must be](check_encryption).
pub(crate) unsafe fn set_encryption(config: *const ncclEncryptionConfig_t) -> Status {
    // SAFETY: `config` is null, or as long as its `size` says, and its strings and options end: the
    // caller passes no other.
    guarded(|| unsafe { check_encryption(config) })
}

/// `ncclResetDebugInit` and `ncclResetDebugInitInternal`: logging is set up with each communicator.
pub(crate) fn reset_logging() {}
