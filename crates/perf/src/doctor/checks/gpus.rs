//! GPUs: whether they are seen, how network cards reach their memory, and their PCIe links.

use spark_ccl_topology::{Gpu, Host};

use super::cards::narrow;
use crate::doctor::finding::{Finding, Problem};

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
        return Finding::warn(
            ID,
            &name,
            Problem {
                seen: format!("{label} is not listed by CUDA"),
                wanted: "all GPUs listed".to_owned(),
                why: "ranks cannot use it".to_owned(),
                fix: "unset CUDA_VISIBLE_DEVICES; nvidia-smi -L".to_owned(),
            },
        );
    };
    if let Some(narrow) = narrow(host, &gpu.bus_id)
        && !device.integrated
    {
        return Finding::warn(
            ID,
            &name,
            Problem {
                seen: format!("{label}: {} PCIe lanes", narrow.0),
                wanted: format!("{} lanes", narrow.1),
                why: "data from and to the host move at a part of the speed".to_owned(),
                fix: "seat the card anew, then: lspci -vv -s ".to_owned() + &gpu.bus_id,
            },
        );
    }
    let memory = if device.integrated {
        "shares the processors' memory: network cards reach what is allocated by CUDA as host memory, and no dma-buf is used"
    } else if device.dma_buf {
        "the driver claims that network cards reach its memory by dma-buf"
    } else {
        "network cards do not reach its memory: data go through host memory"
    };
    Finding::ok(ID, &name, format!("{label}: {memory}"))
}
