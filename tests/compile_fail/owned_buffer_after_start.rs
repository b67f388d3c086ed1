//! A started call owns its buffer until `wait` gives it back.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    let pending = comm.all_reduce_in_place(buffer, RedOp::Sum).start().unwrap();
    buffer[0] = 2.0; //~ E0382
    pending.wait().unwrap();
}
