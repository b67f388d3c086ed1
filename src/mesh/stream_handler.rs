//! Delivers the session's streams for a communicator's links: into the inbox, or to the dialogue
//! that makes a link from them.

use std::sync::Arc;

use spark_ccl_bootstrap::{self as bootstrap, Delivery, StreamHandler, StreamKind};
use spark_ccl_sched::Rank;

use super::LinkOwner;
use super::inbox::{Delivered, Inbox, InboxEvent, Push, wake_engine};
use super::link_id::lane_and_socket;
use super::rails;
use super::shared::{Bells, Progress, SharedNegotiation};
use crate::world::deadline::deadline_in;

/// Registers with the session, so that streams for the communicator go into the inbox.
pub(super) fn handle_streams(owner: &Arc<LinkOwner>, inbox: &Arc<Inbox>, push: Push) {
    let session = &owner.world.session;
    let context = owner.context;
    let (owner, inbox) = (Arc::clone(owner), Arc::clone(inbox));
    let bells = Arc::<Bells>::default();
    let handler = move |delivery: Delivery| -> Option<Box<dyn bootstrap::Negotiation>> {
        let mut members = owner.members.iter();
        let peer = members.position(|&member| member == delivery.peer)? as Rank;
        let (lane, socket) = lane_and_socket(delivery.stream_id.number);
        let link_id = (peer, lane);
        let stream = match (delivery.stream_id.kind, delivery.stream) {
            (StreamKind::SharedMemory, Ok((stream, end))) => {
                return Some(Box::new(SharedNegotiation {
                    owner: Arc::clone(&owner),
                    inbox: Arc::clone(&inbox),
                    push: Arc::clone(&push),
                    bells: Arc::clone(&bells),
                    link_id,
                    stream: stream.socket,
                    end,
                    deadline: deadline_in(owner.settings().init_timeout),
                    progress: Progress::default(),
                }));
            }
            (StreamKind::Rdma, Ok((stream, _))) => {
                rails::make(&owner, &inbox, link_id, stream.socket, &push);
                return None;
            }
            (_, stream) => stream.map(|(stream, _)| stream.socket),
        };
        // A link itself asks again for a spare that has not come.
        if socket >= owner.sockets(peer) {
            if let Ok(stream) = stream {
                owner.spares.put(link_id, (socket, stream));
                wake_engine(&owner, &push);
            }
            return None;
        }
        inbox.put(InboxEvent::Delivery(Delivered {
            link_id,
            socket,
            stream,
        }));
        wake_engine(&owner, &push);
        None
    };
    let handler: StreamHandler = Arc::new(handler);
    session.handle_streams(context, &handler);
}
