//! Reading the library's errors when a program keeps them among errors of all kinds.

use std::error::Error as StdError;
use std::fmt;

use spark_ccl::{Communicator, Error, Fault, RedOp};

use super::ranks::{each, run};

/// A wrapper that programs put around errors, like `anyhow`'s.
#[derive(Debug)]
struct Context(Box<dyn StdError + Send + Sync>);

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gradients of layer 3")
    }
}

impl StdError for Context {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Starts and awaits a call in a function that does not name its error type.
fn step(comm: &Communicator, count: usize) -> Result<Vec<f32>, Context> {
    let wait = || -> Result<_, Box<dyn StdError + Send + Sync>> {
        let call = comm.all_reduce_in_place(vec![1.0; count], RedOp::Sum);
        Ok(call.start()?.wait()?)
    };
    wait().map_err(Context)
}

#[test]
fn a_program_that_keeps_errors_of_all_kinds_recovers() {
    each(Communicator::local(3).unwrap(), |comm| {
        let error = step(&comm, 4 + comm.rank() / 2).unwrap_err();
        let found = Error::find(&error).expect("it is in the chain");
        assert!(matches!(found.fault(), Some(Fault::Mismatch { .. })));
        assert!(found.ranks().contains(&2), "{found}");
        let rest = comm.recover().unwrap();
        assert_eq!(step(&rest, 4).unwrap(), [3.0; 4]);
        rest.finalize().unwrap();
    });
}

/// A report of the whole chain shows the error once.
#[test]
fn a_failed_call_has_its_error_as_source() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let failed = comm.send(vec![0_u8], 1).start().unwrap_err();
    let text = failed.error.to_string();
    assert!(text.contains("send") && format!("{failed:?}").contains(&text));
    assert!(!failed.to_string().contains(&text), "{failed}");
    let source = failed.source().expect("its error");
    assert_eq!(source.to_string(), text);
    assert!(source.downcast_ref::<Error>().is_some());
    assert_eq!(failed.buffers, [0]);
}

#[test]
fn other_errors_have_no_fault() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let invalid = comm.recv(&mut [0_u8], 7).run().unwrap_err();
    assert!(Error::find(&invalid).is_some());
    assert!(invalid.fault().is_none() && invalid.ranks().is_empty());
    assert!(Error::find(&fmt::Error).is_none());
}

#[test]
fn ranks_at_fault_are_numbered_as_in_their_communicator() {
    run(4, |comm| {
        let part = comm.split_by(comm.rank() / 2).unwrap();
        if part.rank() == 1 {
            part.abort("on purpose");
        }
        let error = part.barrier().run().unwrap_err();
        assert_eq!(error.ranks(), [1], "{error}");
        let member = error
            .fault()
            .and_then(|fault| fault.ranks().next())
            .unwrap();
        assert_eq!(member.world, comm.rank() / 2 * 2 + 1, "{error}");
    });
}
