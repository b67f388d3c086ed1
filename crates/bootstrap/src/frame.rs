//! Frames over sockets: read piece by piece or with a deadline, never more than one frame ahead.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::PollFlags;
use socket2::Socket;

use crate::net;
use crate::wire::{FRAME_HEADER, FrameKind, WireError, parse_header};

/// A long body is allocated as it arrives, in pieces of this size.
const PIECE: usize = 64 * 1024;

/// Why no further frame will come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it sent {0}")]
    Wire(#[from] WireError),
}

/// A frame: its kind and its body.
pub(crate) type Frame = (FrameKind, Vec<u8>);

/// Reads frames, each as far as it has arrived. It never reads beyond the frame it is in, so that
/// the stream can be handed on after any frame.
#[derive(Default)]
pub(crate) struct FrameReader {
    header: [u8; FRAME_HEADER],
    head_filled: usize,
    body: Vec<u8>,
    body_filled: usize,
}

impl FrameReader {
    /// The next frame if all of it has arrived. `limit` bounds its body.
    pub(crate) fn poll(
        &mut self,
        socket: &Socket,
        limit: usize,
    ) -> Result<Option<Frame>, ReadError> {
        while self.head_filled < FRAME_HEADER {
            match net::try_read(socket, &mut self.header[self.head_filled..])? {
                None => return Ok(None),
                Some(0) => return Err(ReadError::Closed),
                Some(count) => self.head_filled += count,
            }
        }
        let (kind, len) = parse_header(self.header, limit)?;
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
        Ok(Some((kind, std::mem::take(&mut self.body))))
    }

    /// The next frame, waited for until the deadline.
    pub(crate) fn read(
        &mut self,
        socket: &Socket,
        limit: usize,
        deadline: Instant,
    ) -> Result<Frame, ReadError> {
        loop {
            if let Some(frame) = self.poll(socket, limit)? {
                return Ok(frame);
            }
            net::wait(socket.as_fd(), PollFlags::IN, deadline)?;
        }
    }
}
