//! The mirrors of this process: each has tasks, connections and a token of its own, so that one can be begun, ended or changed
//! while the others go on. Must not know where a configuration comes from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::view::MirrorView;
use super::{AppError, cluster, wall_clock_ms};
use crate::config::{self, Changes, Config, HostPort};
use crate::coordinator::{Handle, MirrorWork};
use crate::domain::append::DRAIN;
use crate::domain::assign::STATE_TOPIC;
use crate::domain::status::MirrorStatus;
use crate::kafka::cluster::Side;
use crate::kafka::contact::{Contact, chain};
use crate::kafka::group::GroupHandle;
use crate::metrics::Metrics;
use crate::mirror::report::cluster_status;
use crate::mirror::{self, MirrorParts};
use crate::server::ConfiguredMirror;
use crate::sync::topics::{self, TopicsOptions};

/// What all mirrors share.
pub(super) struct Shared {
    pub(super) metrics: Metrics,
    pub(super) states: Handle,
    pub(super) group: GroupHandle,
    pub(super) stop: CancellationToken,
}

/// The mirrors that run. What others see of them is what [`Mirrors::views`] and [`Mirrors::work`] hand out.
pub(super) struct Mirrors {
    shared: Shared,
    /// In force: the process's part of the configuration that it began with, and the mirrors of the last one.
    config: Config,
    running: BTreeMap<String, Running>,
    tasks: JoinSet<(String, Result<(), AppError>)>,
    views: watch::Sender<Arc<[MirrorView]>>,
    work: watch::Sender<Arc<[MirrorWork]>>,
    /// Bytes of records that each may hold.
    memory_share: Arc<AtomicUsize>,
}

struct Running {
    stop: CancellationToken,
    view: MirrorView,
    /// Part of the configuration that the process began with: what is wrong with it ends the process.
    from_start: bool,
}

impl Mirrors {
    /// Begins with every mirror of `config`. `compared` has a token for each, which is cancelled as soon as its clusters are known
    /// to be two.
    pub(super) fn start(
        config: Config,
        shared: Shared,
        compared: Vec<CancellationToken>,
    ) -> Result<Self, AppError> {
        let mut mirrors = Self {
            memory_share: Arc::new(share(&config).into()),
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            views: watch::Sender::new(Arc::default()),
            work: watch::Sender::new(Arc::default()),
            shared,
            config,
        };
        for (mirror, compared) in mirrors.config.mirrors.clone().iter().zip(compared) {
            mirrors.begin(mirror, compared, true)?;
        }
        mirrors.publish();
        Ok(mirrors)
    }

    /// What is shown of each mirror, in the order of the configuration.
    pub(super) fn views(&self) -> watch::Receiver<Arc<[MirrorView]>> {
        self.views.subscribe()
    }

    /// What of each mirror is to be shared out.
    pub(super) fn work(&self) -> watch::Receiver<Arc<[MirrorWork]>> {
        self.work.subscribe()
    }

