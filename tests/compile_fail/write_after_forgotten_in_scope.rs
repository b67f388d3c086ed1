//! Forgetting the handle does not free the buffer before the scope ends.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    comm.scope(|scope| {
        std::mem::forget(comm.all_reduce_in_place(&mut buffer, RedOp::Sum).start_in(scope)?);
        buffer[0] = 2.0; //~ E0499
        Ok(())
    })
    .unwrap();
}
