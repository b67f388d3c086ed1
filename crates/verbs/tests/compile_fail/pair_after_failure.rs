//! A queue pair that was moved to the error state goes by its new name only.
use spark_ccl_verbs::{QueuePair, Rts};

fn main() {}

fn post(mut pair: QueuePair<Rts>) {
    let _ = pair.into_failed();
    let _ = pair.batch().post(); //~ E0382
}
