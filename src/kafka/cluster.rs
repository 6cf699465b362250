//! One cluster as we know it: its id, its brokers, the leaders of the topics that matter, and connections to all of
//! them. Must not send anything but Metadata, and not decide what an error means for a mirror.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use rand::seq::SliceRandom;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use super::backoff::Backoff;
use super::connect::{Address, BadAddress, Connect, ConnectError, TcpConnector};
use super::connection::{Connection, ConnectionOptions, RequestError};
pub use super::leaders::{Leaders, Metadata, Node, PartitionMetadata, TopicMetadata};
pub use super::pool::Lane;
use super::pool::{Key, Pool, PoolOptions};
use crate::domain::types::{BrokerId, LeaderEpoch, TopicPartition};
use crate::wire::api::metadata::{MetadataRequest, MetadataRequestTopic};

/// Refreshes that callers asked for come at most this often.
const REFRESH_SPACING: Duration = Duration::from_millis(100);

/// Brokers that [`Cluster::any`] tries at the same time.
const TRIED_AT_ONCE: usize = 3;

/// Tries of one refresh, each with another broker if the one before broke its connection.
const REFRESH_TRIES: u32 = 3;

/// Which end of the mirror a cluster is, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where records come from.
    Source,
    /// Where they go.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// How a cluster is reached.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Which end it is.
    pub side: Side,
    /// Where to begin, and where to begin again when all known brokers are gone: `host:port` each.
    pub bootstrap_servers: Vec<String>,
    /// The name under which the brokers log and account us.
    pub client_id: String,
    /// Time for a TCP connection to one address.
    pub connect_timeout: Duration,
    /// Time for the first request on a connection, and for Metadata.
    pub request_timeout: Duration,
    /// Socket buffers in bytes; `None` leaves them to the system.
    pub socket_buffer_bytes: Option<u32>,
    /// The largest response frame that is taken, in bytes.
    pub max_frame_bytes: usize,
    /// Pauses between connection attempts to one broker, and between refreshes that fail.
    pub backoff: Backoff,
    /// Metadata is asked for anew after this time even if nobody misses anything (`metadata.max.age.ms`).
    pub metadata_max_age: Duration,
}

impl ClusterOptions {
    /// The usual limits for these servers.
    pub fn new(side: Side, bootstrap_servers: Vec<String>) -> Self {
        Self {
            side,
            bootstrap_servers,
            client_id: "truemirror".to_owned(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            socket_buffer_bytes: None,
            max_frame_bytes: ConnectionOptions::default().max_frame_bytes,
            backoff: Backoff::default(),
            metadata_max_age: Duration::from_secs(300),
        }
    }
}

/// Which topics a refresh asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topics {
    /// All that we may see.
    All,
    /// These; none at all is a question for the brokers only.
    Named(Vec<Arc<str>>),
}

