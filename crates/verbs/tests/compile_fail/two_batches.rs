//! A queue pair has one batch at a time, and is not destroyed meanwhile.
use spark_ccl_verbs::{QueuePair, Request, Rts};

fn main() {}

fn post(mut pair: QueuePair<Rts>) {
    let mut batch = pair.batch();
    let receives = pair.receives(); //~ E0499
    let _ = batch.send_inline(Request::new(1), b"x");
    let _ = receives.post();
    let batch = pair.batch();
    let _ = pair.destroy(); //~ E0505
    let _ = batch.post();
}
