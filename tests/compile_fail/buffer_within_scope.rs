//! Buffers of a scope's operations must live outside of it, since it waits at its very end.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    comm.scope(|scope| {
        let mut buffer = vec![1.0_f32; 4];
        comm.all_reduce_in_place(&mut buffer, RedOp::Sum).start_in(scope)?; //~ E0597
        Ok(())
    })
    .unwrap();
}
