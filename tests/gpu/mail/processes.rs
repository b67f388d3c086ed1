//! Messages between processes, each with a thread of its own that moves slots.

use std::time::Duration;

use super::super::processes::{SHORT, value, with_peer};
use super::super::{builder, gpus, stream_of};

/// It makes no call on device memory before it receives.
#[test]
fn a_short_message_completes_while_its_receiver_does_nothing() {
    let Some(_gpus) = gpus(2) else { return };
    let builder = builder()
        .set("SPARK_CCL_GPU_PROTOCOL", "slots")
        .operation_timeout(Duration::from_secs(10));
    let (comm, mut peer) = with_peer(&builder, "receives late");
    let (stream, mut sent) = (stream_of(&comm), comm.alloc_device(SHORT).unwrap());
    let values: Vec<u32> = (0..SHORT).map(|place| value(0, place)).collect();
    sent.write(&values).unwrap();
    comm.send(&sent, 1).on(&stream).unwrap();
    comm.wait(&stream).unwrap();
    comm.barrier().run().unwrap();
    drop(sent);
    comm.finalize().unwrap();
    drop(comm);
    assert!(peer.wait().unwrap().success());
}
