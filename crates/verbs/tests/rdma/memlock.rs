//! Tests of the limit of locked memory. Limits belong to a process, so the test runs in a process
//! of its own.

use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use spark_ccl_verbs::Access;

use crate::ends::{memory, test_ports};

/// Marks the limited process.
const ROLE: &str = "SPARK_TEST_MEMLOCK";
const LIMIT: usize = 64 << 10;

#[test]
fn memory_beyond_the_limit_is_refused_by_name() {
    if test_ports().is_none() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "memlock::limited", "--nocapture"])
        .env(ROLE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("refused as expected"), "{said}");
}

/// The limited process; not a test by itself.
#[test]
#[ignore = "memory_beyond_the_limit_is_refused_by_name runs it, in a process of its own"]
fn limited() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (test_port, _) = test_ports().unwrap();
    let domain = test_port.context.protection_domain().unwrap();
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, own).unwrap();
    let limit = Rlimit {
        current: Some(LIMIT as u64),
        maximum: Some(LIMIT as u64),
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    let (short, long) = (memory(LIMIT / 4), memory(2 * LIMIT));
    // SAFETY: the memory stays mapped as long as the process, and nothing else accesses it.
    let (short, long) = unsafe {
        (
            domain.register(short, LIMIT / 4, Access::LOCAL_WRITE),
            domain.register(long, 2 * LIMIT, Access::LOCAL_WRITE),
        )
    };
    short.unwrap();
    let error = long.unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM), "{error}");
    let text = error.to_string();
    for words in [
        "131072 bytes",
        "limit of locked memory, which is 64 KiB",
        "`ulimit -l unlimited`",
    ] {
        assert!(text.contains(words), "{text}");
    }
    eprintln!("refused as expected: {error}");
}
