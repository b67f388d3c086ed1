//! NCCL's RAS protocol, version 2: the requests of its client `ncclras`, and the answers, as text
//! or JSON.
//!
//! A [`Session`] reads a client's lines. A [`Report`] answers its requests. Opens no socket; its
//! caller brings the report.

mod command;
mod report;
mod session;
mod text;

pub use report::{
    Collection, Communicator, CommunicatorMore, Counts, INTERNAL, Missing, MissingStatus, Rank,
    RankMore, RankStatus, Report, Wait,
};
pub use session::{Request, Session, Step, TooLong};
pub use text::text;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}
