//! A queue pair in the error state takes no requests.
use spark_ccl_verbs::{QueuePair, Rts};

fn main() {}

fn post(pair: QueuePair<Rts>) {
    let mut failed = pair.into_failed().unwrap();
    failed.batch(); //~ E0599
}
