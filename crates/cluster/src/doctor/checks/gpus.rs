//! GPUs: whether they are seen, how network cards reach their memory, and their PCIe links.

use spark_ccl_topology::{CudaDevice, Gpu, Host};

use super::cards::narrow;
use crate::finding::Finding;

pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let answers = host.software.cuda_problem.is_none();
    let gpus = host.gpus.iter().filter(|_| answers);
    gpus.map(|gpu| check(host, gpu)).collect()
}

fn check(host: &Host, gpu: &Gpu) -> Finding {
    const ID: &str = "gpu.memory";
    let name = [host.name.as_str()];
    let label = format!("{} {}", gpu.bus_id, gpu.name.as_deref().unwrap_or("GPU"));
    let Some(device) = &gpu.cuda else {
        let seen = format!("{label} is not listed by CUDA");
        let look =
            "whether CUDA_VISIBLE_DEVICES, a job or a container hides it; nvidia-smi -L lists all";
        return Finding::unknown(ID, &name, seen, look);
    };
    let seen = format!("{label}: {}", memory(host, device));
    match narrow(host, &gpu.bus_id) {
        Some((lanes, most)) if !device.integrated => {
            let seen = format!("{seen}; {lanes} of {most} PCIe lanes");
            let look = format!(
                "whether the slot has more lanes, as those of laptops do not: lspci -vv -s {}",
                gpu.bus_id
            );
            Finding::unknown(ID, &name, seen, look)
        }
        _ => Finding::ok(ID, &name, seen),
    }
}

/// Checks how network cards reach the memory.
fn memory(host: &Host, device: &CudaDevice) -> &'static str {
    if device.integrated {
        "shares the processors' memory: network cards reach what is allocated by CUDA as host \
         memory, and no dma-buf is used"
    } else if device.dma_buf {
        "the driver claims that network cards reach its memory by dma-buf"
    } else if host.software.peermem {
        "network cards may reach its memory by nvidia_peermem, which is loaded"
    } else {
        "network cards do not reach its memory: data go through host memory"
    }
}
