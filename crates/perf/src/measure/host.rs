//! Measures in host memory, where every thread is a rank.
//!
//! `runner` has a rank's buffers, and `timing` times its calls. Knows the library's calls; knows no
//! GPU.

mod runner;
mod timing;

use runner::Memory;
use spark_ccl::{Carrier, Communicator, DType, Element, PeerLink, Registered};
use spark_ccl_console::notation::size::human;

use crate::call::collective::Layout;
use crate::cli::options::Options;
use crate::cli::values::BufferUse;
use crate::error::Error;
use crate::limits::MemoryLimit;
use crate::measure::bench::{Bench, Platform};
use crate::ranks::hosts;
use crate::report::Device;

/// The bytes of a rank's buffers if the largest size is `bytes`.
pub(crate) fn need(options: &Options, ranks: usize, bytes: u64) -> u64 {
    let of_type = |dtype: &DType| {
        let layout = options.collective.layout(bytes, dtype.size(), ranks);
        let (send, recv) = lengths(options, &layout, dtype.size());
        (send.saturating_add(recv) as u64).saturating_mul(dtype.size() as u64)
    };
    options.dtypes.iter().map(of_type).max().unwrap_or(0)
}

/// The lengths of a rank's send and receive buffer if `layout` is that of the largest size.
fn lengths(options: &Options, layout: &Layout, element: usize) -> (usize, usize) {
    let room = match options.buffers {
        Some(BufferUse::Rotating(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX) / element,
        _ => 0,
    };
    let length = |part: usize| part.max(room).saturating_add(options.unalign);
    (length(layout.send), length(layout.larger()))
}

/// This rank, and the reports of all ranks.
pub(crate) struct Host<'a> {
    comm: &'a Communicator,
    limits: Vec<Vec<MemoryLimit>>,
    devices: Vec<Device>,
}

impl<'a> Host<'a> {
    /// Collects the information of all ranks; a collective call.
    pub(crate) fn new(comm: &'a Communicator) -> Result<Self, Error> {
        let infos = hosts::exchange(comm)?;
        Ok(Self {
            comm,
            devices: hosts::devices(comm, &infos)?,
            limits: infos.into_iter().map(|info| info.limits).collect(),
        })
    }
}

/// The kinds of the links, and their ends as far as they are made.
fn kinds(links: Vec<PeerLink>) -> String {
    let says_all_of = |one: &PeerLink, other: &PeerLink| {
        let has_route = other.route.is_none() || one.route == other.route;
        one.carrier == other.carrier && one.is_far == other.is_far && has_route
    };
    let mut all: Vec<PeerLink> = Vec::new();
    for link in links {
        if link.carrier != Carrier::Own && !all.iter().any(|other| says_all_of(other, &link)) {
            all.retain(|other| !says_all_of(&link, other));
            all.push(link);
        }
    }
    if all.is_empty() {
        return "none".to_owned();
    }
    let texts: Vec<String> = all.iter().map(PeerLink::to_string).collect();
    texts.join(", ")
}

impl Platform for Host<'_> {
    fn ranks(&self) -> usize {
        self.comm.size()
    }

    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn memory(&self, options: &Options) -> &'static str {
        if options.registered {
            "registered"
        } else {
            "ordinary"
        }
    }

    fn nccl_version(&self) -> Option<&str> {
        None
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The memory and the links of the run, and the algorithm for each of the sizes.
    fn lines(&self, options: &Options, sizes: &[u64]) -> Result<Vec<String>, Error> {
        let buffers = match options.buffers {
            None => "as the last size takes, used in turn".to_owned(),
            Some(BufferUse::Hot) => "hot, the same in every call".to_owned(),
            Some(BufferUse::Rotating(bytes)) => format!("{} each, used in turn", human(bytes)),
        };
        let mut lines = vec![format!(
            "# Backend: host; memory: {}; buffers: {buffers}; links: {}",
            self.memory(options),
            kinds(self.comm.links())
        )];
        let operation = options.collective.operation();
        if !operation.has_schedule() {
            return Ok(lines);
        }
        let dtype = options.dtypes[0];
        for &size in sizes {
            let layout = options
                .collective
                .layout(size, dtype.size(), self.comm.size());
            let registered = options.registered;
            let choice = self
                .comm
                .explain(operation, dtype, layout.count, registered)?;
            lines.push(format!("# Algorithm for {}: {choice}", human(size)));
        }
        Ok(lines)
    }

    fn limits(&self) -> &[Vec<MemoryLimit>] {
        &self.limits
    }

    fn need(&self, options: &Options, bytes: u64) -> u64 {
        need(options, self.comm.size(), bytes)
    }

    fn measure<T: Element>(&mut self, bench: &mut Bench<'_>) -> Result<(), Error> {
        let (comm, options) = (self.comm, bench.options);
        if options.registered {
            bench.sweeps(&mut [Memory::<Registered<T>>::new::<T>(comm, options)?])
        } else {
            bench.sweeps(&mut [Memory::<Vec<T>>::new::<T>(comm, options)?])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_link_is_named_once() {
        let ranks = Communicator::local(2).unwrap();
        let own = ranks[0].links().swap_remove(0);
        let link = |carrier, route: Option<&str>, is_far| {
            let mut link = own.clone();
            (link.carrier, link.route, link.is_far) = (carrier, route.map(str::to_owned), is_far);
            link
        };
        let near = link(Carrier::SharedMemory, None, false);
        let far = link(Carrier::SharedMemory, None, true);
        let unmade = link(Carrier::Tcp, None, false);
        let made = link(Carrier::Tcp, Some("a -> b"), false);
        assert_eq!(kinds(vec![own]), "none");
        let links = [&near, &far, &unmade, &near, &made, &far, &unmade];
        assert_eq!(
            kinds(links.into_iter().cloned().collect()),
            "shm, shm (far), tcp a -> b"
        );
    }
}
