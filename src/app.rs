//! Builds every part, binds ports, owns the token tree, starts and stops in order. Must not hold logic of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::config::{Config, HostPort};
use crate::domain::status::{ClusterStatus, MirrorStatus, Status};
use crate::http;
use crate::metrics::Metrics;

/// Why the daemon could not start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The HTTP endpoint's port is not to be had.
    #[error("cannot listen on {addr} (http.bind)")]
    Bind {
        /// The configured address.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The process cannot be told to stop.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    /// A metric is there twice or has a bad name.
    #[error("cannot set up the metrics")]
    Metrics(#[from] prometheus::Error),
    /// A part panicked; the log says where.
    #[error("a part of the daemon broke")]
    Part(#[from] JoinError),
    /// A part ended while nobody had asked for it.
    #[error("a part of the daemon ended by itself")]
    EndedEarly,
    /// Not all parts ended in time.
    #[error("{parts} parts were still running {} seconds after the stop", STOP_DEADLINE.as_secs())]
    StopDeadline {
        /// How many.
        parts: usize,
    },
}

const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Runs the daemon until SIGTERM or SIGINT. A second signal ends the process at once.
///
/// # Errors
/// [`AppError`]: the daemon could not start, or not end in order.
pub async fn run(config: Config) -> Result<(), AppError> {
    let mut signals = Signals::new().map_err(AppError::Signals)?;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"))?;
    metrics
        .memory_limit_bytes
        .set(i64::try_from(config.limits.memory_bytes).unwrap_or(i64::MAX));
    let addr = config.http.bind;
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|source| AppError::Bind { addr, source })?;

    let stop = CancellationToken::new();
    let mut parts = JoinSet::new();
    let status = Arc::new(status_at_start(&config));
    let sources = http::Sources {
        metrics,
        refresh: Arc::new(|| {}),
        readiness: Arc::new(http::Readiness::default),
        status: Arc::new(move || Status::clone(&status)),
    };
    parts.spawn(http::serve(listener, sources, stop.clone()));
    info!(
        version = env!("CARGO_PKG_VERSION"),
        mirrors = config.mirrors.len(),
        "started"
    );

    let outcome = tokio::select! {
        name = signals.next() => {
            info!(signal = name, "stopping");
            Ok(())
        }
        Some(ended) = parts.join_next() => match ended {
            Ok(()) => Err(AppError::EndedEarly),
            Err(broken) => Err(AppError::Part(broken)),
        },
    };
    stop.cancel();
    let drained = tokio::select! {
        drained = timeout(STOP_DEADLINE, drain(&mut parts)) => drained,
        name = signals.next() => {
            error!(signal = name, "second signal, ending at once");
            std::process::exit(1);
        }
    };
    match drained {
        Ok(broken) => outcome.and(broken)?,
        Err(_) => outcome.and(Err(AppError::StopDeadline { parts: parts.len() }))?,
    }
    info!("stopped");
    Ok(())
}

async fn drain(parts: &mut JoinSet<()>) -> Result<(), AppError> {
    let mut outcome = Ok(());
    while let Some(ended) = parts.join_next().await {
        if let (Err(broken), Ok(())) = (ended, &outcome) {
            outcome = Err(AppError::Part(broken));
        }
    }
    outcome
}

fn status_at_start(config: &Config) -> Status {
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_seconds: wall_clock()
            .duration_since(UNIX_EPOCH)
            .ok()
            .map(|since| since.as_secs()),
        destination: cluster_at_start(&config.destination.bootstrap_servers),
        mirrors: config
            .mirrors
            .iter()
            .map(|mirror| MirrorStatus {
                name: mirror.name.clone(),
                source: cluster_at_start(&mirror.source.bootstrap_servers),
                ..MirrorStatus::default()
            })
            .collect(),
    }
}

fn cluster_at_start(servers: &[HostPort]) -> ClusterStatus {
    ClusterStatus {
        bootstrap_servers: servers.iter().map(HostPort::to_string).collect(),
        ..ClusterStatus::default()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the wall clock is read"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The name of the next one. Cancel safe.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
