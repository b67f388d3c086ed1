//! A slice of a buffer cannot be kept while a request has the buffer.
use spark_ccl_verbs::{Registered, Requests};

fn main() {}

fn receive(requests: &mut Requests<Vec<u8>>, buffer: Registered<Vec<u8>>) {
    let slice = &buffer[..4];
    let _ = requests.receive(buffer); //~ E0505
    println!("{}", slice[0]);
}
