//! Requests a list from the kernel over netlink, and splits the answer into messages.

use std::time::Duration;

use netlink_packet_core::{
    NLA_HEADER_SIZE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NlasIterator,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::Error;

/// How long the kernel may take; it answers at once.
const DEADLINE: Duration = Duration::from_secs(5);
/// The kernel sends at most 32 KiB at once.
const BLOCK: usize = 64 << 10;
/// The number of requests for a list that changes while it is read.
const TRIES: u32 = 10;
/// The header of a message: its length and type, flags, sequence number, sender.
const HEADER: usize = 16;

/// A list: its contents, the request's type, the type of its messages, and the number of bytes
/// before the attributes in both.
#[derive(Debug)]
pub(super) struct List {
    what: &'static str,
    asked: u16,
    kind: u16,
    fixed: usize,
}

pub(super) const LIST_LINKS: List = List {
    what: "interfaces",
    asked: 18,
    kind: 16,
    fixed: 16,
};
pub(super) const LIST_ADDRESSES: List = List {
    what: "addresses",
    asked: 22,
    kind: 20,
    fixed: 8,
};
pub(super) const LIST_ROUTES: List = List {
    what: "routes",
    asked: 26,
    kind: 24,
    fixed: 12,
};
pub(super) const LIST_NEIGHBOURS: List = List {
    what: "neighbours",
    asked: 30,
    kind: 28,
    fixed: 12,
};
const LISTS: [&List; 4] = [&LIST_LINKS, &LIST_ADDRESSES, &LIST_ROUTES, &LIST_NEIGHBOURS];

/// A message of a list, without its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetlinkMessage {
    pub(super) kind: u16,
    pub(super) body: Vec<u8>,
}

/// The messages of a list received so far.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) messages: Vec<NetlinkMessage>,
    /// Whether the list changed while it was read: entries may be missing.
    changed: bool,
}

/// The progress of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    More,
    Done,
    Failed(String),
}

/// Requests a list from the kernel, and returns all of its messages.
pub(super) fn dump(list: &List) -> Result<Vec<NetlinkMessage>, Error> {
    let mut listed = dump_once(list)?;
    for _ in 1..TRIES {
        if !listed.changed {
            break;
        }
        listed = dump_once(list)?;
    }
    if listed.changed {
        spark_ccl_log::warn!("the kernel's {} change all the time", list.what);
    }
    listed.messages.retain(|message| message.kind == list.kind);
    Ok(listed.messages)
}

fn dump_once(list: &List) -> Result<Listed, Error> {
    let what = list.what;
    let failed = |reason: String| Error::Netlink { what, reason };
    let system = |errno: rustix::io::Errno| failed(errno.to_string());
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // The protocol 0 is NETLINK_ROUTE.
        None,
    );
    let socket = socket.map_err(system)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE)).map_err(system)?;
    rustix::net::send(&socket, &request(list), SendFlags::empty()).map_err(system)?;
    let mut listed = Listed::default();
    let mut block = vec![0; BLOCK];
    loop {
        let (_, bytes) =
            rustix::net::recv(&socket, &mut block[..], RecvFlags::empty()).map_err(system)?;
        match messages(&block[..bytes], &mut listed) {
            Dump::More => {}
            Dump::Done => return Ok(listed),
            Dump::Failed(reason) => return Err(failed(reason)),
        }
    }
}

/// A request for all of a list. Zeros mean "of any kind".
pub(super) fn request(list: &List) -> Vec<u8> {
    let mut bytes = vec![0; HEADER + list.fixed];
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&list.asked.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes
}

/// Adds the messages of a block to those received.
pub(crate) fn messages(mut block: &[u8], listed: &mut Listed) -> Dump {
    while !block.is_empty() {
        let length = block.first_chunk().map_or(0, |it| u32::from_ne_bytes(*it)) as usize;
        let Some(bytes) = block.get(..length).filter(|bytes| bytes.len() >= HEADER) else {
            return Dump::Failed(format!("a message of {length} bytes in {}", block.len()));
        };
        let (header, body) = bytes.split_at(HEADER);
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        listed.changed |= half(6) & NLM_F_DUMP_INTR != 0;
        match half(4) {
            // The end of a list says whether the list is complete.
            NLMSG_DONE if code(body) >= 0 => return Dump::Done,
            NLMSG_DONE | NLMSG_ERROR => return Dump::Failed(reason(body)),
            kind => listed.messages.push(NetlinkMessage {
                kind,
                body: body.to_vec(),
            }),
        }
        // Messages begin at multiples of 4.
        block = block.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Dump::More
}

/// The code at the front of an end or an error message; 0 if there is none.
fn code(body: &[u8]) -> i32 {
    body.first_chunk()
        .map_or(0, |code| i32::from_ne_bytes(*code))
}

/// The text of an error's negative code.
fn reason(body: &[u8]) -> String {
    let code = i32::try_from(code(body).unsigned_abs()).unwrap_or(0);
    std::io::Error::from_raw_os_error(code).to_string()
}

impl NetlinkMessage {
    pub(super) fn byte(&self, at: usize) -> Option<u8> {
        self.body.get(at).copied()
    }

    pub(super) fn half(&self, at: usize) -> Option<u16> {
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(u16::from_ne_bytes(*bytes))
    }

    pub(super) fn number(&self, at: usize) -> Option<u32> {
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    }

    /// The types and values of the attributes, up to the first truncated one.
    pub(super) fn attributes(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let list = LISTS.iter().find(|list| list.kind == self.kind);
        let fixed = list.map_or(self.body.len(), |list| list.fixed);
        attributes(self.body.get(fixed..).unwrap_or_default())
    }
}

/// The types and values of these attributes, up to the first truncated one.
pub(super) fn attributes(list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let whole = NlasIterator::new(list).map_while(Result::ok);
    whole.map(|one| {
        let end = usize::from(one.length());
        let value = one.into_inner().get(NLA_HEADER_SIZE..end);
        (one.kind(), value.unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_is_no_list() {
        let bytes = request(&LIST_LINKS);
        let mut listed = Listed::default();
        assert_eq!(messages(&bytes, &mut listed), Dump::More);
        assert_eq!(listed.messages.len(), 1);
        let cut = messages(&bytes[..20], &mut listed);
        assert_eq!(cut, Dump::Failed("a message of 32 bytes in 20".to_owned()));
        assert!(matches!(messages(&[0; 8], &mut listed), Dump::Failed(_)));
        assert!(matches!(messages(&[1; 2], &mut listed), Dump::Failed(_)));
    }

    #[test]
    fn the_end_and_changes_are_told() {
        let message = |kind: u16, flags: u16, body: &[u8]| {
            let mut bytes = (HEADER as u32 + body.len() as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.extend([0; 8]);
            bytes.extend(body);
            bytes
        };
        let mut listed = Listed::default();
        let two = [message(16, 2, &[0; 16]), message(NLMSG_DONE, 2, &[0; 4])].concat();
        assert_eq!(messages(&two, &mut listed), Dump::Done);
        assert!(!listed.changed && listed.messages.len() == 1);
        let changed = message(16, 2 | NLM_F_DUMP_INTR, &[0; 16]);
        assert_eq!(messages(&changed, &mut listed), Dump::More);
        assert!(listed.changed);
        // An error may also end a list that has begun.
        for kind in [NLMSG_ERROR, NLMSG_DONE] {
            let refused = message(kind, 0, &(-1_i32).to_ne_bytes());
            let Dump::Failed(reason) = messages(&refused, &mut listed) else {
                panic!("no error");
            };
            assert!(reason.contains("not permitted"), "{reason}");
        }
    }
}
