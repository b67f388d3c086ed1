//! How a GPU's kernels reach the memory of another GPU. Only asks; enables no access.

use cudarc::driver::{CudaContext, sys};

use crate::device::{bus_id, count};
use crate::location::reaches;
use crate::{Error, Feature, checked, require};

/// How a GPU's kernels reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The memory is the GPU's own.
    Own,
    /// Over `NVLink`, or another connection with all native atomic operations. (`PCIe` has only
    /// some of them.)
    Link,
    /// Over `PCIe`.
    Pcie,
    /// The GPU does not reach the memory.
    None,
}

/// How the GPU of a context reaches the memory of the one with a PCI bus id, such as
/// `0000:1b:00.0`. A GPU that this process does not see counts as one over `PCIe`. Makes no context
/// and enables no access: memory that is imported has its own.
///
/// # Errors
/// The driver fails, or lacks a function for this.
pub fn reach_of(context: &CudaContext, bus_id: &str) -> Result<Reach, Error> {
    match ordinal_of(bus_id)? {
        Some(to) => reach_between(context.ordinal(), to),
        None => Ok(Reach::Pcie),
    }
}

/// How a GPU reaches the memory of another, both by CUDA's ordinals. Makes no context.
///
/// # Errors
/// There is no driver, or it fails, or lacks a function for this.
pub fn reach_between(from: usize, to: usize) -> Result<Reach, Error> {
    if from == to {
        return Ok(Reach::Own);
    }
    require(Feature::PeerAccess)?;
    Ok(if !reaches(from, to) {
        Reach::None
    } else if has_atomics(from, to)? {
        Reach::Link
    } else {
        Reach::Pcie
    })
}

/// The device with a PCI bus id, if this process sees it.
fn ordinal_of(wanted: &str) -> Result<Option<usize>, Error> {
    for ordinal in 0..count()? {
        if bus_id(ordinal)?.eq_ignore_ascii_case(wanted) {
            return Ok(Some(ordinal));
        }
    }
    Ok(None)
}

fn has_atomics(from: usize, to: usize) -> Result<bool, Error> {
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut atomic = 0;
    // SAFETY: the driver writes one number to `atomic`.
    let status =
        unsafe { sys::cuDeviceGetP2PAttribute(&raw mut atomic, attribute, from as i32, to as i32) };
    checked("cuDeviceGetP2PAttribute", from, status.result())?;
    Ok(atomic != 0)
}

#[cfg(test)]
mod tests {
    use spark_ccl_testing::{Need, has};

    use super::*;

    #[test]
    fn gpus_are_found_by_their_bus_ids() {
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let own = bus_id(0).unwrap();
        assert_eq!(reach_of(&context, &own).unwrap(), Reach::Own);
        let upper = own.to_uppercase();
        assert_eq!(reach_of(&context, &upper).unwrap(), Reach::Own);
        let unseen = reach_of(&context, "ffff:ff:1f.0").unwrap();
        assert_eq!(unseen, Reach::Pcie);
    }

    #[test]
    fn other_gpus_are_not_the_own_one() {
        if !has(Need::Gpus(2)) {
            return;
        }
        let context = crate::context(0).unwrap();
        let other = reach_of(&context, &bus_id(1).unwrap()).unwrap();
        assert_ne!(other, Reach::Own);
        assert_eq!(other == Reach::None, !reaches(0, 1));
    }
}
