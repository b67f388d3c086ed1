//! A forked child that does nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// A forked child of this process, with copies of its descriptors. It lives until this is dropped.
#[derive(Debug)]
pub struct Sleeper {
    child: Pid,
    order: UnixStream,
}

impl Sleeper {
    /// Forks this process.
    ///
    /// # Panics
    /// The system refuses a process or a socket.
    pub fn fork() -> Self {
        let (order, orders) = UnixStream::pair().unwrap();
        // SAFETY: the child closes and reads a socket, and exits. That neither allocates nor takes
        // a lock which another thread of the parent may have held during the fork.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => Self { child, order },
            ForkResult::Child => {
                // The child ends when its parent does, too.
                drop(order);
                let _ = (&orders).read(&mut [0]);
                // SAFETY: `_exit` takes an integer and never returns, so nothing in this process is
                // used after it.
                unsafe { nix::libc::_exit(0) }
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.order.write_all(b"x").unwrap();
        waitpid(self.child, None).unwrap();
    }
}
