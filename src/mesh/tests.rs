//! Late events do no harm to links that are made.

use std::sync::OnceLock;

use spark_ccl_transport::Bell;

use super::*;
use crate::api::communicator::Communicator;

const LINK_ID: LinkId = (1, 0);
/// The context of no communicator.
const CONTEXT: u64 = 99;

/// A mesh of rank 0 of two.
fn mesh(comm: &Communicator) -> Mesh {
    let inner = &comm.inner;
    Mesh::new(LinkOwner {
        world: Arc::clone(&inner.world),
        watch: Arc::clone(&inner.watch),
        context: CONTEXT,
        members: inner.members.clone(),
        rank: 0,
        slot_bytes: 1024,
        bell: Bell::shared().unwrap(),
        interfaces: OnceLock::new(),
        spares: Spares::default(),
    })
}

/// The peer has taken it for agreed that there are no rails, and has made the link over TCP.
#[test]
fn a_dialogue_that_fails_late_leaves_the_link_that_is_there() {
    let ranks = Communicator::local(2).unwrap();
    let mut mesh = mesh(&ranks[0]);
    let made = mesh.own().unwrap();
    mesh.forming.insert(LINK_ID, Stage::Ready(made));
    let failed = Outcome::Failed(LinkError::Closed);
    mesh.inbox.put(InboxEvent::Rails(LINK_ID, failed));
    assert!(matches!(mesh.take(LINK_ID), Ok(Some(_))));
}

#[test]
fn a_dialogue_that_fails_is_the_end_where_there_is_no_link() {
    let ranks = Communicator::local(2).unwrap();
    let mut mesh = mesh(&ranks[0]);
    mesh.forming.insert(LINK_ID, Stage::Asked);
    let failed = Outcome::Failed(LinkError::Closed);
    mesh.inbox.put(InboxEvent::Rails(LINK_ID, failed));
    assert!(matches!(mesh.take(LINK_ID), Err(LinkError::Closed)));
}
