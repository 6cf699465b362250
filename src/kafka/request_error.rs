//! Why requests have no answer and connections end. Must not decide what follows from it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::bounded::{DecodeError, EncodeError};
use crate::wire::frame::FrameLengthError;

/// Why a connection is no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// We closed it, or nobody holds it any more.
    #[error("closed here")]
    Closed,
    /// The broker closed it.
    #[error("closed by the broker")]
    ClosedByPeer,
    /// The network broke it.
    #[error("network error")]
    Io(#[source] io::Error),
    /// A request was not answered in time.
    #[error("{api} was not answered within {after:?}")]
    TimedOut {
        /// The request.
        api: &'static str,
        /// Its time limit.
        after: Duration,
    },
    /// A frame of a length that cannot be right.
    #[error("broken framing")]
    Length(#[source] FrameLengthError),
    /// An answer that belongs to no request, or not to the next one.
    #[error("answer {answered} came where {expected:?} was expected")]
    Unexpected {
        /// The correlation id that came.
        answered: i32,
        /// The one that should have come; `None` if nothing was asked.
        expected: Option<i32>,
    },
    /// A frame too short for a header.
    #[error("broken response header")]
    Header(#[source] DecodeError),
    /// The task of the connection was stopped.
    #[error("the process is shutting down")]
    Stopped,
}

/// Broker and client have no version of an API in common.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{api}: truemirror speaks versions {min} to {max}, the broker {}",
    .broker.map_or_else(|| "does not know this API".to_owned(), |(min, max)| format!("{min} to {max}"))
)]
pub struct UnsupportedVersion {
    /// The API.
    pub api: &'static str,
    /// Our lowest version.
    pub min: i16,
    /// Our highest version.
    pub max: i16,
    /// The broker's range; `None` if it does not list the API.
    pub broker: Option<(i16, i16)>,
}

/// A request without an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The connection was gone before the request was queued: nothing was sent.
    #[error("{api} was not sent: the connection is gone")]
    NotSent {
        /// The request.
        api: &'static str,
        /// What became of the connection.
        #[source]
        reason: Arc<LostReason>,
    },
    /// The connection went while the request was under way.
    #[error("the connection was lost before {api} was answered")]
    Lost {
        /// The request.
        api: &'static str,
        /// What became of the connection.
        #[source]
        reason: Arc<LostReason>,
    },
    /// No answer in time.
    #[error("{api} was not answered within {after:?}")]
    TimedOut {
        /// The request.
        api: &'static str,
        /// Its time limit.
        after: Duration,
    },
    /// No common version: nothing was sent.
    #[error(transparent)]
    UnsupportedVersion(#[from] UnsupportedVersion),
    /// An answer came and does not read as one.
    #[error("the answer to {api} version {version} cannot be read")]
    Decode {
        /// The request.
        api: &'static str,
        /// The version that was spoken.
        version: i16,
        /// What is wrong with the bytes.
        #[source]
        source: DecodeError,
    },
    /// The request does not fit the protocol: nothing was sent.
    #[error("{api} cannot be written")]
    Encode {
        /// The request.
        api: &'static str,
        /// What does not fit.
        #[source]
        source: EncodeError,
    },
    /// A Produce with acks = 0 has no answer, so that its outcome could never be known: nothing was sent.
    #[error("Produce with acks = 0 is never answered and not sent")]
    NoAnswerAsked,
    /// Too many requests wait for answers: nothing was sent.
    #[error("{api} was not sent: {in_flight} requests are under way on this connection")]
    QueueFull {
        /// The request.
        api: &'static str,
        /// How many wait.
        in_flight: usize,
    },
}

impl RequestError {
    /// True if the broker may have done what was asked. False only if the request certainly was not sent.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::TimedOut { .. } | Self::Decode { .. } => true,
            Self::NotSent { .. }
            | Self::UnsupportedVersion(_)
            | Self::Encode { .. }
            | Self::NoAnswerAsked
            | Self::QueueFull { .. } => false,
        }
    }

    /// True if the connection cannot be used any more.
    pub fn connection_lost(&self) -> bool {
        matches!(
            self,
            Self::NotSent { .. } | Self::Lost { .. } | Self::TimedOut { .. }
        )
    }
}
