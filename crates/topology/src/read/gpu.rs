//! The GPUs on PCI and the GPUs that NVIDIA's driver lists, with CUDA's description of each.

use std::collections::BTreeSet;

use super::{Tree, pci};
use crate::model::{CudaDevice, Gpu};

const DRIVER: &str = "proc/driver/nvidia/gpus";

pub(super) fn gpus(tree: &Tree, cuda: &[CudaDevice]) -> Vec<Gpu> {
    let functions = pci::functions(tree).into_iter();
    let of_pci = functions.filter(pci::is_gpu).map(|one| one.address);
    let of_driver = tree.names(DRIVER).into_iter();
    let of_cuda = cuda.iter().map(|device| device.bus_id.clone());
    let addresses = of_pci.chain(of_driver).chain(of_cuda);
    let addresses: BTreeSet<_> = addresses.map(|one| one.to_lowercase()).collect();
    let gpu = |bus_id: String| {
        let device = cuda.iter().find(|device| device.bus_id == bus_id);
        let about = tree.file(&format!("{DRIVER}/{bus_id}/information"));
        let model = about.as_deref().and_then(model);
        Gpu {
            name: model.or_else(|| Some(device?.name.clone())),
            cuda: device.cloned(),
            bus_id,
        }
    };
    addresses.into_iter().map(gpu).collect()
}

/// The name in a file of lines such as `Model:   NVIDIA GB10`.
fn model(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = lines.find(|(key, _)| key.trim() == "Model")?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
