//! The version of NCCL that this library claims to be, and the log line by which tools and people
//! tell this library from NCCL.

use std::ffi::{CString, c_char, c_int};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use spark_ccl::Communicator;
use spark_ccl_abi::failure::Failure;

/// The version of NCCL whose functions the library has. Users choose by it which functions to call.
const VERSION: c_int = 23203;
/// The variable that sets another version.
const VARIABLE: &str = "SPARK_CCL_NCCL_VERSION";
/// Versions are numbers of this form since 2.9.
const KNOWN: std::ops::Range<c_int> = 2_00_00..10_00_00;

/// The version that `ncclGetVersion` returns.
pub(crate) fn version() -> Result<c_int, Failure> {
    let builder = Communicator::builder();
    let Some(text) = builder.get(VARIABLE) else {
        return Ok(VERSION);
    };
    let number = text.trim().parse().ok();
    number
        .filter(|number| KNOWN.contains(number))
        .ok_or_else(|| {
            Failure::invalid(format!(
                "{VARIABLE} is {text:?}, which is no version of NCCL: write 22703 for 2.27.3"
            ))
        })
}

/// The build of this library, as text. NCCL does not have this function: a program that finds it
/// beside the functions that it calls, as `spark_ccl.torch` does, knows whose they are.
#[unsafe(no_mangle)]
extern "C" fn spark_nccl_version() -> *const c_char {
    static TEXT: LazyLock<CString> =
        LazyLock::new(|| CString::new(spark_ccl::VERSION).unwrap_or_default());
    TEXT.as_ptr()
}

/// Says once, in the log, which library this is. Events of this module are logged from
/// `NCCL_DEBUG=VERSION` on.
pub(crate) fn say() {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    // Pairs with nothing: it only decides which thread logs.
    if IS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let told = version().unwrap_or(VERSION);
    let (major, minor, patch) = (told / 10_000, told / 100 % 100, told % 100);
    spark_ccl_log::info!(
        "NCCL version {major}.{minor}.{patch} (spark-ccl {})",
        spark_ccl::VERSION
    );
}
