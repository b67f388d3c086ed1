//! Both buffers of a call have the same type.
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut recv = [0_f64; 4];
    comm.all_gather(&[0_f32; 4], &mut recv).run().unwrap(); //~ E0277
}
