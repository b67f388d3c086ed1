//! What becomes of the streams that the session has for a communicator's links.

use super::inbox::{Delivered, Inbox, Note, Push, announce};
use super::rails;
use super::shared::{Bells, Progress, Talk};
use super::{CHANNELS, Site};
use spark_ccl_bootstrap::{self as bootstrap, Attendant, Delivery, Kind};
use spark_ccl_sched::Rank;
use std::sync::Arc;

/// Has the session put what comes for the communicator into the inbox.
pub(super) fn attend(site: &Arc<Site>, inbox: &Arc<Inbox>, push: Push) {
    let session = &site.world.session;
    let context = site.context;
    let (site, inbox) = (Arc::clone(site), Arc::clone(inbox));
    let bells = Arc::<Bells>::default();
    let attendant = move |delivery: Delivery| -> Option<Box<dyn bootstrap::Talk>> {
        let mut members = site.members.iter();
        let peer = members.position(|&member| member == delivery.peer)? as Rank;
        let lane = delivery.purpose.lane;
        let line = (peer, lane as usize % CHANNELS);
        let stream = match (delivery.purpose.kind, delivery.stream) {
            (Kind::SharedMemory, Ok((stream, end))) => {
                return Some(Box::new(Talk {
                    site: Arc::clone(&site),
                    inbox: Arc::clone(&inbox),
                    push: Arc::clone(&push),
                    bells: Arc::clone(&bells),
                    line,
                    stream,
                    end,
                    progress: Progress::default(),
                }));
            }
            (Kind::Rdma, Ok((stream, _))) => {
                rails::make(&site, &inbox, line, stream, &push);
                return None;
            }
            (_, stream) => stream.map(|(stream, _)| stream),
        };
        inbox.put(Note::Delivery(Delivered { peer, lane, stream }));
        announce(&site, &push);
        None
    };
    let attendant: Attendant = Arc::new(attendant);
    session.attend(context, &attendant);
}
