//! The argument of the kernel that passes messages by pieces.

use super::cut::Cut;
use super::host::Lane;
use super::layout::{Posting, StageFlow, StageLayout, StageMessage};
use crate::MessageDirection;
use crate::flows::{FLOWS, Launch, MESSAGES};

impl Posting {
    pub(super) fn new(stage: StageLayout, launch: &Launch, ranks: usize) -> Self {
        let mut posting = Self {
            stage,
            flow: [StageFlow::default(); FLOWS],
            message: [StageMessage::default(); MESSAGES],
        };
        let cut = |bytes| Cut::of_message(bytes, ranks);
        for (to, message) in posting.message.iter_mut().zip(&launch.messages) {
            *to = StageMessage {
                start: message.address,
                bytes: message.bytes,
                piece: cut(message.bytes).len(),
                words: message.words,
            };
        }
        for (to, flow) in posting.flow.iter_mut().zip(&launch.flows) {
            let messages = &launch.messages[flow.places.clone()];
            *to = StageFlow {
                lane: Lane::of_messages(flow.way, flow.peer).in_kernel(),
                is_sent: u16::from(flow.way == MessageDirection::Send),
                begin: flow.places.start as u16,
                pieces: messages.iter().map(|of| cut(of.bytes).pieces()).sum(),
            };
        }
        posting
    }
}
