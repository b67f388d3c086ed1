//! Only the twelve element types can be sent.
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    comm.send(&[String::new()], 0).run().unwrap(); //~ E0277
}
