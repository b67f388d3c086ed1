//! A queue pair cannot be used under its old type after it was moved to the error state.
use spark_ccl_verbs::{QueuePair, Rts};

fn main() {}

fn post(mut pair: QueuePair<Rts>) {
    let _ = pair.into_failed();
    let _ = pair.batch().post(); //~ E0382
}
