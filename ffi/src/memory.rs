//! Host memory that other ranks can access: `spark_ccl_alloc` and `spark_ccl_free`.

use std::ffi::c_void;
use std::sync::Arc;

use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::groups::must_be_closed;

use crate::comm::{Handle, find};
use crate::status::Status;

/// `spark_ccl_alloc`.
///
/// # Safety
/// `memory` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_alloc(
    comm: *mut Handle,
    bytes: usize,
    memory: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let memory = given(memory, "memory")?;
        // SAFETY: `given` has refused null, and otherwise `memory` points to a pointer that can be
        // written (this function's contract).
        unsafe { memory.write(std::ptr::null_mut()) };
        must_be_closed("spark_ccl_alloc")?;
        let comm = find(comm)?;
        let made = Arc::new(comm.inner.alloc::<u8>(bytes)?);
        let start = made.as_mut_ptr().cast();
        comm.memory.lock().push(made);
        // SAFETY: `given` has refused null, and `memory` points to a pointer that can be written
        // until this function returns (its contract).
        unsafe { memory.write(start) };
        Ok(())
    })
}

/// `spark_ccl_free`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_free(comm: *mut Handle, memory: *mut c_void) -> Status {
    guarded(|| {
        if memory.is_null() {
            return Ok(());
        }
        let comm = find(comm)?;
        let mut all = comm.memory.lock();
        let known = all
            .iter()
            .position(|one| std::ptr::eq(one.as_mut_ptr(), memory.cast()));
        let Some(index) = known else {
            return Err(Failure::invalid(
                "the communicator has allocated no memory that begins there".to_owned(),
            ));
        };
        drop(all.swap_remove(index));
        Ok(())
    })
}
