//! Memory of GPUs that the user allocates here, before there is a communicator. Peers reach it.

use std::ffi::c_void;

use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, Kind, guarded};
use spark_ccl_abi::handles::Table;
use spark_ccl_cuda::{DeviceBlock, Error, context, current_device, keep_context};

use crate::status::Status;

/// The blocks, by address.
static BLOCKS: Table<DeviceBlock> = Table::new("memory of ncclMemAlloc");

/// `ncclMemAlloc`: on the device of the current context, else on the first device.
///
/// # Safety
/// `to` is null or can be written.
pub(crate) unsafe fn allocate(to: *mut *mut c_void, bytes: usize) -> Status {
    guarded(|| {
        let to = given(to, "ptr")?;
        let _context = keep_context();
        let device = context(current_device().unwrap_or(0)).map_err(|error| failure(&error))?;
        let block = DeviceBlock::new(&device, bytes).map_err(|error| failure(&error))?;
        let address = block.address();
        BLOCKS.insert_at(address, block);
        // SAFETY: `given` has refused null, and otherwise `to` can be written (this function's
        // contract).
        unsafe { to.write(std::ptr::without_provenance_mut(address as usize)) };
        Ok(())
    })
}

/// `ncclMemFree`: waits for everything that runs in the memory's context, as `cudaFree` does.
pub(crate) fn free(memory: *mut c_void) -> Status {
    guarded(|| {
        if memory.is_null() {
            return Ok(());
        }
        let _context = keep_context();
        let address = memory.addr() as u64;
        // Memory that may still be in use stays, and can be freed later.
        let settled = BLOCKS.get(address)?.settle();
        settled.map_err(|error| failure(&error))?;
        // If two threads free it, one succeeds.
        BLOCKS.remove(address).map(drop)
    })
}

fn failure(error: &Error) -> Failure {
    Failure::new(Kind::Device, error.to_string())
}
