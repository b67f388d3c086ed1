//! The rank that is waited for is a process that takes no part, is stopped, or is killed.

use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream};
use spark_ccl::{Communicator, Error, ExitClass};
use spark_ccl_status::ras::Wait;

use super::super::observed::Observed;
use super::super::processes::with_peer;
use super::super::stream_of;
use super::{LENS, assert_rank_0_waits_for_rank_1, gather, wait_of_rank_0};

/// In what rank 0 waits.
#[derive(Clone, Copy)]
enum Waits {
    /// A call on blocks of this many elements.
    Call(usize),
    ToReceive,
    /// More than all slots hold.
    ToSend,
}

const ALL: [Waits; 4] = [
    Waits::Call(LENS[0]),
    Waits::Call(LENS[1]),
    Waits::ToReceive,
    Waits::ToSend,
];

impl Waits {
    /// Enqueues it, on memory that is to be kept.
    fn begin(self, comm: &Communicator, stream: &Arc<CudaStream>) -> CudaSlice<u64> {
        let new = |len| stream.alloc_zeros(len).unwrap();
        match self {
            Self::Call(len) => gather(comm, stream, len),
            Self::ToReceive => {
                let mut got = new(LENS[1]);
                comm.recv(&mut got, 1).on(stream).unwrap();
                got
            }
            Self::ToSend => {
                let sent = new(1 << 20);
                comm.send(&sent, 1).on(stream).unwrap();
                sent
            }
        }
    }

    fn assert_is_told(self, observed: &Observed) {
        let start = match self {
            Self::Call(_) => return assert_rank_0_waits_for_rank_1(observed, "all_gather"),
            Self::ToReceive => "recv(",
            Self::ToSend => "send(",
        };
        let Wait { call, for_rank, .. } = wait_of_rank_0(observed);
        assert!(call.starts_with(start) && for_rank == Some(1), "{call}");
    }
}

/// The error of a call or message that waits for this process, once that is told and something was
/// done to it.
fn error_after(waits: Waits, done_to: impl Fn(&mut Child)) -> Option<Error> {
    let observed = Observed::new()?;
    let builder = observed
        .builder()
        .operation_timeout(Duration::from_secs(10));
    let (comm, mut peer) = with_peer(&builder, "stays away");
    let stream = stream_of(&comm);
    let _kept = waits.begin(&comm, &stream);
    waits.assert_is_told(&observed);
    done_to(&mut peer);
    let error = comm.wait(&stream).unwrap_err();
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert_eq!(error.ranks(), [1], "{error}");
    Some(error)
}

#[test]
fn one_that_takes_no_part_is_named() {
    for waits in ALL {
        let Some(error) = error_after(waits, |_| {}) else {
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
        // SAFETY: `kill` touches no memory, and the child was not waited for, so the number is
        // still its own.
        assert_eq!(unsafe { libc::kill(peer.id() as i32, libc::SIGSTOP) }, 0);
    };
    for waits in ALL {
        let Some(error) = error_after(waits, stop) else {
            return;
        };
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
    }
}

#[test]
fn one_that_is_killed_is_named() {
    for waits in ALL {
        let Some(error) = error_after(waits, |peer| peer.kill().unwrap()) else {
            return;
        };
        assert_eq!(error.exit_class(), ExitClass::Remote, "{error}");
    }
}
