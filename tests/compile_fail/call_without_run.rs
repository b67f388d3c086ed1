//! A call that is not run does nothing; the compiler says so.
#![deny(unused_must_use)]
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    comm.barrier(); //~ unused
}
