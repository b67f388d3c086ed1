//! Links over RDMA. Making one takes a dialogue, which each side leads on a thread of its own.
//! Knows sessions' streams and RDMA's side of a link; knows no operations.

use std::sync::Arc;

use socket2::Socket;
use spark_ccl_config::{Net, Path};
use spark_ccl_fork::Unshared;
use spark_ccl_transport::LinkError;
use spark_ccl_transport::rdma::link as rdma;

use super::inbox::{Inbox, InboxEvent, Outcome, Push, wake_engine};
use super::{LinkId, LinkOwner};
use crate::world::deadline::deadline_in;

/// Makes a link over the stream, in a thread of its own.
pub(super) fn make(
    owner: &Arc<LinkOwner>,
    inbox: &Arc<Inbox>,
    link_id: LinkId,
    stream: Unshared<Socket>,
    push: &Push,
) {
    let (there, its) = (Arc::clone(owner), Arc::clone(inbox));
    let negotiate = {
        let push = Arc::clone(push);
        move || {
            let outcome = negotiate(&there, link_id, stream);
            its.put(InboxEvent::Rails(link_id, outcome));
            wake_engine(&there, &push);
        }
    };
    if let Err(error) = spark_ccl_log::spawn("spark-rails", negotiate) {
        let text = format!("starting a thread that makes the RDMA link: {error}");
        let failed = Outcome::Failed(LinkError::Setup(text));
        inbox.put(InboxEvent::Rails(link_id, failed));
        wake_engine(owner, push);
    }
}

fn negotiate(owner: &LinkOwner, (peer, _): LinkId, stream: Unshared<Socket>) -> Outcome {
    let (settings, nics) = (owner.settings(), owner.world.nics());
    let name = owner.describe(peer);
    // A peer that is stopped for a while gets as much time as one that is late for an operation.
    let limit = settings.init_timeout.max(settings.operation_timeout);
    let wait = rdma::Wait {
        deadline: deadline_in(limit),
        go_on: &|| !owner.watch.failed(),
    };
    let first = owner.rank < peer;
    let made = rdma::connect(nics, &settings.rdma, stream, owner.geometry(), first, wait);
    let problem = match made {
        Ok((tx, rx, rails)) => {
            if let Err(error) = rdma::keep_polled(&tx) {
                // Without it, a rail that fails while its rank waits elsewhere is noticed late.
                let rank = owner.rank;
                spark_ccl_log::warn!("rank {rank}: no thread looks after an RDMA link: {error}");
            }
            return Outcome::Link((Box::new(tx), Box::new(rx)), rails.join(", "));
        }
        Err(problem) => problem,
    };
    let may_fall_back = settings.net == Net::Auto && settings.path != Path::ZeroCopy;
    if problem.is_agreed() && may_fall_back {
        return Outcome::Tcp(problem.to_string());
    }
    let reason = nics.none_because.as_deref();
    let reason = reason.map(|reason| format!(" ({reason})"));
    let way_out = match settings.path {
        Path::ZeroCopy => "SPARK_CCL_PATH=auto allows TCP, which copies",
        _ => "SPARK_CCL_NET=tcp does without",
    };
    Outcome::Failed(LinkError::Setup(format!(
        "setting up the RDMA link to {name}: {problem}{}; {way_out}",
        reason.unwrap_or_default()
    )))
}
