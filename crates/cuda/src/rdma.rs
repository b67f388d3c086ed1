//! Whether RDMA devices may read and write the memory of a GPU. Knows no RDMA devices.

use crate::Error;
use crate::device::attributes_of;

/// GPUs of this generation and later order the writes of a device that reach them. A kernel that
/// sees a flag sees all earlier writes of the same device.
const ORDERED_SINCE: i32 = 9;

/// What a GPU and its driver say about access to its memory by RDMA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaTraits {
    /// The compute capability, such as (9, 0).
    pub capability: (i32, i32),
    /// Whether the GPU shares the memory of the processors.
    pub integrated: bool,
    /// Whether the driver exports memory as dma-bufs.
    pub dma_buf: bool,
    /// Whether RDMA devices reach memory of the GPU, also from `cuMemCreate`.
    pub direct: bool,
    /// For whom their writes are ordered without a flush: 0 for nobody, 100 for the GPU that they
    /// go to, 200 for all GPUs.
    pub writes_ordering: i32,
}

/// What a GPU and its driver say about access to its memory by RDMA devices.
///
/// # Errors
/// There is no driver, or no such device.
pub fn rdma_traits(ordinal: usize) -> Result<RdmaTraits, Error> {
    use cudarc::driver::sys::CUdevice_attribute as Attribute;

    let ask = attributes_of(ordinal)?;
    // A driver that does not know an attribute promises nothing.
    let promised = |what| ask(what).unwrap_or(0);
    Ok(RdmaTraits {
        capability: (
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        integrated: ask(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        dma_buf: promised(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        direct: [
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        ]
        .into_iter()
        .all(|what| promised(what) != 0),
        writes_ordering: promised(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
    })
}

impl RdmaTraits {
    /// Why RDMA devices may not write data, and then a flag that a running kernel polls, straight
    /// into memory of this GPU. `None` if they may, as far as the driver says.
    pub fn obstacle(&self) -> Option<String> {
        let (major, minor) = self.capability;
        Some(if self.integrated {
            "the GPU shares the memory of the processors, and devices reach only theirs".to_owned()
        } else if !self.dma_buf {
            "the GPU or its driver exports no dma-bufs (needed: a data centre GPU, and the open \
             kernel modules of a driver for CUDA 11.7 or later)"
                .to_owned()
        } else if !self.direct {
            "RDMA devices do not reach mapped memory of the GPU (GPUDirect RDMA is not supported \
             there)"
                .to_owned()
        } else if major < ORDERED_SINCE {
            format!(
                "the GPU has compute capability {major}.{minor}, and before 9.0 a flag that a \
                 device writes may overtake its data"
            )
        } else if self.writes_ordering <= 0 {
            "the driver does not order what devices write into the GPU's memory".to_owned()
        } else {
            return None;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: RdmaTraits = RdmaTraits {
        capability: (9, 0),
        integrated: false,
        dma_buf: true,
        direct: true,
        writes_ordering: 100,
    };

    #[test]
    fn each_missing_trait_is_named() {
        assert_eq!(WHOLE.obstacle(), None);
        let cases = [
            (
                RdmaTraits {
                    integrated: true,
                    ..WHOLE
                },
                "shares the memory",
            ),
            (
                RdmaTraits {
                    dma_buf: false,
                    ..WHOLE
                },
                "no dma-bufs",
            ),
            (
                RdmaTraits {
                    direct: false,
                    ..WHOLE
                },
                "GPUDirect RDMA",
            ),
            (
                RdmaTraits {
                    capability: (8, 6),
                    ..WHOLE
                },
                "capability 8.6",
            ),
            (
                RdmaTraits {
                    writes_ordering: 0,
                    ..WHOLE
                },
                "does not order",
            ),
        ];
        for (traits, said) in cases {
            let obstacle = traits.obstacle().unwrap();
            assert!(obstacle.contains(said), "{obstacle}");
        }
    }
}
