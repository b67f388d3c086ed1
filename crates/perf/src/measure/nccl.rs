//! The specifics of NCCL: a version, types that it reduces on newer GPUs alone, and memory that
//! it is told of.

use spark_ccl::cuda;
use spark_ccl_console::print_error;

use crate::cli::options::Options;
use crate::error::Error;
use crate::measure::header::version_code;

/// NCCL reduces float8 from this version on, on GPUs of this generation (Hopper) or later.
const FLOAT8: (u32, i32) = (22_400, 9);

/// The version of the NCCL that is used.
pub(super) fn version() -> Result<String, Error> {
    Ok(cuda::nccl_version()?)
}

/// Whether this version reduces float8 on a GPU of this generation.
pub(super) fn reduces_float8(version: &str, generation: i32) -> bool {
    version_code(version) >= FLOAT8.0 && generation >= FLOAT8.1
}

/// Reports the ranks whose registration has no effect, if there are any; `used` has an entry for
/// each rank.
pub(super) fn report_unused_registration(options: &Options, used: &[bool]) {
    if !used.contains(&false) {
        return;
    }
    let ranks = used.iter().enumerate().filter(|(_, used)| !**used);
    let ranks: Vec<_> = ranks.map(|(rank, _)| rank.to_string()).collect();
    print_error(format_args!(
        "NCCL makes no use of the registration (-R {}) of ranks {}: what follows is of ordinary \
         device memory (NCCL_DEBUG=INFO tells more)",
        options.registration as u8,
        ranks.join(", ")
    ));
}
