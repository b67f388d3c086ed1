//! No state can be skipped.
use spark_ccl_verbs::{Init, QueuePair, Reset, SendOptions};

fn main() {}

fn skip(reset: QueuePair<Reset>, init: QueuePair<Init>) {
    let _ = reset.ready_to_send(SendOptions::default()); //~ E0599
    let _ = init.ready_to_send(SendOptions::default()); //~ E0599
}
