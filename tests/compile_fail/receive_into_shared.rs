//! Memory behind a shared reference cannot be received into.
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let buffer = vec![0_u8; 4];
    comm.recv(&buffer, 0).run().unwrap(); //~ E0277
}
