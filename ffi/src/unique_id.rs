//! Unique ids.

use std::ffi::c_char;

use spark_ccl::{Communicator, UniqueId};
use spark_ccl_abi::arguments::{given, text};
use spark_ccl_abi::failure::{Failure, guarded};

use crate::status::Status;

/// `spark_ccl_unique_id`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Id {
    pub(crate) bytes: [u8; UniqueId::LEN],
}

/// `spark_ccl_get_unique_id`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_get_unique_id(id: *mut Id) -> Status {
    guarded(|| {
        let id = given(id, "id")?;
        let bytes = *Communicator::builder().unique_id()?.as_bytes();
        // SAFETY: `given` has refused null, and otherwise `id` points to what can be written (this
        // function's contract).
        unsafe { id.write(Id { bytes }) };
        Ok(())
    })
}

/// `SPARK_CCL_UNIQUE_ID_TEXT`: two digits for each byte, and the end.
pub(crate) const TEXT: usize = 2 * UniqueId::LEN + 1;

/// `spark_ccl_unique_id_to_text`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id`, and `to` to as many characters as `size`
/// says, that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_unique_id_to_text(
    id: *const Id,
    to: *mut c_char,
    size: usize,
) -> Status {
    guarded(|| {
        let (id, to) = (given(id, "id")?, given(to, "text")?);
        if size < TEXT {
            return Err(Failure::invalid(format!(
                "the text of a unique id has {TEXT} characters with its end, and there is room for \
                 {size}: pass an array of SPARK_CCL_UNIQUE_ID_TEXT"
            )));
        }
        // SAFETY: `given` has refused null, and otherwise `id` points to a `spark_ccl_unique_id`
        // (this function's contract).
        let id = unsafe { id.read() }.known()?;
        let text = id.to_string();
        // SAFETY: `to` is not null, and has room for `TEXT` characters by this function's contract;
        // they are as many as the text's and the end. It is new, so nothing overlaps it.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(to.cast(), text.len());
            to.add(text.len()).write(0);
        }
        Ok(())
    })
}

/// `spark_ccl_unique_id_from_text`.
///
/// # Safety
/// `from` is null or a string that ends in a null character, and `id` is null or points to a
/// `spark_ccl_unique_id` that can be written. Nobody writes the string until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_unique_id_from_text(from: *const c_char, id: *mut Id) -> Status {
    guarded(|| {
        let id = given(id, "id")?;
        // SAFETY: `given` has refused null, and otherwise `from` is a string that ends in a null
        // character, and that nobody writes meanwhile (this function's contract).
        let text = unsafe { text(given(from, "text")?) }.unwrap_or_default();
        let known: UniqueId = text.parse().map_err(spark_ccl::Error::from)?;
        let bytes = *known.as_bytes();
        // SAFETY: `given` has refused null, and otherwise `id` points to what can be written (this
        // function's contract).
        unsafe { id.write(Id { bytes }) };
        Ok(())
    })
}

impl Id {
    /// The id, if it is one.
    pub(crate) fn known(&self) -> Result<UniqueId, Failure> {
        Ok(UniqueId::from_bytes(&self.bytes).map_err(spark_ccl::Error::from)?)
    }
}
