//! The kind of link between this rank and another, for programs and people. Links themselves are in
//! `mesh`.

use std::fmt;

/// The kinds of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// Nothing: it is the rank itself.
    Own,
    /// Memory that two ranks of a host share.
    SharedMemory,
    /// RDMA, over one rail or several.
    Rdma,
    /// TCP.
    Tcp,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Own => "self",
            Self::SharedMemory => "shm",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        })
    }
}

/// The link to a rank. As text: `shm`, `shm (far)`, `tcp 10.0.0.1 -> 10.0.0.2`, `self`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLink {
    /// The kind of the link, also before it is made.
    pub carrier: Carrier,
    /// The addresses or ports that it joins. `None` where there are none, and before the link is
    /// made.
    pub route: Option<String>,
    /// This rank's core and the peer's probably share no cache: long messages are stored past the
    /// caches.
    pub is_far: bool,
}

impl fmt::Display for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.route {
            Some(route) => write!(f, "{} {route}", self.carrier),
            None => self.carrier.fmt(f),
        }?;
        if self.is_far {
            f.write_str(" (far)")?;
        }
        Ok(())
    }
}
