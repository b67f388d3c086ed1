//! A call on borrowed buffers may not start without a scope: its handle could be forgotten.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    let pending = comm.all_reduce_in_place(&mut buffer, RedOp::Sum).start().unwrap(); //~ cannot keep `&mut Vec<f32>`
    pending.wait().unwrap();
}
