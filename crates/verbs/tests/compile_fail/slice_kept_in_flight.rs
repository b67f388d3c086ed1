//! A slice of a buffer does not outlive the buffer's way into a request.
use spark_ccl_verbs::{Registered, Requests};

fn main() {}

fn receive(requests: &mut Requests<Vec<u8>>, buffer: Registered<Vec<u8>>) {
    let slice = &buffer[..4];
    let _ = requests.receive(buffer); //~ E0505
    println!("{}", slice[0]);
}
