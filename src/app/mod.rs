//! Builds every part, binds ports, owns the token tree, starts and stops in order. Must not hold logic of its own.

mod mirrors;
mod reload;
mod view;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use self::mirrors::{Mirrors, Shared};
use self::reload::Reload;
use self::view::{MirrorView, View};
use crate::config::{Config, HostPort};
use crate::coordinator::{CoordinatorParts, Coordinators, Handle, Sharing, StateTopic};
use crate::domain::types::BrokerId;
use crate::http;
use crate::kafka::cluster::{Cluster, ClusterOptions, Side};
use crate::kafka::connect::{Address, BadAddress};
use crate::kafka::group::{GroupError, GroupHandle, GroupMember, GroupOptions, Identity, Wanted};
use crate::metrics::Metrics;
use crate::server::{self, ListenerOptions, MirrorService};
use crate::sync::topics::TopicsError;
use crate::wire::mirror_rpc::MirrorMember;

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
    /// The port for peers and operators is not to be had.
    #[error("cannot listen on {addr} (listener.bind)")]
    BindListener {
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
    /// A bootstrap server is no address.
    #[error("mirror {mirror}: a bootstrap server of the {side} is not host:port")]
    Address {
        /// The mirror.
        mirror: String,
        /// Which cluster.
        side: Side,
        /// What is wrong with it.
        source: BadAddress,
    },
    /// A mirror cannot be set up as the configuration says.
    #[error("mirror {mirror} cannot run")]
    Topics {
        /// The mirror.
        mirror: String,
        /// Why.
        source: TopicsError,
    },
    /// The work cannot be shared.
    #[error("cannot take part in the group that shares the work (group.id, group.member_id)")]
    Group(#[source] GroupError),
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

impl AppError {
    /// True if only another configuration can help.
    pub fn is_bad_config(&self) -> bool {
        matches!(
            self,
            Self::Address { .. }
                | Self::Topics {
                    source: TopicsError::SameCluster { .. },
                    ..
                }
        )
    }
}

/// Mirrors give up unanswered appends after 8 s; an orderly stop takes less than 10 s.
const STOP_DEADLINE: Duration = Duration::from_millis(9_500);

/// Runs the daemon until SIGTERM or SIGINT; a second signal ends the process at once. The mirrors of `path` are put in force
/// anew at SIGHUP, and when the file has changed.
///
/// # Errors
/// [`AppError`]: the daemon could not start, or not end in order.
pub async fn run(config: Config, path: &Path) -> Result<(), AppError> {
    let mut signals = Signals::new().map_err(AppError::Signals)?;
    let hangup = signal(SignalKind::hangup()).map_err(AppError::Signals)?;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"))?;
    metrics
        .memory_limit_bytes
        .set(i64::try_from(config.limits.memory_bytes).unwrap_or(i64::MAX));
    let addr = config.http.bind;
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|source| AppError::Bind { addr, source })?;
    let addr = config.listener.bind;
    let peers = TcpListener::bind(addr)
        .await
        .map_err(|source| AppError::BindListener { addr, source })?;

    let stop = CancellationToken::new();
    let mut parts: JoinSet<Result<(), AppError>> = JoinSet::new();
    let house = House {
        config: &config,
        metrics: &metrics,
        stop: &stop,
    };
    let compared: Vec<CancellationToken> = config
        .mirrors
        .iter()
        .map(|_| CancellationToken::new())
        .collect();
    let identity = identity(&config, &peers);
    let (wanted, work) = watch::channel(None);
    let group = start_member(&house, identity.clone(), work, &mut parts)?;
    let (states, cluster) =
        start_coordinators(&house, &identity, &group, compared.clone(), &mut parts)?;
    let shared = Shared {
        metrics: metrics.clone(),
        states: states.clone(),
        group: group.clone(),
        stop: stop.clone(),
    };
    let mirrors = Mirrors::start(config.clone(), shared, compared)?;
    let sharing = Sharing {
        mirrors: mirrors.work(),
        cluster,
        topic: state_topic(&config),
        model: states.model().clone(),
        wanted,
    };
    let sharing = sharing.run(stop.clone());
    parts.spawn(async move {
        sharing.await;
        Ok(())
    });
    let views = mirrors.views();
    let (configs, reloaded) = mpsc::channel(1);
    parts.spawn(mirrors.run(reloaded));
    let reload = Reload {
        path: path.to_owned(),
        hangup,
        metrics: metrics.clone(),
        configs,
    };
    let reloading = reload.run(stop.clone());
    parts.spawn(async move {
        reloading.await;
        Ok(())
    });
    let started_at_seconds = wall_clock()
        .duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs());
    let view = View {
        mirrors: views.clone(),
        this: identity.clone(),
        group: group.clone(),
        states: states.clone(),
        state_partitions: config.state.partitions,
    };
    let shown = view.status(started_at_seconds, &config);
    let service = service(views, &identity, &group, &states, Arc::clone(&shown));
    let options = ListenerOptions::new(&config.limits);
    let listening = server::serve(peers, service, metrics.clone(), options, stop.clone());
    parts.spawn(async move {
        listening.await;
        Ok(())
    });
    let sources = http::Sources {
        refresh: view.refresh(&metrics),
        metrics,
        readiness: view.readiness(),
        status: shown,
    };
    let http_stop = CancellationToken::new();
    let http_stopped = http_stop.clone();
    parts.spawn(async move {
        http::serve(listener, sources, http_stopped).await;
        Ok(())
    });
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
            Ok(Ok(())) => Err(AppError::EndedEarly),
            Ok(Err(error)) => Err(error),
            Err(broken) => Err(AppError::Part(broken)),
        },
    };
    stop.cancel();
    // Whoever watches sees the mirrors stop: the endpoint goes last.
    let drained = tokio::select! {
        drained = timeout(STOP_DEADLINE, drain(&mut parts, &http_stop)) => drained,
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

async fn drain(
    parts: &mut JoinSet<Result<(), AppError>>,
    http_stop: &CancellationToken,
) -> Result<(), AppError> {
    let mut outcome = Ok(());
    loop {
        if parts.len() <= 1 {
            http_stop.cancel();
        }
        let Some(ended) = parts.join_next().await else {
            return outcome;
        };
        let ended = ended.map_err(AppError::Part).flatten();
        if outcome.is_ok() {
            outcome = ended;
        }
    }
}

/// What every part of the process is given.
struct House<'a> {
    config: &'a Config,
    metrics: &'a Metrics,
    stop: &'a CancellationToken,
}

