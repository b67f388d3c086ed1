//! Registered memory cannot go while an operation uses a view of it.
use spark_ccl::{Communicator, RedOp};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut memory = comm.alloc::<f32>(8).unwrap();
    comm.scope(|scope| {
        let view = memory.view_mut(0..4)?;
        let pending = comm.all_reduce_in_place(view, RedOp::Sum).start_in(scope)?;
        memory = comm.alloc(8)?; //~ E0506
        pending.wait()?;
        Ok(())
    })
    .unwrap();
}
