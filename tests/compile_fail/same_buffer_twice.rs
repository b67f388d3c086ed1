//! One buffer cannot be both sent and received; there are in-place calls for that.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    comm.all_reduce(&buffer, &mut buffer, RedOp::Sum).run().unwrap(); //~ E0502
}
