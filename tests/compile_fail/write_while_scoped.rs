//! A buffer cannot be written while an operation of the scope receives into it.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    comm.scope(|scope| {
        let pending = comm.all_reduce_in_place(&mut buffer, RedOp::Sum).start_in(scope)?;
        buffer[0] = 2.0; //~ E0499
        pending.wait()?;
        Ok(())
    })
    .unwrap();
}
