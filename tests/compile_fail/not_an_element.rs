//! Only the twelve element types can be sent, and structs as bytes.
use spark_ccl::{Communicator, RedOp, Reducer};

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    comm.send(&[String::new()], 0).run().unwrap(); //~ derive `bytemuck::Pod`, and `send_pod`
    let mut lengths = [1_usize];
    comm.recv(&mut lengths, 0).run().unwrap(); //~ elements are i8, u8, i32, u32, i64, u64, f16
    comm.alloc::<char>(4).unwrap(); //~ calls have no elements of type `char`
    let mut mean = [1.0_f32];
    let factor = Reducer::PreMulSum(0.5_f64);
    comm.all_reduce_in_place(&mut mean, factor).run().unwrap(); //~ E0277
    comm.all_reduce_in_place(&mut mean, RedOp::PreMulSum(0.5)).run().unwrap(); //~ E0599
}
