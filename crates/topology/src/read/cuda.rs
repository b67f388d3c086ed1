//! Asks CUDA's driver about the GPUs.

use crate::model::Cuda;

#[cfg(not(feature = "cuda"))]
pub(super) fn probe() -> Cuda {
    Cuda {
        problem: Some(crate::BUILT_WITHOUT_CUDA.to_owned()),
        ..Cuda::default()
    }
}

#[cfg(feature = "cuda")]
pub(super) fn probe() -> Cuda {
    let version = spark_ccl_cuda::driver_version().ok();
    match devices() {
        Ok(devices) => Cuda {
            version,
            devices,
            problem: None,
        },
        Err(error) => Cuda {
            version,
            devices: Vec::new(),
            problem: Some(error.to_string()),
        },
    }
}

#[cfg(feature = "cuda")]
fn devices() -> Result<Vec<crate::model::CudaDevice>, spark_ccl_cuda::Error> {
    use crate::model::{CudaDevice, GpuPeer};

    let all = spark_ccl_cuda::devices()?;
    let peers = |from: usize| {
        let others = all.iter().filter(|other| other.ordinal != from);
        let peer = |other: &spark_ccl_cuda::Device| {
            Ok(GpuPeer {
                bus_id: other.bus_id.clone(),
                reach: reach(spark_ccl_cuda::reach_between(from, other.ordinal)?),
            })
        };
        others
            .map(peer)
            .collect::<Result<_, spark_ccl_cuda::Error>>()
    };
    let device = |device: &spark_ccl_cuda::Device| {
        let traits = spark_ccl_cuda::traits(device.ordinal)?;
        Ok(CudaDevice {
            ordinal: device.ordinal,
            bus_id: device.bus_id.clone(),
            name: device.name.clone(),
            memory: device.memory as u64,
            capability: traits.capability,
            integrated: traits.integrated,
            dma_buf: traits.dma_buf,
            peers: peers(device.ordinal)?,
        })
    };
    all.iter().map(device).collect()
}

#[cfg(feature = "cuda")]
fn reach(reach: spark_ccl_cuda::Reach) -> crate::model::Reach {
    use crate::model::Reach;

    match reach {
        spark_ccl_cuda::Reach::Own | spark_ccl_cuda::Reach::Link => Reach::NvLink,
        spark_ccl_cuda::Reach::Pcie => Reach::Pcie,
        spark_ccl_cuda::Reach::None => Reach::None,
    }
}
