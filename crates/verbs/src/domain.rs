//! Protection domains.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::failed;
use crate::{Context, Error, hints, raw};

/// A protection domain of a device: its queue pairs can access its memory regions, and no others.
/// Clones share it. It is deallocated when the last clone, and the last object made in it, is
/// dropped.
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<Domain>);

pub(crate) struct Domain {
    pub(crate) context: Context,
    pub(crate) raw: NonNull<raw::ibv_pd>,
}

// SAFETY: libibverbs' functions may be called on a domain by any thread.
unsafe impl Send for Domain {}
// SAFETY: libibverbs' functions may be called on the same domain by several threads at once.
unsafe impl Sync for Domain {}

impl Context {
    /// Allocates a protection domain, for memory and queue pairs of this device.
    ///
    /// # Errors
    ///
    /// The device has no more of them.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(self)
    }
}

impl ProtectionDomain {
    fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: `context` keeps the device open, and its handle valid.
        let raw = NonNull::new(unsafe { (context.api().ibv_alloc_pd)(context.raw()) })
            .ok_or_else(|| failed("ibv_alloc_pd", context.name(), hints::resources))?;
        let context = context.clone();
        Ok(Self(Arc::new(Domain { context, raw })))
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_pd {
        self.0.raw.as_ptr()
    }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.0.context.name())
            .finish()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain holds it, so nothing is left. Only this deallocates
        // it.
        let errno = unsafe { (self.context.api().ibv_dealloc_pd)(self.raw.as_ptr()) };
        self.context.warn_of("ibv_dealloc_pd", errno);
    }
}
