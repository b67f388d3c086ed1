//! Registered memory cannot be read while an operation receives into a view of it.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut memory = comm.alloc::<f32>(8).unwrap();
    comm.scope(|scope| {
        let view = memory.view_mut(0..4)?;
        let pending = comm.all_reduce_in_place(view, RedOp::Sum).start_in(scope)?;
        println!("{}", memory[7]); //~ E0502
        pending.wait()?;
        Ok(())
    })
    .unwrap();
}
