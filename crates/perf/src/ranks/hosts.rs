//! Information about all ranks, which they exchange once at the start.

use std::fs;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spark_ccl::{Communicator, Element, RedOp};

use crate::error::Error;
use crate::limits::{self, MemoryLimit};
use crate::report::{Device, NO_BUS};

/// A rank's report about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RankInfo {
    pid: u32,
    cpu: String,
    /// The limits on its memory.
    pub(crate) limits: Vec<MemoryLimit>,
}

/// The information of all ranks, in rank order.
pub(crate) fn exchange(comm: &Communicator) -> Result<Vec<RankInfo>, Error> {
    let own = RankInfo {
        pid: std::process::id(),
        cpu: cpu(),
        limits: limits::here(),
    };
    share(comm, &own)
}

/// Reduces all ranks' values; every rank gets the result. Collective. Works under any
/// `SPARK_CCL_PATH`.
pub(crate) fn reduce<T: Element>(
    comm: &Communicator,
    values: &mut [T],
    op: RedOp,
) -> Result<(), Error> {
    comm.all_reduce_in_place(values, op).by_any_path().run()?;
    Ok(())
}

/// The value of every rank, in rank order; a collective call.
pub(crate) fn share<T: Serialize + DeserializeOwned>(
    comm: &Communicator,
    own: &T,
) -> Result<Vec<T>, Error> {
    let text = serde_json::to_vec(own).map_err(Error::system("describing this rank"))?;
    let mut width = vec![text.len() as u64];
    reduce(comm, &mut width, RedOp::Max)?;
    let width = width[0] as usize;
    let mut block = text;
    block.resize(width, b' ');
    let mut all = vec![0; width * comm.size()];
    comm.all_gather(&block, &mut all).by_any_path().run()?;
    all.chunks(width)
        .map(|text| {
            serde_json::from_slice(text)
                .map_err(Error::system("reading another rank's description"))
        })
        .collect()
}

/// The numbers of dropped rails, and of rails that returned, on all links. Both ends of a link
/// count each event.
pub(crate) fn rails(comm: &Communicator) -> Result<(u64, u64), Error> {
    let mut counts = vec![0; 2];
    for rails in comm.rails() {
        counts[0] += rails.dropped;
        counts[1] += rails.returned;
    }
    reduce(comm, &mut counts, RedOp::Sum)?;
    Ok((counts[0].div_ceil(2), counts[1] / 2))
}

/// The header's lines for all ranks.
pub(crate) fn devices(comm: &Communicator, infos: &[RankInfo]) -> Result<Vec<Device>, Error> {
    let mut devices: Vec<Device> = Vec::new();
    for (rank, info) in infos.iter().enumerate() {
        let host = comm.peer(rank)?.host;
        let index = devices.iter().filter(|device| device.host == host).count();
        devices.push(Device {
            rank,
            pid: info.pid,
            host,
            index,
            bus: NO_BUS.to_owned(),
            name: info.cpu.clone(),
        });
    }
    Ok(devices)
}

/// The processor's name, or its architecture.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim());
    format!("{} (host memory)", model.unwrap_or(std::env::consts::ARCH))
}
