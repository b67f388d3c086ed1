//! Links that fail when they are flushed.

use std::time::Duration;

use spark_ccl_transport::{LinkError, LinkTx};

use super::*;

/// A link that takes messages, holds them back, and cannot send them on.
struct Clogged(Box<dyn LinkTx>);

impl LinkTx for Clogged {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.0.reserve(len)
    }

    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        self.0.commit(len, tag)
    }

    fn holds_back(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        Err(LinkError::Protocol("it is clogged".to_owned()))
    }
}

#[test]
fn an_operation_that_waits_for_a_message_meets_the_error_of_a_flush() {
    let ranks = Communicator::local(2).unwrap();
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| rank.barrier().run().unwrap());
        }
    });
    ranks[0].set_timeout(Duration::from_secs(20)).unwrap();
    let clog = |engine: &mut Core| engine.wires.wrap_tx((1, 0), |tx| Box::new(Clogged(tx)));
    ranks[0].membership().with(clog).unwrap();
    let mut values = [1_i32; 4];
    let outcome = ranks[0].all_reduce_in_place(&mut values, RedOp::Sum).run();
    let text = outcome.map(drop).unwrap_err().to_string();
    assert!(text.contains("it is clogged"), "{text}");
}
