//! Installed software.

use serde::{Deserialize, Serialize};

/// Driver, libraries, configuration files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Software {
    /// The version of NVIDIA's kernel driver, such as `580.95.05`.
    pub driver: Option<String>,
    /// The CUDA version of the driver.
    pub cuda: Option<String>,
    /// Why CUDA's driver does not answer.
    pub cuda_problem: Option<String>,
    /// Whether `nvidia_peermem` is loaded, through which network cards reach GPU memory without
    /// dma-buf.
    #[serde(default)]
    pub peermem: bool,
    /// CUDA's toolkits.
    pub toolkits: Vec<Library>,
    /// The NCCL libraries in the system's folders, and in those of this process's settings.
    pub nccl: Vec<Library>,
    /// The configuration files that NCCL and this library read.
    pub conf: Vec<ConfFile>,
}

/// A library or toolkit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// Where it is.
    pub path: String,
    /// Its version, such as `2.28.9`.
    pub version: Option<String>,
    /// The size of the file in bytes, which distinguishes builds of one version.
    pub bytes: u64,
}

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfFile {
    /// Where it is.
    pub path: String,
    /// Its settings: names and values.
    pub settings: Vec<(String, String)>,
}