/// A refresh that brought nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Nobody to ask.
    #[error("cannot reach the {side} cluster")]
    Connect {
        /// Which cluster.
        side: Side,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// Whoever was asked did not answer.
    #[error("the {side} cluster did not answer Metadata")]
    Request {
        /// Which cluster.
        side: Side,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// A broker of another cluster answers under an address of this one. Nothing of the answer was used.
    #[error("{address} belongs to cluster {found}, but the {side} cluster is {expected}")]
    AnotherCluster {
        /// Which cluster.
        side: Side,
        /// The id of the first contact.
        expected: Arc<str>,
        /// The id of the answer; "none" if it has none.
        found: Arc<str>,
        /// Who answered.
        address: Arc<str>,
    },
}

struct Inner {
    options: ClusterOptions,
    bootstrap: Vec<Address>,
    pool: Pool,
    cluster_id: OnceLock<Arc<str>>,
    leaders: watch::Sender<Arc<Leaders>>,
    interest: Mutex<Vec<Arc<str>>>,
    refresh_wanted: Notify,
    tasks: TaskTracker,
}

/// A handle on a cluster; cheap to clone. When the last one is gone, the background refresh ends.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
    stop: CancellationToken,
    _stop_with_last: Arc<DropGuard>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("side", &self.inner.options.side)
            .field("cluster_id", &self.cluster_id())
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster over plain TCP. Nothing is connected yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a bootstrap server is not `host:port`.
    pub fn new(options: ClusterOptions) -> Result<Self, BadAddress> {
        let tcp = TcpConnector::new(options.connect_timeout, options.socket_buffer_bytes);
        Self::with_connector(options, Arc::new(tcp))
    }

    /// A cluster over streams that `connector` makes.
    ///
    /// # Errors
    /// If a bootstrap server is not `host:port`.
    pub fn with_connector(
        options: ClusterOptions,
        connector: Arc<dyn Connect>,
    ) -> Result<Self, BadAddress> {
        let bootstrap = options.bootstrap_servers.iter().map(|text| text.parse());
        let bootstrap = bootstrap.collect::<Result<_, _>>()?;
        let tasks = TaskTracker::new();
        let pool_options = PoolOptions {
            connection: ConnectionOptions {
                client_id: options.client_id.as_str().into(),
                max_frame_bytes: options.max_frame_bytes,
                ..ConnectionOptions::default()
            },
            setup_timeout: options.request_timeout,
            backoff: options.backoff,
        };
        let inner = Arc::new(Inner {
            bootstrap,
            pool: Pool::new(connector, pool_options, tasks.clone()),
            cluster_id: OnceLock::new(),
            leaders: watch::Sender::new(Arc::default()),
            interest: Mutex::default(),
            refresh_wanted: Notify::new(),
            tasks,
            options,
        });
        let stop = CancellationToken::new();
        inner
            .tasks
            .spawn(keep_fresh(Arc::clone(&inner), stop.clone()));
        Ok(Self {
            inner,
            _stop_with_last: Arc::new(stop.clone().drop_guard()),
            stop,
        })
    }

    /// Which end of the mirror it is.
    pub fn side(&self) -> Side {
        self.inner.options.side
    }

    /// The id that the cluster gave at first contact.
    pub fn cluster_id(&self) -> Option<Arc<str>> {
        self.inner.cluster_id.get().cloned()
    }

    /// The connection to broker `id` for `lane`, made anew if it broke. After a failure a caller waits out a growing
    /// pause before the next attempt, so that a loop around this needs none of its own.
    ///
    /// # Errors
    /// If the broker is not known (ask for a refresh) or cannot be reached.
    pub async fn broker(&self, id: BrokerId, lane: Lane) -> Result<Connection, ConnectError> {
        let node = self.inner.leaders.borrow().brokers.get(&id).cloned();
        let Node { address, .. } = node.ok_or(ConnectError::UnknownBroker { id })?;
        self.inner
            .pool
            .connection(Key::Broker(id, lane), &address)
            .await
    }

    /// A connection to any broker for `lane`: one that stands, else the first of the known brokers and the bootstrap
    /// servers that can be reached, a few at a time.
    ///
    /// # Errors
    /// If nobody can be reached.
    pub async fn any(&self, lane: Lane) -> Result<Connection, ConnectError> {
        self.inner.any(lane).await
    }

    /// Asks for metadata now, and takes it into [`Cluster::watch`].
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn refresh(&self, topics: Topics) -> Result<Arc<Metadata>, ClusterError> {
        self.inner.refresh(topics).await
    }

    /// Asks for a refresh of the topics of interest in the background: at once, or with the next one if the last was a
    /// moment ago. Repeated with growing pauses until it succeeds.
    pub fn request_refresh(&self) {
        self.inner.refresh_wanted.notify_one();
    }

    /// What is known, and a wake-up for every change of it.
    pub fn watch(&self) -> watch::Receiver<Arc<Leaders>> {
        self.inner.leaders.subscribe()
    }

    /// What is known now.
    pub fn leaders(&self) -> Arc<Leaders> {
        Arc::clone(&self.inner.leaders.borrow())
    }

    /// The partition's leader and its epoch, if one is known.
    pub fn leader(&self, tp: &TopicPartition) -> Option<(BrokerId, LeaderEpoch)> {
        self.inner.leaders.borrow().leader(tp)
    }

    /// Sets the topics that background refreshes ask for, and asks for one if there are new ones. What was known of
    /// others is forgotten.
    pub fn set_topics(&self, topics: impl IntoIterator<Item = Arc<str>>) {
        let topics: BTreeSet<_> = topics.into_iter().collect();
        let news = {
            let known = &self.inner.leaders.borrow().topics;
            topics.iter().any(|topic| !known.contains_key(topic))
        };
        self.inner.leaders.send_if_modified(|leaders| {
            let stale = leaders.topics.keys().any(|name| !topics.contains(name));
            if stale {
                Arc::make_mut(leaders)
                    .topics
                    .retain(|name, _| topics.contains(name));
            }
            stale
        });
        *self.inner.interest() = topics.into_iter().collect();
        if news {
            self.request_refresh();
        }
    }

    /// Ends the background refresh, closes every connection and waits until their tasks are gone.
    pub async fn close(&self) {
        self.stop.cancel();
        self.inner.tasks.close();
        self.inner.pool.close();
        self.inner.tasks.wait().await;
    }
}

