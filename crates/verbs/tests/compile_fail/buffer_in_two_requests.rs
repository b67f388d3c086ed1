//! A buffer cannot be in two requests at once.
use spark_ccl_verbs::{Registered, Requests};

fn main() {}

fn receive_twice(requests: &mut Requests<Vec<u8>>, buffer: Registered<Vec<u8>>) {
    let _ = requests.receive(buffer);
    let _ = requests.receive(buffer); //~ E0382
}