    /// Runs until the stop, and until every mirror has ended then. Takes over what comes through `configs`.
    pub(super) async fn run(mut self, mut configs: mpsc::Receiver<Config>) -> Result<(), AppError> {
        let mut membership = self.shared.group.membership();
        loop {
            self.give_up_orphans();
            tokio::select! {
                // First: the mirrors end by the same stop.
                biased;
                () = self.shared.stop.cancelled() => break,
                Some(ended) = self.tasks.join_next() => {
                    let (name, outcome) = ended?;
                    self.ended(&name, outcome)?;
                }
                Some(config) = configs.recv() => self.take_over(config).await?,
                Ok(()) = membership.changed() => {}
            }
        }
        let mut outcome = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            let ended = ended.map_err(AppError::Part).and_then(|(_, ended)| ended);
            outcome = outcome.and(ended);
        }
        outcome
    }

    /// A mirror has ended although nobody had told it to.
    fn ended(&mut self, name: &str, outcome: Result<(), AppError>) -> Result<(), AppError> {
        let since = self.running.remove(name);
        match outcome {
            Err(reason @ AppError::Topics { .. }) if since.is_some_and(|one| !one.from_start) => {
                error!(mirror = name, error = %chain(&reason), "mirror ended; correct the configuration and reload it");
                self.shared.metrics.remove_mirror(name);
                self.publish();
                Ok(())
            }
            Err(reason) => Err(reason),
            Ok(()) => Err(AppError::EndedEarly),
        }
    }

    /// Puts the mirrors of `new` in force; those that are the same there go on untouched.
    async fn take_over(&mut self, new: Config) -> Result<(), AppError> {
        let changes = self.config.changes_to(&new);
        let Changes {
            added,
            changed,
            removed,
            at_restart,
        } = &changes;
        if !at_restart.is_empty() {
            warn!(
                tables = ?at_restart,
                "the configuration differs in what only a restart of the process puts in force"
            );
        }
        if !changes.touch_mirrors() {
            info!("configuration read again: the mirrors are the same");
            return Ok(());
        }
        self.end(removed.iter().chain(changed)).await?;
        if self.shared.stop.is_cancelled() {
            return Ok(());
        }
        self.config.mirrors = new.mirrors;
        self.memory_share
            .store(share(&self.config), Ordering::Relaxed);
        for mirror in self.config.mirrors.clone() {
            if !self.running.contains_key(&mirror.name) {
                self.begin(&mirror, CancellationToken::new(), false)?;
            }
        }
        self.publish();
        self.shared
            .group
            .set_config_fingerprint(self.config.fingerprint());
        info!(
            ?added,
            ?changed,
            ?removed,
            mirrors = self.config.mirrors.len(),
            "configuration reloaded"
        );
        Ok(())
    }

    /// Ends mirrors in order: their answers in flight are awaited.
    async fn end(&mut self, names: impl Iterator<Item = &String>) -> Result<(), AppError> {
        let mut ending = Vec::new();
        for name in names {
            if let Some(one) = self.running.remove(name) {
                one.stop.cancel();
                ending.push(name);
            }
        }
        while !ending.is_empty()
            && let Some(ended) = self.tasks.join_next().await
        {
            let (name, outcome) = ended?;
            if let Some(at) = ending.iter().position(|ending| **ending == name) {
                ending.swap_remove(at);
                self.shared.metrics.remove_mirror(&name);
            } else if !self.shared.stop.is_cancelled() {
                self.ended(&name, outcome)?;
            }
        }
        Ok(())
    }

    fn publish(&self) {
        let views = self.config.mirrors.iter();
        let views = views.filter_map(|mirror| self.running.get(&mirror.name));
        let views: Arc<[MirrorView]> = views.map(|one| one.view.clone()).collect();
        self.work
            .send_replace(views.iter().map(MirrorView::work).collect());
        self.views.send_replace(views);
    }

    /// Partitions that go to another and belong to no mirror here any more: nothing is done for them.
    fn give_up_orphans(&self) {
        let now = Arc::clone(&self.shared.group.membership().borrow());
        let views = self.views.borrow();
        let ours = |topic: &str| {
            views
                .iter()
                .any(|view| view.configured.filter.matches(topic))
        };
        let orphans = now
            .revoking
            .iter()
            .filter(|tp| &*tp.topic != STATE_TOPIC && !ours(&tp.topic));
        self.shared.group.given_up(now.round, orphans);
    }

    /// Starts the two tasks of a mirror, its topics and its data path, and one that waits for both.
    fn begin(
        &mut self,
        mirror: &config::Mirror,
        compared: CancellationToken,
        from_start: bool,
    ) -> Result<(), AppError> {
        let config = &self.config;
        let Shared {
            metrics,
            states,
            group,
            stop,
        } = &self.shared;
        let stop = stop.child_token();
        let connection = &config.destination.connection;
        let cluster = |side, servers: &[HostPort]| cluster(config, &mirror.name, side, servers);
        let source = cluster(Side::Source, &mirror.source.bootstrap_servers)?;
        let destination = cluster(Side::Destination, &config.destination.bootstrap_servers)?;
        let source_contact = Arc::new(Contact::new(&mirror.name, Side::Source));
        let destination_contact = Arc::new(Contact::new(&mirror.name, Side::Destination));
        let (sets, topics) = watch::channel(Arc::default());
        // A place per topic that is compared at the moment; the mirror asks again if it is full.
        let (hold, hold_wanted) = mpsc::channel(256);
        let servers = mirror.source.bootstrap_servers.iter();
        let source_bootstrap: Vec<String> = servers.map(HostPort::to_string).collect();
        let first = MirrorStatus {
            name: mirror.name.clone(),
            source: cluster_status(source_bootstrap.clone(), None, source_contact.view()),
            ..MirrorStatus::default()
        };
        let (status, shown) = watch::channel(Arc::new(first));
        let view = MirrorView {
            topics: topics.clone(),
            status: shown,
            configured: ConfiguredMirror {
                name: mirror.name.as_str().into(),
                filter: mirror.topics.filter.clone(),
                source_bootstrap: source_bootstrap.join(",").into(),
            },
            source_contact: Arc::clone(&source_contact),
            destination_contact: Arc::clone(&destination_contact),
            destination: destination.clone(),
        };
        let options = TopicsOptions {
            mirror: mirror.name.clone(),
            filter: mirror.topics.filter.clone(),
            config_exclude: mirror.topics.config_exclude.clone(),
            replication_factor: mirror.topics.replication_factor,
            on_divergence: mirror.policy.on_divergence,
            refresh_interval: mirror.metadata_refresh_interval,
            request_timeout: connection.request_timeout,
            state_topic: config.state.topic.as_str().into(),
            source_cluster_id: mirror.source.cluster_id.as_deref().map(Arc::from),
            fingerprint: mirror.fingerprint(),
            compared: compared.clone(),
        };
        let preparing = topics::run(
            options,
            source.clone(),
            destination.clone(),
            Arc::clone(&source_contact),
            destination_contact,
            sets,
            hold_wanted,
            states.clone(),
            stop.clone(),
        );
        let copying = mirror::run(MirrorParts {
            config: mirror.clone(),
            memory_bytes: Arc::clone(&self.memory_share),
            request_timeout: connection.request_timeout,
            source: source.clone(),
            destination: destination.clone(),
            source_contact,
            topics,
            hold,
            status,
            metrics: metrics.clone(),
            wall_clock_ms,
            states: states.clone(),
            group: group.clone(),
            unfenced_wait: config.group.session_timeout + DRAIN,
            stop: stop.clone(),
        });
        let name = mirror.name.clone();
        let ended = stop.clone();
        self.tasks.spawn(async move {
            let outcome = both(preparing, copying, &name, &ended).await;
            source.close().await;
            destination.close().await;
            if outcome.is_ok() {
                // Nobody waits for what one that has ended would have found out.
                compared.cancel();
            }
            (name, outcome)
        });
        let running = Running {
            stop,
            view,
            from_start,
        };
        self.running.insert(mirror.name.clone(), running);
        Ok(())
    }
}

/// Runs both tasks of a mirror; when one has ended, so does the other.
async fn both(
    preparing: impl Future<Output = Result<(), topics::TopicsError>> + Send + 'static,
    copying: impl Future<Output = ()> + Send + 'static,
    name: &str,
    stop: &CancellationToken,
) -> Result<(), AppError> {
    let mut tasks: JoinSet<Result<(), topics::TopicsError>> = JoinSet::new();
    tasks.spawn(preparing);
    tasks.spawn(async move {
        copying.await;
        Ok(())
    });
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        stop.cancel();
        let ended = ended.map_err(AppError::Part).and_then(|ended| {
            ended.map_err(|source| AppError::Topics {
                mirror: name.to_owned(),
                source,
            })
        });
        outcome = outcome.and(ended);
    }
    outcome
}

fn share(config: &Config) -> usize {
    config.limits.memory_bytes / config.mirrors.len().max(1)
}
