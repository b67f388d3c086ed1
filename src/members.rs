//! Membership of communicators: a rank's place in one, and how the ranks that remain after a
//! failure agree on who goes on. Knows no calls.

pub(crate) mod hearing;
pub(crate) mod lineage;
pub(crate) mod membership;
