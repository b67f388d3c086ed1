//! Memory that peers write is not borrowed.
use spark_ccl_verbs::Exposed;

fn main() {}

fn borrow(exposed: &Exposed) -> &[u8] {
    &exposed[..] //~ E0608
}
