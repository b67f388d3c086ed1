//! A queue pair that is not ready to send takes no batch, and one without a port no receives.
use spark_ccl_verbs::{Init, QueuePair, Reset, Rtr};

fn main() {}

fn post(mut reset: QueuePair<Reset>, mut init: QueuePair<Init>, mut rtr: QueuePair<Rtr>) {
    reset.receives(); //~ E0599
    init.batch(); //~ E0599
    rtr.batch(); //~ E0599
}
