//! Requests cannot be used after they were given up.
use spark_ccl_verbs::Requests;

fn main() {}

fn give_up(mut requests: Requests<Vec<u8>>) {
    let _ = requests.give_up();
    let _ = requests.poll(); //~ E0382
}
