//! Cancels look-ups of a name for which the system's resolver never answers. A program of its own,
//! because its resolver replaces the C library's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use spark_ccl::{Cancel, Communicator};

/// How many look-ups have begun. Orders no other memory: relaxed.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// A resolver that never answers.
///
/// # Safety
/// None is needed: it uses no argument.
#[unsafe(no_mangle)]
unsafe extern "C" fn getaddrinfo(
    _node: *const c_char,
    _service: *const c_char,
    _hints: *const c_void,
    _found: *mut c_void,
) -> c_int {
    BEGUN.fetch_add(1, Ordering::Relaxed);
    loop {
        std::thread::park();
    }
}

/// A rank looks up the rendezvous' name: first for a quarter of its time, to choose its address.
#[test]
fn a_look_up_is_cancelled() {
    for last in [1, 2] {
        BEGUN.store(0, Ordering::Relaxed);
        let cancel = Cancel::new();
        let builder = Communicator::builder()
            .rank(1)
            .size(2)
            .secret("a secret of the test");
        let builder = builder.meet_at("spark.invalid", 4000).cancel_by(&cancel);
        let builder = builder.init_timeout(Duration::from_secs(8));
        let looks_up = std::thread::spawn(move || builder.from_env());
        while BEGUN.load(Ordering::Relaxed) < last && !looks_up.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        cancel.cancel();
        let error = looks_up.join().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("has cancelled it"),
            "look-up {last}: {error}"
        );
    }
}