/// A handle on a cluster, with connections of its own.
fn cluster(
    config: &Config,
    mirror: &str,
    side: Side,
    servers: &[HostPort],
) -> Result<Cluster, AppError> {
    let connection = &config.destination.connection;
    let options = ClusterOptions {
        client_id: connection.client_id.clone(),
        connect_timeout: connection.connect_timeout,
        request_timeout: connection.request_timeout,
        socket_buffer_bytes: Some(connection.socket_buffer_bytes),
        ..ClusterOptions::new(side, servers.iter().map(HostPort::to_string).collect())
    };
    Cluster::new(options).map_err(|source| AppError::Address {
        mirror: mirror.to_owned(),
        side,
        source,
    })
}

/// What answers the calls of peers and operators.
fn service(
    views: watch::Receiver<Arc<[MirrorView]>>,
    identity: &Identity,
    group: &GroupHandle,
    states: &Handle,
    status: http::StatusSource,
) -> MirrorService {
    let mirrors = move || {
        let views = views.borrow();
        views.iter().map(|view| view.configured.clone()).collect()
    };
    let (this, membership) = (identity.clone(), group.membership());
    let members = move || {
        let now = membership.borrow();
        let known = now.members.iter();
        let others = known.filter(|member| member.sidecar_id != this.sidecar_id);
        std::iter::once(&this).chain(others).map(member).collect()
    };
    MirrorService::new(
        states.clone(),
        Arc::new(mirrors),
        status,
        Arc::new(members),
        Arc::clone(&identity.sidecar_id),
    )
}

