//! A buffer belongs to its request until the request has ended.
use spark_ccl_verbs::{Registered, Remote, Requests};

fn main() {}

fn write(requests: &mut Requests<Vec<u8>>, buffer: Registered<Vec<u8>>, to: Remote) {
    let _ = requests.write(buffer, 0..8, to);
    println!("{}", buffer[0]); //~ E0382
}
