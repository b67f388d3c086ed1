//! Probes the machine, independently of the code under test.

use std::error::Error;
use std::ffi::{c_int, c_uint};
use std::io::{IoSliceMut, Read, Write};
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libloading::Library;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::Need;

/// Probes one need. The error names the missing part.
pub(crate) fn of(need: Need) -> Result<(), String> {
    match need {
        Need::Avx2 => processor(&["avx2", "f16c"]),
        Need::Avx512 => processor(&["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]),
        Need::Avx512Fp16 => processor(&["avx512_fp16"]),
        Need::Cables => cables(),
        Need::Chown => chown(),
        Need::CppCompiler => program("c++"),
        Need::FakeGpuLibrary => variable("SPARK_CCL_TEST_FAKE_GPUS").map(drop),
        Need::FakeGpus => check(has_fake_gpus(), "these GPUs cannot be made to fail"),
        Need::Gpu => gpu(),
        Need::Gpus(least) => gpus(least),
        Need::Ipv6 => ipv6(),
        Need::Launchers => program("mpirun.openmpi").and_then(|()| program("mpiexec.hydra")),
        Need::LinkLocalGid => port(|gid, _| gid.starts_with("fe80:"), "a link-local GID"),
        Need::Namespaces => namespaces(),
        Need::Nccl => variable("SPARK_CCL_TEST_NCCL").map(drop),
        Need::NewestNccl => nccl(22907),
        Need::Nft => program("nft"),
        Need::NoGpus => check(gpu_count().unwrap_or(0) == 0, "there are GPUs"),
        Need::Python => program("python3"),
        Need::Rails => variable("RAILS").map(drop),
        Need::Rdma => port(is_ipv4, "an IPv4 address and RoCE v2"),
        Need::RealGpus => check(!has_fake_gpus(), "the GPUs are none"),
        Need::Rustc => rustc(),
        Need::SecretMemory => secret_memory(),
        Need::SingleCopy => single_copy(),
        Need::Sshd => sshd(),
        Need::Torch => variable("SPARK_CCL_TEST_TORCH").map(drop),
        Need::Udmabuf => std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/udmabuf")
            .map_or_else(|error| Err(format!("/dev/udmabuf: {error}")), |_| Ok(())),
        Need::Users => users(),
    }
}

fn check(holds: bool, otherwise: &str) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| otherwise.to_owned())
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}"))
}

fn program(name: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    check(is_here, &format!("{name} is not installed"))
}

fn sshd() -> Result<(), String> {
    let server = Path::new("/usr/sbin/sshd");
    check(server.exists(), "sshd is not installed").and_then(|()| program("ssh"))
}

/// The compiler named by cargo in `RUSTC`, otherwise the one on the path.
fn rustc() -> Result<(), String> {
    match std::env::var_os("RUSTC") {
        Some(path) if Path::new(&path).is_absolute() => {
            check(Path::new(&path).exists(), "RUSTC names no compiler")
        }
        _ => program("rustc"),
    }
}

fn processor(flags: &[&str]) -> Result<(), String> {
    let about = std::fs::read_to_string("/proc/cpuinfo").map_err(|error| error.to_string())?;
    let line = about.lines().find(|line| line.starts_with("flags"));
    let all: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let missing = flags.iter().find(|flag| !all.contains(flag));
    missing.map_or(Ok(()), |flag| Err(format!("the processor has no {flag}")))
}

fn chown() -> Result<(), String> {
    // Several tests of a program may probe at once.
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(format!("spark-ccl-chown-{process}-{thread:?}"));
    let file = std::fs::File::create_new(&path).map_err(|error| error.to_string())?;
    let given = std::os::unix::fs::fchown(&file, Some(65534), None);
    let _ = std::fs::remove_file(&path);
    given.map_err(|error| format!("chown: {error}"))
}

fn users() -> Result<(), String> {
    let outcome = Command::new("true").uid(1).gid(1).status();
    outcome.map_or_else(|error| Err(format!("setuid: {error}")), |_| Ok(()))
}

fn ipv6() -> Result<(), String> {
    let bound = TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    bound.map_or_else(|error| Err(format!("::1: {error}")), |_| Ok(()))
}

