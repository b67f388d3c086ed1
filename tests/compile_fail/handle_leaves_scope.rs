//! A handle of a scope cannot leave it.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    let pending = comm
        .scope(|scope| comm.all_reduce_in_place(&mut buffer, RedOp::Sum).start_in(scope)) //~ lifetime may not live long enough
        .unwrap();
    pending.wait().unwrap();
}
