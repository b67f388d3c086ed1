//! A buffer cannot be written while an operation of the scope sends it.
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut buffer = vec![1.0_f32; 4];
    comm.scope(|scope| {
        let _pending = comm.send(&buffer, 0).start_in(scope)?;
        buffer[0] = 2.0; //~ E0502
        Ok(())
    })
    .unwrap();
}
