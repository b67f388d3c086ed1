//! Reads frames from sockets, as far as they have arrived, and never beyond the end of a frame.
//! Interpreting them is up to the caller.

use std::io;

use socket2::Socket;
use spark_ccl_seal::{Changed, Opener, TAG};

use crate::wire::{FRAME_HEADER, FrameKind, WireError, parse_header};
use crate::{net, sealed_frame};

/// The buffer of a long body grows as it arrives, by this much, so a header alone allocates little.
const PIECE: usize = 64 * 1024;

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it sent {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Changed(#[from] Changed),
}

/// A frame: its kind and its body.
pub(crate) type Frame = (FrameKind, Vec<u8>);

/// Reads frames as far as they have arrived. It never reads beyond the current frame, so that the
/// stream can be handed to another reader after any frame.
#[derive(Default)]
pub(crate) struct FrameReader {
    /// `None` while frames are not sealed.
    opener: Option<Opener>,
    /// The header, and its tag if there is one.
    head: [u8; FRAME_HEADER + TAG],
    head_filled: usize,
    body: Vec<u8>,
    body_filled: usize,
}

impl FrameReader {
    /// A reader of sealed frames.
    pub(crate) fn sealed(opener: Opener) -> Self {
        FrameReader {
            opener: Some(opener),
            ..Self::default()
        }
    }

    /// The next frame, if all of it has arrived. `limit` bounds the length of its body.
    pub(crate) fn poll(
        &mut self,
        socket: &Socket,
        limit: usize,
    ) -> Result<Option<Frame>, ReadError> {
        let tag = self.opener.as_ref().map_or(0, |_| TAG);
        while self.head_filled < FRAME_HEADER + tag {
            let rest = self.head_filled..FRAME_HEADER + tag;
            match net::try_read(socket, &mut self.head[rest])? {
                None => return Ok(None),
                Some(0) => return Err(ReadError::Closed),
                Some(count) => self.head_filled += count,
            }
            if self.head_filled == FRAME_HEADER + tag {
                self.check_head()?;
            }
        }
        let (kind, len) = parse_header(self.header(), limit)?;
        let len = len + tag;
        while self.body_filled < len {
            if self.body_filled == self.body.len() {
                self.body.resize(len.min(self.body_filled + PIECE), 0);
            }
            match net::try_read(socket, &mut self.body[self.body_filled..])? {
                None => return Ok(None),
                Some(0) => return Err(ReadError::Closed),
                Some(count) => self.body_filled += count,
            }
        }
        self.head_filled = 0;
        self.body_filled = 0;
        let mut body = std::mem::take(&mut self.body);
        if let Some(opener) = &mut self.opener {
            sealed_frame::open(opener, &mut body)?;
        }
        Ok(Some((kind, body)))
    }

    fn header(&self) -> [u8; FRAME_HEADER] {
        let mut header = [0; FRAME_HEADER];
        header.copy_from_slice(&self.head[..FRAME_HEADER]);
        header
    }

    /// Checks the tag of the header that has just arrived, if it has one.
    fn check_head(&mut self) -> Result<(), Changed> {
        let header = self.header();
        match (&mut self.opener, self.head.last_chunk()) {
            (Some(opener), Some(tag)) => opener.check(&[&header], tag),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use socket2::{Domain, Type};

    use super::*;
    use crate::wire::frame;

    const LIMIT: usize = 200_000;

    fn pair() -> (Socket, Socket) {
        let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        there.set_nonblocking(true).unwrap();
        (here, there)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_stream_may_be_cut_anywhere(
            lens in prop::collection::vec(0usize..3000, 1..8),
            cuts in prop::collection::vec(1usize..4000, 1..8),
        ) {
            let (mut here, there) = pair();
            let bytes: Vec<u8> = lens.iter().flat_map(|&len| frame(FrameKind::Hello, &vec![len as u8; len])).collect();
            let (mut reader, mut read, mut rest) = (FrameReader::default(), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                here.write_all(now).unwrap();
                rest = later;
                while let Some((kind, body)) = reader.poll(&there, LIMIT).unwrap() {
                    prop_assert_eq!(kind, FrameKind::Hello);
                    prop_assert!(body.iter().all(|&byte| byte == body.len() as u8));
                    read.push(body.len());
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(read, lens);
        }

        #[test]
        fn garbage_is_an_error_and_takes_no_memory(bytes in prop::collection::vec(any::<u8>(), 0..5000), limit in 0usize..5000) {
            let (mut here, there) = pair();
            here.write_all(&bytes).unwrap();
            drop(here);
            let mut reader = FrameReader::default();
            while let Ok(frame) = reader.poll(&there, limit) {
                prop_assert!(frame.is_some_and(|(_, body)| body.len() <= limit));
            }
            prop_assert!(reader.body.len() <= limit);
        }
    }
}
