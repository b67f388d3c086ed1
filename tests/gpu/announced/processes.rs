//! The rank that is waited for is a process that takes no part, is stopped, or is killed.

use std::process::Child;
use std::time::Duration;

use spark_ccl::{Error, ExitClass};

use super::super::observed::Observed;
use super::super::processes::with_peer;
use super::super::stream_of;
use super::{LENS, assert_rank_0_waits_for_rank_1, gather};

/// The error of a call that waits for such a process, once that is told and something was done to
/// it.
fn error_after(len: usize, done_to: impl Fn(&mut Child)) -> Option<Error> {
    let observed = Observed::new()?;
    let builder = observed.builder().operation_timeout(Duration::from_secs(5));
    let (comm, mut peer) = with_peer(&builder, "stays away");
    let stream = stream_of(&comm);
    let _all = gather(&comm, &stream, len);
    assert_rank_0_waits_for_rank_1(&observed);
    done_to(&mut peer);
    let error = comm.wait(&stream).unwrap_err();
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert_eq!(error.ranks(), [1], "{error}");
    Some(error)
}

#[test]
fn one_that_takes_no_part_is_named() {
    for len in LENS {
        let Some(error) = error_after(len, |_| {}) else {
            return;
        };
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
        let said = error.to_string();
        assert!(said.contains("it waits for: rank 1 ("), "{said}");
    }
}

#[test]
fn one_that_is_stopped_is_named() {
    let stop = |peer: &mut Child| {
        // SAFETY: sends a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(peer.id() as i32, libc::SIGSTOP) }, 0);
    };
    for len in LENS {
        let Some(error) = error_after(len, stop) else {
            return;
        };
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
    }
}

#[test]
fn one_that_is_killed_is_named() {
    for len in LENS {
        let Some(error) = error_after(len, |peer| peer.kill().unwrap()) else {
            return;
        };
        assert_eq!(error.exit_class(), ExitClass::Remote, "{error}");
    }
}
