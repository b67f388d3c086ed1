//! One direction of a connection, whose cable is pulled, and which its kernel gives up.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;

use super::super::part::Part;
use super::super::stream::{Connection, Stream};

/// How much the kernel takes of what does not get through.
const BUFFER: usize = 64 << 10;

/// One direction of a connection, whose cable can be pulled.
pub(super) struct Cable {
    socket: Connection,
    number: u8,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_out: bool,
    /// How many bytes get through before the cable is out.
    passes: usize,
    /// The bytes that the kernel has taken and not delivered.
    held: Vec<u8>,
    is_closed: bool,
    /// The kernel gives the connection up for this reason, after it has taken some more bytes.
    goes: Option<Errno>,
    /// Why the kernel has given the connection up.
    lost: Option<Errno>,
    /// How many bytes had come when it did.
    unread: usize,
    /// Why the kernel refuses the next call for bytes.
    refuses: Option<Errno>,
    /// How often the kernel was asked for bytes.
    reads: usize,
    /// How often it was asked whether the peer's host answers.
    asks: usize,
}

impl Cable {
    /// Pulls the cable after this number of further bytes.
    pub(super) fn pull(&self, passes: usize) {
        let mut state = self.state.lock();
        (state.is_out, state.passes) = (true, passes);
    }

    /// Has the kernel give the connection up.
    pub(super) fn break_off(&self, error: Errno) {
        let mut state = self.state.lock();
        (state.lost, state.unread) = (Some(error), self.socket.unread() as usize);
    }

    /// Has the kernel refuse the next call for bytes, and keep the connection.
    pub(super) fn refuse_next(&self, error: Errno) {
        self.state.lock().refuses = Some(error);
    }

    pub(super) fn reads(&self) -> usize {
        self.state.lock().reads
    }

    pub(super) fn asks(&self) -> usize {
        self.state.lock().asks
    }

    /// Has the kernel take what is sent next, which gets lost as the peer resets the connection.
    pub(super) fn reset_at_next(&self) {
        self.state.lock().goes = Some(Errno::CONNRESET);
    }

    fn check(&self) -> rustix::io::Result<()> {
        self.state.lock().lost.map_or(Ok(()), Err)
    }

    pub(super) fn plug_in(&self) {
        self.state.lock().is_out = false;
        let _ = self.repeat();
    }

    /// Delivers what was held, as the kernel does by itself.
    fn repeat(&self) -> rustix::io::Result<()> {
        let mut state = self.state.lock();
        let most = if state.is_out {
            state.passes
        } else {
            usize::MAX
        };
        let some = &state.held[..most.min(state.held.len())];
        let sent = match self.socket.send(&[Part::new(some)]) {
            Err(Errno::AGAIN) => 0,
            sent => sent?,
        };
        state.held.drain(..sent);
        state.passes = state.passes.saturating_sub(sent);
        if state.is_closed && !state.is_out && state.held.is_empty() {
            Stream::close(&self.socket);
        }
        Ok(())
    }
}

impl AsFd for Cable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream for Cable {
    fn send(&self, parts: &[Part<'_>]) -> rustix::io::Result<usize> {
        self.check()?;
        self.repeat()?;
        let mut bytes = vec![0; parts.iter().map(Part::len).sum()];
        parts
            .iter()
            .fold(&mut bytes[..], |room, part| part.copy_to(room));
        let mut state = self.state.lock();
        let taken = bytes.len().min(BUFFER - state.held.len());
        if taken == 0 {
            return Err(Errno::AGAIN);
        }
        state.held.extend(&bytes[..taken]);
        if let Some(error) = state.goes.take() {
            drop(state);
            self.break_off(error);
            return Ok(taken);
        }
        drop(state);
        self.repeat().map(|()| taken)
    }

    fn receive(&self, spaces: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
        let mut state = self.state.lock();
        state.reads += 1;
        if let Some(error) = state.refuses.take() {
            return Err(error);
        }
        if state.lost.is_some() && state.unread == 0 {
            return state.lost.map_or(Ok(0), Err);
        }
        let got = self.socket.receive(spaces);
        state.unread = state.unread.saturating_sub(got.unwrap_or(0));
        got
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
        let _ = self.repeat();
    }

    fn addresses(&self) -> Option<[SocketAddr; 2]> {
        let address = |host| SocketAddr::from(([192, 0, 2 + self.number, host], 0));
        Some([address(1), address(2)])
    }

    fn keep_asking(&self) {}

    fn silence(&self) -> rustix::io::Result<Option<Duration>> {
        self.state.lock().asks += 1;
        self.check()?;
        self.socket.silence()?;
        let silence = Duration::from_secs(10);
        let state = self.state.lock();
        if state.is_closed && self.socket.is_closed_by_peer() {
            return Err(Errno::PIPE);
        }
        Ok(state.is_out.then_some(silence))
    }

    fn is_closed_by_peer(&self) -> bool {
        self.state.lock().lost == Some(Errno::PIPE) || self.socket.is_closed_by_peer()
    }

    fn unread(&self) -> u64 {
        self.socket.unread()
    }

    fn unacknowledged(&self) -> rustix::io::Result<u64> {
        if self.check().is_ok() {
            self.repeat()?;
        }
        Ok(self.state.lock().held.len() as u64)
    }
}

pub(super) fn cable(number: u8, socket: UnixStream) -> Arc<Cable> {
    Arc::new(Cable {
        socket: Connection::new(Unshared::new(socket.into())),
        number,
        state: Mutex::default(),
    })
}
