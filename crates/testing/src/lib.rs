//! Test support that several crates share. Only tests depend on it; it is not shipped.
//!
//! Some tests need something that not every machine has. They ask [`has`], and return if it is
//! missing. The test harness counts such a test as passed, so the skip is reported on standard
//! error, and in the file named by `SPARK_CCL_TEST_SKIPPED`, which `tests/run.sh` lists.
//! `SPARK_CCL_TEST_REQUIRE` is a comma-separated list of [`Need::word`]s that the machine must
//! have: if one of them is missing, the test fails.
//!
//! The machine is probed independently of the code under test, whose failure must never skip a
//! test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dma_buf;
mod events;
mod float_mode;
mod fuzz;
mod help;
mod library;
mod patience;
mod port;
mod probe;
mod sleeper;

use std::fs::OpenOptions;
use std::io::Write;

pub use dma_buf::dma_buf;
pub use events::hearing;
pub use float_mode::FloatMode;
pub use fuzz::{Target, fuzz};
pub use help::fits_a_terminal;
pub use library::build_library;
pub use patience::with_enough_time;
pub use port::free_port;
pub use sleeper::Sleeper;

const REQUIRE: &str = "SPARK_CCL_TEST_REQUIRE";
const SKIPPED: &str = "SPARK_CCL_TEST_SKIPPED";

/// A test's need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A processor with AVX2 and F16C.
    Avx2,
    /// A processor with the AVX-512 extensions that the kernels use.
    Avx512,
    /// A processor with AVX-512's half-precision arithmetic.
    Avx512Fp16,
    /// Links between the RDMA ports of the emulated machine that the test may cut.
    Cables,
    /// The permission to give files to other users.
    Chown,
    /// A C++ compiler, `c++`.
    CppCompiler,
    /// The folder of a library of fake GPUs, in `SPARK_CCL_TEST_FAKE_GPUS`, for programs that a
    /// test starts.
    FakeGpuLibrary,
    /// Fake GPUs, which can be made to fail (`crates/perf/tests/fake_gpu`).
    FakeGpus,
    /// A real GPU; NCCL is not needed.
    Gpu,
    /// At least this many GPUs, and NCCL.
    Gpus(usize),
    /// IPv6's loopback address.
    Ipv6,
    /// The launchers of Open MPI and of MPICH.
    Launchers,
    /// An RDMA port with a link-local address.
    LinkLocalGid,
    /// The permission to create network and mount namespaces, which a chroot lacks, and the command
    /// `ip`.
    Namespaces,
    /// NVIDIA's own libraries, fetched by `tests/nccl.sh`.
    Nccl,
    /// An NCCL with every function in use: 2.29.7 or newer.
    NewestNccl,
    /// The command `nft`, which sets the rules of a firewall.
    Nft,
    /// A machine where CUDA's driver finds no GPU.
    NoGpus,
    /// The command `python3`.
    Python,
    /// The RDMA ports of the emulated machine, and its command `rails`.
    Rails,
    /// An RDMA port that is up, with an IPv4 address and `RoCEv2`.
    Rdma,
    /// Real GPUs.
    RealGpus,
    /// A Rust compiler.
    Rustc,
    /// A kernel with memory that no other process can read (`memfd_secret`).
    SecretMemory,
    /// A kernel that lets a process read another process's memory.
    SingleCopy,
    /// OpenSSH's server and client.
    Sshd,
    /// A Python with PyTorch, named by `SPARK_CCL_TEST_TORCH`.
    Torch,
    /// A kernel that makes dma-bufs from a process's memory (`udmabuf`).
    Udmabuf,
    /// The permission to run programs as other users.
    Users,
}

impl Need {
    const ALL: [Self; 29] = [
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Fp16,
        Self::Cables,
        Self::Chown,
        Self::CppCompiler,
        Self::FakeGpuLibrary,
        Self::FakeGpus,
        Self::Gpu,
        Self::Gpus(1),
        Self::Ipv6,
        Self::Launchers,
        Self::LinkLocalGid,
        Self::Namespaces,
        Self::Nccl,
        Self::NewestNccl,
        Self::Nft,
        Self::NoGpus,
        Self::Python,
        Self::Rails,
        Self::Rdma,
        Self::RealGpus,
        Self::Rustc,
        Self::SecretMemory,
        Self::SingleCopy,
        Self::Sshd,
        Self::Torch,
        Self::Udmabuf,
        Self::Users,
    ];

