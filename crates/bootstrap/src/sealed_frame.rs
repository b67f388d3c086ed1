//! Sealed frames: after the handshake, a frame's header and its body are each followed by a tag. So
//! a length is known to be right before its bytes are waited for.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use spark_ccl_seal::{Changed, Opener, Sealer, TAG};

use crate::wire::{FRAME_HEADER, FrameKind, header};

/// A message to seal for one or several receivers. Its body, possibly the table of a large world,
/// is hashed once; the tags are over its hash.
#[derive(Debug, Clone)]
pub(crate) struct FrameToSeal {
    header: [u8; FRAME_HEADER],
    body: Arc<[u8]>,
    hash: [u8; 32],
}

impl FrameToSeal {
    pub(crate) fn new(kind: FrameKind, body: Vec<u8>) -> Self {
        FrameToSeal {
            header: header(kind, body.len()),
            hash: hash(&body),
            body: body.into(),
        }
    }

    /// The pieces of the sealed frame, in their order.
    pub(crate) fn seal(&self, sealer: &mut Sealer) -> [Arc<[u8]>; 3] {
        let head = [&self.header[..], &sealer.tag(&[&self.header])].concat();
        let tag = sealer.tag(&[&self.hash]);
        [head.into(), self.body.clone(), tag.into()]
    }
}

/// A whole sealed frame.
pub(crate) fn sealed(sealer: &mut Sealer, kind: FrameKind, body: Vec<u8>) -> Vec<u8> {
    FrameToSeal::new(kind, body).seal(sealer).concat()
}

/// Checks a sealed frame's body, and removes its tag.
pub(crate) fn open(opener: &mut Opener, body: &mut Vec<u8>) -> Result<(), Changed> {
    let Some((content, tag)) = body.split_last_chunk::<TAG>() else {
        return Err(Changed);
    };
    opener.check(&[&hash(content)], tag)?;
    body.truncate(body.len() - TAG);
    Ok(())
}

fn hash(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}
