//! Nothing can be started in a scope that has ended.
use spark_ccl::Communicator;

fn main() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut kept = None;
    comm.scope(|scope| {
        kept = Some(scope); //~ E0521
        Ok(())
    })
    .unwrap();
}