    /// Its name in `SPARK_CCL_TEST_REQUIRE`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Fp16 => "avx512fp16",
            Self::Cables => "cables",
            Self::Chown => "chown",
            Self::CppCompiler => "c++",
            Self::FakeGpuLibrary => "fake-gpu-library",
            Self::FakeGpus => "fake-gpus",
            Self::Gpu => "gpu",
            Self::Gpus(_) => "gpus",
            Self::Ipv6 => "ipv6",
            Self::Launchers => "launchers",
            Self::LinkLocalGid => "link-local-gid",
            Self::Namespaces => "namespaces",
            Self::Nccl => "nccl",
            Self::NewestNccl => "newest-nccl",
            Self::Nft => "nft",
            Self::NoGpus => "no-gpus",
            Self::Python => "python",
            Self::Rails => "rails",
            Self::Rdma => "rdma",
            Self::RealGpus => "real-gpus",
            Self::Rustc => "rustc",
            Self::SecretMemory => "secret-memory",
            Self::SingleCopy => "single-copy",
            Self::Sshd => "sshd",
            Self::Torch => "torch",
            Self::Udmabuf => "udmabuf",
            Self::Users => "users",
        }
    }
}

/// Whether the machine meets the need. If not, the test is reported as skipped.
///
/// # Panics
///
/// If the machine does not have it, and `SPARK_CCL_TEST_REQUIRE` lists it.
#[must_use]
pub fn has(need: Need) -> bool {
    found(need, probe::of(need)).is_some()
}

/// Like [`has`], for a need that the test has probed itself, independently of the code under test.
///
/// # Panics
///
/// If nothing was found, and `SPARK_CCL_TEST_REQUIRE` lists the need.
#[must_use]
pub fn found<T>(need: Need, probed: Result<T, String>) -> Option<T> {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    match admit(need, probed, &required) {
        Ok(found) => Some(found),
        Err(reason) => {
            note(need, &reason);
            None
        }
    }
}

/// The seed of a test's random decisions: the variable `SEED`, or else another number in each
/// process. It is printed if a test fails.
///
/// # Panics
///
/// If `SEED` is no number.
#[must_use]
pub fn seed() -> u64 {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => u64::from(std::process::id()),
    };
    println!("SEED={seed}");
    seed
}

/// A hash of two numbers, for test data: each element has a different value, so none can be
/// mistaken for another.
pub fn scramble(a: u64, b: u64) -> u64 {
    let mut x = (a << 32 ^ b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Returns the result of the probe, or the reason to skip the test. Panics if the need is required.
fn admit<T>(need: Need, probed: Result<T, String>, required: &str) -> Result<T, String> {
    let words = required.split(',').filter(|word| !word.is_empty());
    for word in words.clone() {
        let is_known = Need::ALL.iter().any(|need| need.word() == word);
        assert!(is_known, "{REQUIRE}={required}: {word:?} is no need");
    }
    probed.inspect_err(|reason| {
        let is_required = words.clone().any(|word| word == need.word());
        assert!(!is_required, "{REQUIRE}={required}, but: {reason}");
    })
}

/// Reports that this thread's test is skipped.
fn note(need: Need, reason: &str) {
    let thread = std::thread::current();
    let program = std::env::current_exe().unwrap();
    let program = program.file_stem().unwrap().to_string_lossy();
    // Without the hash that cargo appends.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let test = thread.name().unwrap_or("a test");
    let (need, reason) = (need.word(), reason.trim().replace('\n', "; "));
    let line = format!("{need}: {reason}: {program} {test}\n");
    // Written directly, since the harness captures what the print macros write.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {line}").as_bytes());
    if let Some(path) = std::env::var_os(SKIPPED) {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(required: &str) -> Result<(), String> {
        admit(Need::Ipv6, Err("no address".into()), required)
    }

    #[test]
    fn what_is_missing_is_skipped_where_it_is_not_required() {
        for required in ["", "launchers", "launchers,c++"] {
            assert_eq!(missing(required), Err("no address".into()), "{required}");
        }
        assert_eq!(admit(Need::Ipv6, Ok(7), "ipv6"), Ok(7));
    }

    #[test]
    #[should_panic(expected = "SPARK_CCL_TEST_REQUIRE=c++,ipv6, but: no address")]
    fn what_is_required_must_be_there() {
        let _ = missing("c++,ipv6");
    }

    /// Otherwise a misspelt word would require nothing.
    #[test]
    #[should_panic(expected = "\"ipv5\" is no need")]
    fn only_needs_are_required() {
        let _ = admit(Need::Ipv6, Ok(()), "ipv5");
    }
}
