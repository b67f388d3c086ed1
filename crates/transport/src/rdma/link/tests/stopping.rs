//! A device that cannot be stopped, simulated by the stand-in for libibverbs.

use spark_ccl_verbs::testing;

use crate::LinkError;
use crate::rdma::link::core::{Core, Destination};
use crate::rdma::link::cost::alone;
use crate::rdma::link::immediate::Immediate;
use crate::rdma::link::lent::Lent;
use crate::rdma::link::slots::{HEADER_BYTES, Header};

/// An end with a posted read that its device never completes, and a queue pair that cannot be
/// destroyed.
fn reading_without_end() -> Core {
    let mut core = alone();
    let number = 1;
    let lent = Lent {
        address: 1 << 20,
        bytes: 40_000,
        keys: vec![7],
    };
    let bytes = lent.encode();
    let header = Header {
        tag: 7,
        number,
        is_lent: true,
    };
    let slot = core.incoming().payload(number);
    // SAFETY: `bytes` fits into the slot. The stand-in accesses no memory, so nothing else accesses
    // the slot or its header.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot, bytes.len());
        core.incoming().write_header(header);
    }
    let arrival = Immediate::Message {
        number: number as u32,
    };
    core.inject(arrival, (HEADER_BYTES + bytes.len()) as u32);
    testing::hold(true);
    assert!(core.read_lent(Destination::Slots).unwrap().is_none());
    testing::hold(false);
    testing::keep_pairs(libc::EIO);
    core
}

fn assert_out_of_control(core: &Core, problem: &str) {
    testing::keep_pairs(0);
    let Some(LinkError::Rdma { problem: text, .. }) = core.failed() else {
        panic!("{:?}", core.failed());
    };
    for words in [problem, "ibv_destroy_qp", "may still write"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(core.registry().is_out_of_control());
}

#[test]
fn a_rail_that_cannot_be_stopped_ends_the_link() {
    let mut core = reading_without_end();
    core.drop_rail(0, "the cable is cut".to_owned());
    assert_out_of_control(&core, "the cable is cut");
    assert!(core.poll().is_err());
}

#[test]
fn a_link_that_is_given_up_says_when_it_cannot_be_stopped() {
    let mut core = reading_without_end();
    core.abandon();
    assert_out_of_control(&core, "given up");
}

#[test]
fn a_queue_pair_that_is_destroyed_is_no_danger() {
    let mut core = reading_without_end();
    testing::keep_pairs(0);
    core.abandon();
    assert!(matches!(core.failed(), Some(LinkError::Closed)));
    assert!(!core.registry().is_out_of_control());
}
