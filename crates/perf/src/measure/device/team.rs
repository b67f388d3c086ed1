//! The GPUs of a thread, and the information about those of all threads.

use serde::{Deserialize, Serialize};
use spark_ccl::cuda::devices;
use spark_ccl::{Backend, Builder, Communicator, DType, Element, GpuLayout};
use spark_ccl_console::notation::size::human;

use super::gpu::Gpu;
use super::gpus::Gpus;
use super::placement;
use super::runner::GpuRunner;
use crate::cli::options::{Options, Registered};
use crate::error::Error;
use crate::limits::{GPU, MemoryLimit};
use crate::measure::bench::{Bench, Platform};
use crate::measure::nccl;
use crate::ranks::hosts::share;
use crate::report::Device;

/// GPU memory is allocated in multiples of this.
const PIECE: u64 = 2 << 20;
/// The size of the largest element.
const LARGEST_ELEMENT: u64 = 8;

/// The GPUs of a thread, by backend, and the information about the GPUs of all threads.
pub(crate) struct Team<'a> {
    control: &'a Communicator,
    backends: Vec<Gpus>,
    nccl_version: Option<String>,
    devices: Vec<Device>,
    limits: Vec<Vec<MemoryLimit>>,
    float8: bool,
    allocated: bool,
}

/// A thread's report about one of its GPUs.
#[derive(Debug, Serialize, Deserialize)]
struct GpuInfo {
    pid: u32,
    ordinal: usize,
    bus: String,
    name: String,
    free: u64,
    float8: bool,
}

impl<'a> Team<'a> {
    /// Creates communicators for `each` GPUs of every thread of `control`, those of each builder on
    /// the same GPUs; a collective call.
    pub(crate) fn connect(
        control: &'a Communicator,
        builders: &[(Backend, Builder)],
        each: usize,
        options: &Options,
    ) -> Result<Self, Error> {
        let ordinals = placement::own(control, each, options.backends)?;
        let backends: Vec<_> = builders
            .iter()
            .map(|(backend, builder)| Gpus::connect(control, builder, &ordinals, options, *backend))
            .collect::<Result<_, Error>>()?;
        let has_nccl = options.backends.contains(&Backend::Nccl);
        let nccl_version = has_nccl.then(nccl::version).transpose()?;
        let infos = share(control, &infos(&backends[0].all, nccl_version.as_deref())?)?;
        let hosts = (0..control.size()).map(|thread| Ok(control.peer(thread)?.host));
        let hosts = hosts.collect::<Result<Vec<_>, Error>>()?;
        let of_ranks = || {
            let threads = hosts.iter().zip(&infos);
            threads.flat_map(|(host, infos)| infos.iter().map(move |info| (host, info)))
        };
        Ok(Self {
            control,
            backends,
            nccl_version,
            float8: of_ranks().all(|(_, info)| info.float8),
            devices: of_ranks().enumerate().map(device).collect(),
            limits: of_ranks().map(limit).collect(),
            allocated: false,
        })
    }

    /// Our own kernels for the collective, and the layout that is their key in the tuning file.
    pub(crate) fn kernels(&self, options: &Options) -> Option<(GpuLayout, Vec<&'static str>)> {
        let gpu = self.backends.first()?.all.first()?;
        gpu.comm.device_kernels(options.collective.operation())
    }

    /// How each backend does a call of this size, if that is this library's choice.
    fn choices(&self, options: &Options, size: u64) -> Vec<String> {
        let (collective, dtype) = (options.collective, options.dtypes[0]);
        let layout = collective.layout(size, dtype.size(), self.devices.len());
        let choices = self.backends.iter().filter_map(|gpus| {
            let comm = &gpus.all.first()?.comm;
            let choice = comm.explain_device(collective.operation(), dtype, layout.count)?;
            Some(format!("# {} for {}: {choice}", gpus.backend, human(size)))
        });
        choices.collect()
    }
}

