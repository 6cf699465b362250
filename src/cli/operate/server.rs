//! Asking one listener, and what to say when it does not answer. Must not know what is asked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::words::refusal;
use crate::kafka::connect::{Address, ConnectError};
use crate::kafka::connection::{Connection, RequestError};
use crate::kafka::contact::chain;
use crate::kafka::peer::connect;
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::MirrorAnswer;
use crate::wire::schema::Request;

/// Which process is asked.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// The listener of a truemirror; any process of the destination will do
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "TRUEMIRROR_SERVER",
        default_value = "127.0.0.1:9494"
    )]
    pub server: Address,
    /// How long an answer may take
    #[arg(long, value_name = "DURATION", default_value = "35s", value_parser = duration)]
    pub timeout: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("a time above zero, such as 10s".to_owned());
    }
    Ok(duration)
}

/// Why a command of an operator has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// Nobody listens there.
    #[error(
        "no truemirror answers at {server}: {}\n\
         Perhaps the process does not run, or it listens elsewhere: listener.bind of its configuration says where, and its log at \
         the start. Name that address with --server HOST:PORT or in TRUEMIRROR_SERVER.",
        chain(.source)
    )]
    Unreachable {
        /// Who was asked.
        server: Address,
        /// What became of it.
        source: ConnectError,
    },
    /// Somebody else listens there.
    #[error(
        "{server} answers, but not as a truemirror of this version: {source}\n\
         A Kafka broker, perhaps? --server is the address of a truemirror's listener (listener.bind, port 9494 by default)."
    )]
    NotOurs {
        /// Who was asked.
        server: Address,
        /// What is missing there.
        source: RequestError,
    },
    /// The answer did not come.
    #[error("{server}: {}{}", chain(.source), if .source.outcome_unknown() { "\nWhether it was done is not known: truemirror describe shows it." } else { "" })]
    Request {
        /// Who was asked.
        server: Address,
        /// What became of it.
        source: RequestError,
    },
    /// The call as a whole was refused.
    #[error("{what}: {}", refusal(*.code, .message.as_deref()))]
    Refused {
        /// What was wanted of what.
        what: String,
        /// The error.
        code: ErrorCode,
        /// Its words.
        message: Option<Arc<str>>,
    },
    /// The pattern means nothing.
    #[error(
        "mirror {mirror}: no topic matches {patterns}; truemirror describe --mirror {mirror} shows those there are"
    )]
    NoTopic {
        /// The mirror.
        mirror: String,
        /// What was given.
        patterns: String,
    },
    /// `stop` without a terminal, and without consent.
    #[error(
        "stop is one-way: the topics become ordinary ones; mirrored again, they begin from nothing (pause can be undone). \
         There is no terminal to ask at: say --yes if that is meant, or --dry-run to see what would happen."
    )]
    NoConsent,
    /// Somebody said no.
    #[error("nothing was changed")]
    Declined,
    /// The result cannot be written.
    #[error("the result cannot be written: {0}")]
    Output(#[source] std::io::Error),
}

impl OperateError {
    /// True if the command line lacks something.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::NoConsent)
    }
}

/// A connection to one listener.
pub(super) struct Server {
    address: Address,
    connection: Connection,
    timeout: Duration,
    _tasks: TaskTracker,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.address).finish()
    }
}

/// Between two questions to a coordinator that is not ready yet.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

impl Server {
    pub(super) async fn connect(
        address: &Address,
        timeout: Duration,
    ) -> Result<Self, OperateError> {
        let unreachable = |source| OperateError::Unreachable {
            server: address.clone(),
            source,
        };
        let tasks = TaskTracker::new();
        let client_id = Arc::from("truemirror-cli");
        let connection = connect(address, client_id, timeout, &tasks)
            .await
            .map_err(unreachable)?;
        Ok(Self {
            address: address.clone(),
            connection,
            timeout,
            _tasks: tasks,
        })
    }

    /// The answer, whatever it says. A coordinator that is being chosen, or that loads its state, is asked again while there is
    /// time.
    pub(super) async fn call<R: Request>(&self, request: &R) -> Result<R::Response, OperateError>
    where
        R::Response: MirrorAnswer,
    {
        let deadline = Instant::now() + self.timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.connection.call(request, left).await;
            let answer = answer.map_err(|source| match source {
                RequestError::UnsupportedVersion(_) => OperateError::NotOurs {
                    server: self.address.clone(),
                    source,
                },
                source => OperateError::Request {
                    server: self.address.clone(),
                    source,
                },
            })?;
            let not_ready = [
                ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode::COORDINATOR_NOT_AVAILABLE,
                ErrorCode::NOT_COORDINATOR,
            ];
            if !not_ready.contains(&answer.error_code()) || Instant::now() + RETRY_PAUSE >= deadline
            {
                return Ok(answer);
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}
