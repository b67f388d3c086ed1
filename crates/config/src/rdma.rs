//! The settings of RDMA links.

use std::fmt;
use std::path::PathBuf;

use crate::error::Error;
use crate::parse;
use crate::pattern::Pattern;
use crate::reader::{Reader, Used};

/// Settings of RDMA links. `docs/environment.md` explains each setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdma {
    /// The ports that may be used, by device.
    pub hcas: Hcas,
    /// The only index in a port's GID table that may be used; `None` for the one that suits the
    /// peer.
    pub gid_index: Option<GidIndex>,
    /// How long a queue pair waits for an acknowledgement before it retransmits, as an exponent
    /// from 1 to 31: 4.096 us * 2^timeout.
    pub timeout: u8,
    /// How often it retransmits before it fails, 0 to 7.
    pub retry_count: u8,
    /// The traffic class of its packets.
    pub traffic_class: u8,
    /// Queue pairs per rail of a link, at least 1.
    pub qps_per_connection: usize,
    /// The library to open; `None` for the system's libibverbs. It runs in this process: the user
    /// who sets the path vouches for the library.
    pub library: Option<PathBuf>,
}

impl Default for Rdma {
    /// NCCL's defaults, except for the timeout: with NCCL's 20, a failed rail is only given up
    /// after half a minute.
    fn default() -> Self {
        Self {
            hcas: Hcas::default(),
            gid_index: None,
            timeout: 17,
            retry_count: 7,
            traffic_class: 0,
            qps_per_connection: 1,
            library: None,
        }
    }
}

impl Rdma {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let mut rdma = Self {
            hcas: Hcas::read(reader)?,
            ..Self::default()
        };
        let names = ["SPARK_CCL_IB_GID_INDEX", "NCCL_IB_GID_INDEX"];
        // NCCL's -1 means an automatic choice.
        if let Some(taken) = reader.take(&names).filter(|taken| taken.text != "-1") {
            let index = parse::number(taken.text).and_then(|index| u8::try_from(index).ok());
            let expected = "-1 or a number from 0 to 255";
            rdma.gid_index = Some(GidIndex {
                index: index.ok_or_else(|| taken.invalid(expected))?,
                set: Used::new(taken.name, taken.value),
            });
        }
        let small = [
            (
                ["SPARK_CCL_IB_TIMEOUT", "NCCL_IB_TIMEOUT"],
                1..=31,
                &mut rdma.timeout,
            ),
            (
                ["SPARK_CCL_IB_RETRY_CNT", "NCCL_IB_RETRY_CNT"],
                0..=7,
                &mut rdma.retry_count,
            ),
            (
                ["SPARK_CCL_IB_TC", "NCCL_IB_TC"],
                0..=255,
                &mut rdma.traffic_class,
            ),
        ];
        for (names, range, field) in small {
            if let Some(number) = reader.number(&names, range)? {
                *field = number as u8;
            }
        }
        let names = [
            "SPARK_CCL_IB_QPS_PER_CONNECTION",
            "NCCL_IB_QPS_PER_CONNECTION",
        ];
        if let Some(qps) = reader.number(&names, 1..=MAX_QPS)? {
            rdma.qps_per_connection = qps;
        }
        let library = reader.take(&["SPARK_CCL_IBVERBS_LIBRARY"]);
        rdma.library = library.map(|taken| PathBuf::from(taken.text));
        Ok(rdma)
    }
}

/// NCCL's maximum.
const MAX_QPS: usize = 128;

/// The only index in a port's GID table that may be used.
///
/// It displays as the variable that was set and where, for texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidIndex {
    /// The index.
    pub index: u8,
    set: Used,
}

impl fmt::Display for GidIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (from {})", self.set.name, self.set.origin)
    }
}

/// The ports that may be used, by device, in the grammar of `NCCL_IB_HCA`.
///
/// It displays as the variable that was set and its value, for error texts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hcas {
    pattern: Pattern,
    origin: String,
}

impl Hcas {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let Some(taken) = reader.take(&["SPARK_CCL_IB_HCA", "NCCL_IB_HCA"]) else {
            return Ok(Self::default());
        };
        let pattern = Pattern::parse(taken.text);
        if !pattern.names_ports() {
            let expected =
                "devices such as mlx5_0, mlx5_0:1,mlx5_1:1, =mlx5_0, ^mlx5_2 or ^=mlx5_2";
            return Err(taken.invalid(expected));
        }
        let origin = format!("{}={}", taken.name, taken.text);
        Ok(Self { pattern, origin })
    }

    /// Whether a port of a device may be used.
    pub fn allows(&self, device: &str, port: u8) -> bool {
        self.pattern.allows(device, port)
    }
}

impl fmt::Display for Hcas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.origin.is_empty() {
            "all devices"
        } else {
            &self.origin
        })
    }
}