impl Platform for Team<'_> {
    fn ranks(&self) -> usize {
        self.devices.len()
    }

    fn name(&self) -> String {
        let names = self.backends.iter().map(|gpus| gpus.backend.to_string());
        format!("{} on GPUs", names.collect::<Vec<_>>().join(" and "))
    }

    fn memory(&self, options: &Options) -> &'static str {
        match options.registration {
            Registered::No => "device",
            Registered::Local => "device, registered",
            Registered::Symmetric => "device, symmetric windows",
        }
    }

    fn nccl_version(&self) -> Option<&str> {
        self.nccl_version.as_deref()
    }

    fn supports(&self, dtype: DType) -> bool {
        self.float8 || !matches!(dtype, DType::F8E4M3 | DType::F8E5M2)
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn lines(&self, options: &Options, sizes: &[u64]) -> Result<Vec<String>, Error> {
        let backends = self.backends.iter().map(|gpus| {
            let path = gpus.all.first().and_then(|gpu| gpu.comm.device_path());
            let kernels = path.map(|path| format!(" (kernels of our own; {path})"));
            format!("{}{}", gpus.backend, kernels.unwrap_or_default())
        });
        let backends: Vec<_> = backends.collect();
        let mut lines = vec![format!(
            "# Backend: {}; memory: {}",
            backends.join(", "),
            self.memory(options)
        )];
        if let [first, second] = options.backends {
            lines.push(format!(
                "# ratio: time of {second} / time of {first}; above 1, {first} is faster"
            ));
        }
        lines.extend(sizes.iter().flat_map(|&size| self.choices(options, size)));
        Ok(lines)
    }

    fn limits(&self) -> &[Vec<MemoryLimit>] {
        &self.limits
    }

    fn need(&self, options: &Options, size: u64) -> u64 {
        bytes(options, size)
            .next_multiple_of(PIECE)
            .saturating_mul(2 * self.backends.len() as u64)
    }

    fn taken(&self) -> Vec<(Backend, u64)> {
        let backends = self.backends.iter();
        backends.map(|gpus| (gpus.backend, gpus.taken)).collect()
    }

    fn measure<T: Element>(&mut self, bench: &mut Bench<'_>) -> Result<(), Error> {
        let (control, options) = (self.control, bench.options);
        if !self.allocated {
            let bytes = bytes(options, options.sweep.last()) as usize;
            let mut backends = self.backends.iter_mut();
            backends.try_for_each(|gpus| gpus.allocate(control, options, bytes))?;
            self.allocated = true;
        }
        let runner = |gpus| GpuRunner {
            control,
            options,
            gpus,
        };
        let mut runners: Vec<_> = self.backends.iter_mut().map(runner).collect();
        bench.sweeps::<T>(&mut runners)
    }
}

/// The bytes of a buffer if the largest size is `size`, for any element type.
fn bytes(options: &Options, size: u64) -> u64 {
    let bytes = size.saturating_add(options.unalign as u64 * LARGEST_ELEMENT);
    bytes.checked_next_multiple_of(PIECE).unwrap_or(bytes)
}

fn infos(gpus: &[Gpu], nccl_version: Option<&str>) -> Result<Vec<GpuInfo>, Error> {
    let devices = devices()?;
    let info = |gpu: &Gpu| {
        let device = devices.get(gpu.ordinal());
        Ok(GpuInfo {
            pid: std::process::id(),
            ordinal: gpu.ordinal(),
            bus: device.map_or_else(String::new, |device| device.bus_id.clone()),
            name: device.map_or_else(String::new, |device| device.name.clone()),
            free: gpu.free()?,
            float8: match nccl_version {
                Some(version) => nccl::reduces_float8(version, gpu.generation()?),
                None => true,
            },
        })
    };
    gpus.iter().map(info).collect()
}

/// The header's line for a rank.
fn device((rank, (host, info)): (usize, (&String, &GpuInfo))) -> Device {
    // Without the PCI function, which is always 0.
    let (place, _) = info.bus.split_once('.').unwrap_or((&info.bus, ""));
    Device {
        rank,
        pid: info.pid,
        host: host.clone(),
        index: info.ordinal,
        bus: place.to_owned(),
        name: info.name.clone(),
    }
}

fn limit((host, info): (&String, &GpuInfo)) -> Vec<MemoryLimit> {
    vec![MemoryLimit {
        name: format!("{GPU} {} of {host}", info.bus),
        bytes: info.free,
    }]
}