fn namespaces() -> Result<(), String> {
    let mut command = Command::new("unshare");
    let made = command.args(["--net", "--mount", "ip", "link", "add", "type", "veth"]);
    let output = made.output().map_err(|error| format!("unshare: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    check(
        output.status.success(),
        &format!("unshare --net --mount: {said}"),
    )
}

fn secret_memory() -> Result<(), String> {
    // SAFETY: memfd_secret takes only flags, touches no memory of this process, and returns a new
    // descriptor or -1.
    let outcome = unsafe { nix::libc::syscall(nix::libc::SYS_memfd_secret, 0) };
    let descriptor = Errno::result(outcome).map_err(|error| format!("memfd_secret: {error}"))?;
    nix::unistd::close(descriptor as i32).map_err(|error| error.to_string())
}

/// Reads a byte of a child process's memory, as ranks read each other's.
fn single_copy() -> Result<(), String> {
    let mut command = Command::new("cat");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let pid = child.id();
    // Its answer proves that it has started. During exec, the kernel still moves the stack.
    let (orders, answers) = (child.stdin.take(), child.stdout.take());
    orders.as_ref().unwrap().write_all(b"?").unwrap();
    answers.unwrap().read_exact(&mut [0]).unwrap();
    let copied = std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(|error| error.to_string())
        .and_then(|maps| {
            let start = maps.split('-').next().unwrap_or_default();
            let base = usize::from_str_radix(start, 16).map_err(|error| error.to_string())?;
            let (mut byte, from) = ([0], [RemoteIoVec { base, len: 1 }]);
            process_vm_readv(
                Pid::from_raw(pid.cast_signed()),
                &mut [IoSliceMut::new(&mut byte)],
                &from,
            )
            .map_err(|error| format!("process_vm_readv: {error}"))
        });
    child.kill().and_then(|()| child.wait()).unwrap();
    copied.map(drop)
}

fn cables() -> Result<(), String> {
    let layout = variable("RAILS")?;
    check(layout != "one", "RAILS=one has no cables")
}

/// Whether there is an active RDMA port with a GID that fits, together with its type.
fn port(fits: impl Fn(&str, &str) -> bool, what: &str) -> Result<(), String> {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let devices = std::fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten();
    let fitting = devices.flatten().any(|device| {
        let port = device.path().join("ports/1");
        read(port.join("state")).contains("ACTIVE")
            && (0..256).any(|index| {
                let gid = read(port.join(format!("gids/{index}")));
                let kind = read(port.join(format!("gid_attrs/types/{index}")));
                !kind.is_empty() && fits(&gid, &kind)
            })
    });
    check(fitting, &format!("no active RDMA port with {what}"))
}

fn is_ipv4(gid: &str, kind: &str) -> bool {
    gid.starts_with("0000:0000:0000:0000:0000:ffff:") && kind.trim() == "RoCE v2"
}

fn has_fake_gpus() -> bool {
    std::env::var_os("FAKE_GPUS").is_some()
}

fn gpu() -> Result<(), String> {
    check(!has_fake_gpus(), "the GPUs are none")?;
    check(gpu_count()? > 0, "there are no GPUs")
}

fn gpus(least: usize) -> Result<(), String> {
    let count = gpu_count()?;
    check(
        count >= least,
        &format!("{count} GPUs, but {least} are needed"),
    )?;
    nccl(21800)
}

/// The number of GPUs that CUDA's driver finds.
fn gpu_count() -> Result<usize, String> {
    // The error itself only says that dlopen failed.
    let explained = |error: libloading::Error| match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    let failed = |call: &str, code: c_int| format!("{call}: CUDA's error {code}");
    // SAFETY: the library's initialisers only set up its own state. The functions' types are those
    // in cuda.h, `count` is a live local, and the library is leaked, so that its functions stay
    // loaded.
    unsafe {
        // Leaked, since drivers start threads, which must not outlive their code.
        let library = Box::leak(Box::new(Library::new("libcuda.so.1").map_err(explained)?));
        let init = library.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0");
        let code = init.map_err(explained)?(0);
        check(code == 0, &failed("cuInit", code))?;
        let of = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount\0");
        let mut count = 0;
        let code = of.map_err(explained)?(&raw mut count);
        check(code == 0, &failed("cuDeviceGetCount", code))?;
        Ok(count.unsigned_abs() as usize)
    }
}

/// An NCCL of this version or newer: named by `SPARK_CCL_NCCL_LIBRARY`, or found by the system's
/// loader.
fn nccl(oldest: c_int) -> Result<(), String> {
    let named = std::env::var_os("SPARK_CCL_NCCL_LIBRARY").map(PathBuf::from);
    let candidates = match named {
        Some(folder) if folder.is_dir() => ["", "lib", "nvidia/nccl/lib"]
            .map(|inner| folder.join(inner).join("libnccl.so.2"))
            .to_vec(),
        Some(path) => vec![path],
        None => ["libnccl.so.2", "libnccl.so"].map(PathBuf::from).to_vec(),
    };
    let version = candidates.iter().find_map(nccl_version);
    match version {
        None => Err("libnccl.so.2 is not found".to_owned()),
        Some(version) => check(version >= oldest, &format!("NCCL {version} is too old")),
    }
}

fn nccl_version(path: &PathBuf) -> Option<c_int> {
    let mut version = 0;
    // SAFETY: the library's initialisers only set up its own state. The function's type is that in
    // nccl.h, `version` is a live local, and the library is leaked, so that its function stays
    // loaded.
    let code = unsafe {
        let library = Box::leak(Box::new(Library::new(path).ok()?));
        let of = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0");
        of.ok()?(&raw mut version)
    };
    (code == 0).then_some(version)
}
