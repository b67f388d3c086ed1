//! The errors of the driver.

use cudarc::driver::DriverError;

/// Why CUDA cannot be used, or which call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver.
    #[error(
        "CUDA's driver was not found ({reason}); it comes with NVIDIA's driver, as libcuda.so.1"
    )]
    Library {
        /// The loader's reason.
        reason: String,
    },
    /// The driver is too old, or too old for what was asked for.
    #[error(
        "CUDA's driver, which is for CUDA {version}, has no function {symbol}; install a newer one \
         (CUDA 11.4 has all)"
    )]
    Symbol {
        /// The function.
        symbol: &'static str,
        /// The version of CUDA that the driver is for.
        version: String,
    },
    /// There is a driver, but no GPU.
    #[error(
        "CUDA's driver finds no GPU; does nvidia-smi list one, and does CUDA_VISIBLE_DEVICES hide \
         it?"
    )]
    NoDevice,
    /// Memory that other processes cannot map.
    #[error(
        "device {device} or its driver has no memory that other processes can map; a driver for \
         CUDA 11 or later has, except on some virtual GPUs"
    )]
    Export {
        /// CUDA's device ordinal.
        device: usize,
    },
    /// Memory that cannot be exported as one dma-buf.
    #[error(
        "{bytes} bytes at {address:#x} are not in one allocation of device {device}, so they are \
         not exported as a dma-buf"
    )]
    Range {
        /// CUDA's device ordinal.
        device: usize,
        /// Where the memory begins.
        address: u64,
        /// How many bytes should be exported.
        bytes: usize,
    },
    /// A context that cannot be adopted.
    #[error("the context of device {device}: {problem}")]
    Context {
        /// CUDA's device ordinal.
        device: usize,
        /// The reason.
        problem: &'static str,
    },
    /// A stream that cannot be borrowed.
    #[error("a stream for device {device}: {problem}")]
    Stream {
        /// CUDA's device ordinal.
        device: usize,
        /// The reason.
        problem: &'static str,
    },
    /// Too much dropped memory waits to be freed: no more is allocated.
    #[error(
        "{bytes} bytes of pinned memory of device {device} were dropped and wait to be freed, \
         which is done while no call is in flight there; more than {most} may not wait: wait for \
         the calls that were enqueued, keep memory for later calls, or set \
         SPARK_CCL_GPU_SET_ASIDE to more"
    )]
    SetAside {
        /// CUDA's device ordinal.
        device: usize,
        /// How many bytes wait to be freed.
        bytes: usize,
        /// How many bytes may wait to be freed.
        most: usize,
    },
    /// Kernels cannot be loaded on a device.
    #[error(
        "the kernels of {name} cannot be loaded on device {device}, of compute capability \
         {capability}: {reason}; there are images for {images}"
    )]
    Kernels {
        /// The source of the kernels.
        name: &'static str,
        /// CUDA's device ordinal.
        device: usize,
        /// The device's compute capability.
        capability: String,
        /// The capabilities that the source was compiled for.
        images: String,
        /// The reason.
        reason: String,
    },
    /// A source has no kernel of this name.
    #[error("no kernel {name} in {kernels}: {error}")]
    Kernel {
        /// The kernel.
        name: String,
        /// The source of the kernels.
        kernels: &'static str,
        /// The driver's error.
        error: Box<Error>,
    },
    /// A call of the driver failed.
    #[error("{operation} on device {device}{}: {text} ({name} {code})", of(*rank))]
    Call {
        /// The rank that made the call, if any.
        rank: Option<usize>,
        /// The function.
        operation: &'static str,
        /// CUDA's device ordinal.
        device: usize,
        /// CUDA's error number.
        code: u32,
        /// The name of the error number.
        name: String,
        /// CUDA's description.
        text: String,
    },
}

impl Error {
    /// The error of an operation on a device.
    #[must_use]
    pub fn of(operation: &'static str, device: usize, error: DriverError) -> Self {
        let text = |words: Result<&std::ffi::CStr, DriverError>| {
            words.map_or_else(
                |_| "unknown error".to_owned(),
                |words| words.to_string_lossy().into_owned(),
            )
        };
        Self::Call {
            rank: None,
            operation,
            device,
            code: error.0 as u32,
            name: text(error.error_name()),
            text: text(error.error_string()),
        }
    }

    /// Whether there is not enough memory now.
    #[must_use]
    pub fn is_of_memory(&self) -> bool {
        let short = cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
        match self {
            Self::Call { code, .. } => *code == short,
            Self::SetAside { .. } => true,
            _ => false,
        }
    }

    /// Whether it is an error of a graph capture, and not of work that ran.
    #[must_use]
    pub fn is_of_a_capture(&self) -> bool {
        // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.
        matches!(
            self,
            Self::Call {
                code: 900..=908,
                ..
            }
        )
    }

    /// The same error, with the rank that made the call.
    #[must_use]
    pub fn of_rank(mut self, number: usize) -> Self {
        if let Self::Call { rank, .. } = &mut self {
            *rank = Some(number);
        }
        self
    }
}

fn of(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(" of rank {rank}"))
}

/// Adds the operation and the device to the error of a call.
///
/// # Errors
/// The call failed.
pub fn checked<T>(
    operation: &'static str,
    device: usize,
    result: Result<T, DriverError>,
) -> Result<T, Error> {
    result.map_err(|error| Error::of(operation, device, error))
}
