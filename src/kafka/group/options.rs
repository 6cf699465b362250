//! What a member is told when it is made, and what it ends with. Must not hold any state of it.

use std::sync::Arc;
use std::time::Duration;

use super::Identity;
use crate::domain::assign::Work;
use crate::kafka::backoff::Backoff;
use crate::kafka::connection::UnsupportedVersion;
use crate::wire::error_code::ErrorCode;

/// All work that there is, with its leaders; `None` while it is not known: then everybody keeps what it has.
pub type Wanted = Option<Arc<[Work]>>;

/// How a member takes part.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The group's id (`group.id`), the same for all sidecars of a destination.
    pub group_id: Arc<str>,
    /// Who we are.
    pub identity: Identity,
    /// A member that is not heard of for so long is dropped. Must lie within the broker's
    /// `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.
    pub session_timeout: Duration,
    /// Time to give up what goes to another. What has not been given up by then counts as given up.
    pub give_up_timeout: Duration,
    /// Pauses between tries that fail.
    pub backoff: Backoff,
}

impl GroupOptions {
    /// The usual times: a session of 10 s, 5 s to give up.
    pub fn new(group_id: &str, identity: Identity) -> Self {
        Self {
            group_id: group_id.into(),
            identity,
            session_timeout: Duration::from_secs(10),
            give_up_timeout: Duration::from_secs(5),
            backoff: Backoff::default(),
        }
    }
}

/// Why a member cannot go on. Everything else is tried again without end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Another process has joined with our id, and has our place now.
    #[error(
        "another process runs as sidecar {sidecar_id:?} in group {group_id:?} and has taken over its work; stop one of the two, or give this one another sidecar id"
    )]
    Fenced {
        /// The group.
        group_id: Arc<str>,
        /// The id that both use.
        sidecar_id: Arc<str>,
    },
    /// The coordinator would say the same again.
    #[error("the coordinator of group {group_id:?} refuses {api}: {code}{}", hint(*.code))]
    Refused {
        /// The group.
        group_id: Arc<str>,
        /// The call.
        api: &'static str,
        /// Its words.
        code: ErrorCode,
    },
    /// No static membership there.
    #[error("the destination's brokers are too old for static group membership (Kafka 2.3)")]
    BrokerTooOld {
        /// What is missing.
        #[source]
        source: UnsupportedVersion,
    },
}

fn hint(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::INVALID_SESSION_TIMEOUT => {
            "; the session timeout must lie between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"
        }
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL => {
            "; others use this group id: choose one that is truemirror's alone"
        }
        _ => "",
    }
}
