use std::mem::MaybeUninit;

use nix::errno::Errno;

use crate::error::failed;
use crate::{Context, Error, hints, raw};

/// Something that happened to a device and that no work request asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncEvent {
    /// A port works, again. It may be the first word of it, or none may come.
    PortActive(u8),
    /// A port has stopped working. Not every loss of a link is told.
    PortError(u8),
    /// The table of GIDs of a port has changed: indices found before may be wrong.
    GidChange(u8),
    /// A queue pair, by its number, has failed; work in flight may end without completions.
    QueuePairFatal(u32),
    /// A queue pair has been asked something that it refuses; the number is that of the queue pair.
    QueuePairRefused(u32),
    /// The queue pair's peer spoke before it was ready to send.
    Established(u32),
    /// A completion queue has overflowed.
    QueueOverflow,
    /// The device has failed: nothing on it works any more.
    DeviceFatal,
    /// Something else; the number is libibverbs'.
    Other(u32),
}

impl Context {
    /// What happened, if something has; it does not block. Wait for it with
    /// [`Context::async_fd`].
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut event = MaybeUninit::<raw::ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the function writes the event.
        let result = unsafe { (self.api().ibv_get_async_event)(self.raw(), event.as_mut_ptr()) };
        if result != 0 {
            return match Errno::last() {
                Errno::EAGAIN | Errno::EINTR => Ok(None),
                _ => Err(failed("ibv_get_async_event", self.name(), hints::gone)),
            };
        }
        // SAFETY: the function has written the event.
        let event = unsafe { event.assume_init_mut() };
        let seen = translate(event);
        // SAFETY: the event is acknowledged once. What it points at lives until then: destroying it
        // waits for this.
        unsafe { (self.api().ibv_ack_async_event)(event) };
        Ok(Some(seen))
    }
}

fn translate(event: &raw::ibv_async_event) -> AsyncEvent {
    // SAFETY: the event's type says that it is about a port.
    let port = || unsafe { event.element.port_num } as u8;
    // SAFETY: the event's type says that it is about a queue pair, which lives until the event is
    // acknowledged.
    let pair = || unsafe { (*event.element.qp).qp_num };
    match event.event_type {
        raw::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port()),
        raw::IBV_EVENT_PORT_ERR => AsyncEvent::PortError(port()),
        raw::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port()),
        raw::IBV_EVENT_QP_FATAL => AsyncEvent::QueuePairFatal(pair()),
        raw::IBV_EVENT_QP_REQ_ERR | raw::IBV_EVENT_QP_ACCESS_ERR => {
            AsyncEvent::QueuePairRefused(pair())
        }
        raw::IBV_EVENT_COMM_EST => AsyncEvent::Established(pair()),
        raw::IBV_EVENT_CQ_ERR => AsyncEvent::QueueOverflow,
        raw::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        other => AsyncEvent::Other(other),
    }
}
