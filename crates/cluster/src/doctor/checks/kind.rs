//! The kind of machine that a host is.

use spark_ccl_topology::Host;

/// Whether a GPU shares the host's memory.
pub(super) fn shares_memory(host: &Host) -> bool {
    let mut devices = host.gpus.iter().filter_map(|gpu| gpu.cuda.as_ref());
    devices.any(|device| device.integrated)
}

/// Whether it is a DGX Spark, by any maker's name: they have this GPU in common. The driver tells
/// its name even if CUDA does not answer.
pub(super) fn is_spark(host: &Host) -> bool {
    let mut names = host.gpus.iter().filter_map(|gpu| gpu.name.as_deref());
    names.any(|name| name.contains("GB10"))
}
