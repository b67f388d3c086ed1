//! Booleans have invalid bit patterns, so they cannot be received.
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut flags = [true; 4];
    comm.recv(&mut flags, 0).run().unwrap(); //~ a call cannot write to `&mut [bool; 4]`
}
