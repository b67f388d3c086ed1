//! Inline data must live until the post.
use spark_ccl_verbs::{QueuePair, Remote, Request, Rts};

fn main() {}

fn post(pair: &mut QueuePair<Rts>, remote: Remote) {
    let data = vec![1_u8; 8];
    let mut batch = pair.batch();
    let _ = batch.write_inline(Request::new(1), &data, remote);
    drop(data); //~ E0505
    let _ = batch.post();
}