impl Inner {
    fn interest(&self) -> std::sync::MutexGuard<'_, Vec<Arc<str>>> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn any(&self, lane: Lane) -> Result<Connection, ConnectError> {
        let mut known: Vec<(Key, Address)> = {
            let brokers = &self.leaders.borrow().brokers;
            let nodes = brokers.iter();
            nodes
                .map(|(id, node)| (Key::Broker(*id, lane), node.address.clone()))
                .collect()
        };
        let servers = self.bootstrap.iter().enumerate();
        let mut bootstrap: Vec<(Key, Address)> = servers
            .map(|(position, address)| (Key::Bootstrap(position, lane), address.clone()))
            .collect();
        let standing = known.iter().chain(&bootstrap);
        if let Some(open) = standing.filter_map(|(key, _)| self.pool.open(*key)).next() {
            return Ok(open);
        }
        known.shuffle(&mut rand::rng());
        bootstrap.shuffle(&mut rand::rng());
        let tried = known.len() + bootstrap.len();
        // In turn: after a move of the whole cluster every known address is dead, and the bootstrap name leads on.
        let mut bootstrap = bootstrap.into_iter();
        let mut candidates = Vec::with_capacity(tried);
        for broker in known {
            candidates.push(broker);
            candidates.extend(bootstrap.next());
        }
        candidates.extend(bootstrap);
        let mut attempts = futures::stream::iter(candidates)
            .map(|(key, address)| async move { self.pool.connection(key, &address).await })
            .buffer_unordered(TRIED_AT_ONCE);
        let mut last = None;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(Box::new(error)),
            }
        }
        Err(ConnectError::Nobody { tried, last })
    }

    async fn refresh(&self, topics: Topics) -> Result<Arc<Metadata>, ClusterError> {
        let side = self.options.side;
        let everything = topics == Topics::All;
        let request = MetadataRequest {
            topics: match topics {
                Topics::All => None,
                Topics::Named(names) => Some(
                    names
                        .into_iter()
                        .map(|name| MetadataRequestTopic {
                            name: Some(name),
                            ..Default::default()
                        })
                        .collect(),
                ),
            },
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let connection = self
                .any(Lane::Control)
                .await
                .map_err(|source| ClusterError::Connect { side, source })?;
            let answer = connection
                .call(&request, self.options.request_timeout)
                .await;
            match answer {
                Ok(answer) => {
                    let metadata = Metadata::from_response(answer);
                    self.check_cluster_id(&metadata, &connection)?;
                    self.absorb(&metadata, everything);
                    return Ok(Arc::new(metadata));
                }
                // Asking again is harmless here, and the next broker may be well.
                Err(error) if error.connection_lost() && tries < REFRESH_TRIES => {
                    debug!(%side, peer = connection.peer(), %error, "metadata asked again");
                }
                Err(source) => return Err(ClusterError::Request { side, source }),
            }
        }
    }

    fn check_cluster_id(
        &self,
        metadata: &Metadata,
        connection: &Connection,
    ) -> Result<(), ClusterError> {
        let Some(found) = &metadata.cluster_id else {
            return match self.cluster_id.get() {
                None => Ok(()),
                Some(expected) => Err(self.another_cluster(expected, "none".into(), connection)),
            };
        };
        let expected = self.cluster_id.get_or_init(|| {
            info!(side = %self.options.side, cluster_id = %found, peer = connection.peer(), "first contact");
            Arc::clone(found)
        });
        if expected == found {
            return Ok(());
        }
        Err(self.another_cluster(expected, Arc::clone(found), connection))
    }

    fn another_cluster(
        &self,
        expected: &Arc<str>,
        found: Arc<str>,
        connection: &Connection,
    ) -> ClusterError {
        // Whoever it is, nothing more is asked there.
        connection.close();
        ClusterError::AnotherCluster {
            side: self.options.side,
            expected: Arc::clone(expected),
            found,
            address: connection.peer().into(),
        }
    }

    fn absorb(&self, metadata: &Metadata, everything: bool) {
        self.leaders.send_if_modified(|leaders| {
            let mut newest = (**leaders).clone();
            newest.absorb(metadata, everything);
            let changed = newest != **leaders;
            if changed {
                *leaders = Arc::new(newest);
            }
            changed
        });
        self.pool.close_moved(|id| {
            let node = metadata.brokers.get(&id)?;
            Some(node.address.clone())
        });
    }
}

/// Refreshes when asked, and when metadata is old.
async fn keep_fresh(inner: Arc<Inner>, stop: CancellationToken) {
    let work = async {
        loop {
            tokio::select! {
                () = inner.refresh_wanted.notified() => {}
                () = sleep(inner.options.metadata_max_age) => {}
            }
            let mut failures = 0_u32;
            loop {
                let topics = inner.interest().clone();
                let Err(error) = inner.refresh(Topics::Named(topics)).await else {
                    break;
                };
                failures = failures.saturating_add(1);
                debug!(side = %inner.options.side, failures, error = %error, "metadata not refreshed");
                sleep(inner.options.backoff.pause(failures, rand::random())).await;
            }
            sleep(REFRESH_SPACING).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}
