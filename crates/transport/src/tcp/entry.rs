//! Where a link over TCP takes spare connections.

use std::fmt;
use std::sync::{Arc, Weak};

use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::rails::Link;
use super::set_nodelay;
use super::stream::Connection;
use crate::LinkError;

/// Where a link's spare connections are handed in. Does not keep the link.
#[derive(Clone)]
pub struct Entry(Weak<Link>);

impl Entry {
    pub(super) fn of(link: &Arc<Link>) -> Self {
        Self(Arc::downgrade(link))
    }

    /// Adds the connection that one of the ends has asked for by this number. It carries the link's
    /// data while nothing comes back over the first ones. Closes it if the link is gone.
    ///
    /// # Errors
    /// When an option of the socket cannot be set.
    pub fn add(&self, number: usize, socket: Unshared<Socket>) -> Result<(), LinkError> {
        set_nodelay(&socket)?;
        if let Some(link) = self.0.upgrade() {
            link.add(number, Arc::new(Connection::new(socket)));
        }
        Ok(())
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}
