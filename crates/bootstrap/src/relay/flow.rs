//! One direction of a relayed connection: a buffer between two sockets.

use std::io;
use std::net::Shutdown;

use rustix::event::PollFlags;
use socket2::Socket;

use crate::net;

const BUFFER: usize = 64 * 1024;
/// The number of buffers that are moved before the next connection's turn.
const TURN: u32 = 8;

#[derive(Default)]
pub(super) struct Flow {
    /// The bytes read but not all written yet.
    buffer: Vec<u8>,
    written: usize,
    end: End,
    is_busy: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// The sender has closed.
    Read,
    /// The receiver has been told.
    Told,
}

impl Flow {
    /// Moves the bytes that are there without blocking. Returns whether there were any.
    ///
    /// # Errors
    /// Errors of the system: one of the two connections is broken.
    pub(super) fn run(&mut self, from: &Socket, to: &Socket) -> io::Result<bool> {
        for step in 0..TURN {
            self.is_busy = self.step(from, to)?;
            if !self.is_busy {
                return Ok(step > 0);
            }
        }
        Ok(true)
    }

    /// Moves at most one buffer. Returns whether there may be more to do.
    fn step(&mut self, from: &Socket, to: &Socket) -> io::Result<bool> {
        if self.buffer.is_empty() {
            return match self.end {
                End::Open => self.read(from),
                End::Read => {
                    self.end = End::Told;
                    to.shutdown(Shutdown::Write).map(|()| false)
                }
                End::Told => Ok(false),
            };
        }
        let Some(count) = net::try_write(to, &self.buffer[self.written..])? else {
            return Ok(false);
        };
        self.written += count;
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.written = 0;
        }
        Ok(true)
    }

    fn read(&mut self, from: &Socket) -> io::Result<bool> {
        self.buffer.resize(BUFFER, 0);
        let read = net::try_read(from, &mut self.buffer);
        self.buffer
            .truncate(read.as_ref().map_or(0, |read| read.unwrap_or(0)));
        match read? {
            Some(0) => self.end = End::Read,
            Some(_) => {}
            // Idle connections hold no memory.
            None => {
                self.buffer = Vec::new();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The poll flags for the socket that is read.
    pub(super) fn wants_input(&self) -> PollFlags {
        if self.end == End::Open && self.buffer.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::empty()
        }
    }

    /// The poll flags for the socket that is written.
    pub(super) fn wants_output(&self) -> PollFlags {
        if self.buffer.is_empty() {
            PollFlags::empty()
        } else {
            PollFlags::OUT
        }
    }

    /// Whether it stopped only to give others their turn.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Whether the sender has closed, and the receiver has been told.
    pub(super) fn is_over(&self) -> bool {
        self.end == End::Told
    }
}
