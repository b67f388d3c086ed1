//! Posting memory by its address is unsafe.
use spark_ccl_verbs::{Piece, QueuePair, Remote, Request, Rts};

fn main() {}

fn post(pair: &mut QueuePair<Rts>, piece: Piece, remote: Remote) {
    let mut batch = pair.batch();
    let _ = batch.write(Request::new(1), &[piece], remote); //~ E0133
    let _ = pair.receives().receive(1, &[piece]); //~ E0133
}
