//! Unique ids.

use crate::arguments::given;
use crate::status::{Status, guarded};
use spark_ccl::{Communicator, UniqueId};

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
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { id.write(Id { bytes }) };
        Ok(())
    })
}