fn member(one: &Identity) -> MirrorMember {
    MirrorMember {
        sidecar: Arc::clone(&one.sidecar_id),
        host: Arc::clone(&one.advertised.host),
        port: i32::from(one.advertised.port),
        broker_id: one.broker_id.unwrap_or(BrokerId(-1)),
        version: Arc::clone(&one.version),
    }
}

/// Who this process is among those that share its work.
fn identity(config: &Config, listener: &TcpListener) -> Identity {
    let host_name = || {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    };
    let broker_id = config.destination.broker_id;
    let sidecar_id = config
        .group
        .member_id
        .clone()
        .or_else(|| broker_id.map(|id| id.to_string()))
        .unwrap_or_else(host_name);
    let bound = listener.local_addr().unwrap_or(config.listener.bind);
    let advertised = match &config.listener.advertised {
        Some(advertised) => Address {
            host: advertised.host.as_str().into(),
            port: advertised.port,
        },
        None if bound.ip().is_unspecified() => Address {
            host: host_name().into(),
            port: bound.port(),
        },
        None => Address {
            host: bound.ip().to_string().into(),
            port: bound.port(),
        },
    };
    Identity {
        sidecar_id: sidecar_id.into(),
        broker_id: broker_id.map(BrokerId),
        advertised,
        version: env!("CARGO_PKG_VERSION").into(),
        config_fingerprint: config.fingerprint(),
    }
}

fn state_topic(config: &Config) -> StateTopic {
    StateTopic {
        name: config.state.topic.as_str().into(),
        partitions: config.state.partitions,
        replication_factor: config.state.replication_factor,
    }
}

/// Joins the group of those that share the work.
fn start_member(
    house: &House<'_>,
    identity: Identity,
    work: watch::Receiver<Wanted>,
    parts: &mut JoinSet<Result<(), AppError>>,
) -> Result<GroupHandle, AppError> {
    let House { config, stop, .. } = *house;
    let servers = &config.destination.bootstrap_servers;
    let cluster = cluster(config, "", Side::Destination, servers)?;
    let options = GroupOptions {
        session_timeout: config.group.session_timeout,
        ..GroupOptions::new(&config.group.id, identity)
    };
    let (member, group) = GroupMember::new(cluster.clone(), options, work);
    let stop = stop.clone();
    parts.spawn(async move {
        let outcome = member.run(&stop).await;
        cluster.close().await;
        outcome.map_err(AppError::Group)
    });
    Ok(group)
}

/// Starts the coordinators of the state topic.
fn start_coordinators(
    house: &House<'_>,
    identity: &Identity,
    group: &GroupHandle,
    created_after: Vec<CancellationToken>,
    parts: &mut JoinSet<Result<(), AppError>>,
) -> Result<(Handle, Cluster), AppError> {
    let House {
        config,
        metrics,
        stop,
    } = *house;
    let servers = &config.destination.bootstrap_servers;
    let cluster = cluster(config, "", Side::Destination, servers)?;
    let (coordinators, handle) = Coordinators::new(CoordinatorParts {
        cluster: cluster.clone(),
        topic: state_topic(config),
        group: group.clone(),
        created_after,
        sidecar: Arc::clone(&identity.sidecar_id),
        incarnation: format!("{:016x}", rand::random::<u64>()).into(),
        address: identity.advertised.to_string().into(),
        request_timeout: config.destination.connection.request_timeout,
        wall_clock_ms,
        metrics: metrics.clone(),
    });
    let stop = stop.clone();
    let closed = cluster.clone();
    parts.spawn(async move {
        coordinators.run(stop).await;
        closed.close().await;
        Ok(())
    });
    Ok((handle, cluster))
}

fn wall_clock_ms() -> i64 {
    let since = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
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
