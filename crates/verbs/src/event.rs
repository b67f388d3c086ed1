//! Asynchronous events of a device.

use std::mem::MaybeUninit;

use nix::errno::Errno;

use crate::error::failed;
use crate::{Context, Error, hints, raw};

/// An asynchronous event of a device, not caused by a work request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncEvent {
    /// A port has become active. The event may come without an earlier [`AsyncEvent::PortError`],
    /// or not at all.
    PortActive(u8),
    /// A port has stopped working. Not every loss of a link is reported.
    PortError(u8),
    /// The GID table of a port has changed: indices found before may be wrong.
    GidChange(u8),
    /// A queue pair, given by its number, has failed; work in flight may end without completions.
    QueuePairFatal(u32),
    /// A queue pair, given by its number, has refused a request of its peer.
    QueuePairRefused(u32),
    /// A queue pair, given by its number, has received a message before it was ready to send.
    Established(u32),
    /// A completion queue has overflowed.
    QueueOverflow,
    /// The device has failed: nothing on it works any more.
    DeviceFatal,
    /// Another event, with libibverbs' number.
    Other(u32),
}

impl Context {
    /// Takes the next event, if there is one. Does not block; wait on [`Context::async_fd`].
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut event = MaybeUninit::<raw::ibv_async_event>::zeroed();
        // SAFETY: `self` keeps the context open, and the function writes the event, which is a
        // local.
        let result = unsafe { (self.api().ibv_get_async_event)(self.raw(), event.as_mut_ptr()) };
        if result != 0 {
            return match Errno::last() {
                Errno::EAGAIN | Errno::EINTR => Ok(None),
                _ => Err(failed("ibv_get_async_event", self.name(), hints::gone)),
            };
        }
        // SAFETY: `ibv_get_async_event` has succeeded, so it has written all of the event.
        let event = unsafe { event.assume_init_mut() };
        let seen = translate(event);
        // SAFETY: the event was taken above and is acknowledged once. The object that it points to
        // still exists: destroying it waits for this acknowledgement.
        unsafe { (self.api().ibv_ack_async_event)(event) };
        Ok(Some(seen))
    }
}

fn translate(event: &raw::ibv_async_event) -> AsyncEvent {
    // SAFETY: called only for event types of a port, for which `port_num` is the field in use.
    let port = || unsafe { event.element.port_num } as u8;
    // SAFETY: called only for event types of a queue pair, for which `qp` is the field in use. The
    // queue pair exists until the event is acknowledged.
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
