//! Control streams that break: lets the monitor, which knows no sessions, open them again through
//! the session.

use std::sync::Arc;
use std::time::Instant;

use spark_ccl_bootstrap::{Session, StreamId, StreamKind};
use spark_ccl_control::{Dial, Monitor, NextHop, Unreached};
use spark_ccl_seal::Stream;

/// Opens control streams anew as the session opened the first ones.
struct Redialler {
    session: Arc<Session>,
    context: u64,
}

impl Dial for Redialler {
    fn dial(&self, peer: u32, number: u32, deadline: Instant) -> Result<Stream, Unreached> {
        use spark_ccl_bootstrap::Unreached as Missed;
        let stream_id = StreamId {
            context: self.context,
            kind: StreamKind::Control,
            number,
        };
        let redialled = self.session.redial(peer, stream_id, deadline);
        redialled.map_err(|missed| match missed {
            Missed::Refused(text) => Unreached::Refused(text),
            Missed::NoAnswer(text) => Unreached::NoAnswer(text),
            Missed::Unresponsive(text) => Unreached::Unresponsive(text),
        })
    }

    fn next_hop(&self, to: u32, gone: &dyn Fn(u32) -> bool) -> NextHop {
        let (wiring, rank) = (self.session.wiring(), self.session.rank());
        if wiring.is_complete() {
            return NextHop::Closer;
        }
        NextHop::By(wiring.next_hop(rank, to, gone))
    }
}

/// The dialler that opens this session's control streams anew.
pub(crate) fn dial(session: &Arc<Session>, context: u64) -> Arc<dyn Dial> {
    Arc::new(Redialler {
        session: Arc::clone(session),
        context,
    })
}

/// Has the monitor take the streams that other ranks open anew.
pub(crate) fn answer(session: &Session, monitor: &Monitor) {
    let adopter = monitor.adopter();
    session.hand_over(StreamKind::Control, move |peer, stream_id, stream| {
        adopter.adopt(peer, stream_id.number, stream);
    });
}
