//! A buffer in flight cannot be freed.
use spark_ccl_verbs::{Registered, Requests};

fn main() {}

fn receive(requests: &mut Requests<Vec<u8>>, buffer: Registered<Vec<u8>>) {
    let _ = requests.receive(buffer);
    drop(buffer); //~ E0382
}
