//! Real Kafka clusters (KRaft) on loopback: start, kill, pause, stop, start again, move leaders, admin calls.
//!
//! Every node has a listener `INTERNAL`, plain and never behind a proxy, for the brokers among themselves and for the
//! harness; and a listener `CLIENT`, which the code under test sees, behind a proxy if asked for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, CreateTopicsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest, MetadataRequest,
    MetadataResponse, TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use tokio::time::Instant;

use super::nodes::{Installation, default_version, random_uuid};
use super::proxy::{Proxy, ProxyHandle};
use super::{client, poll_until, process};

/// Node id of a controller that has a process of its own.
pub const CONTROLLER_ID: i32 = 100;

/// Longest wait for a cluster, a topic or a leader. Generous: CI machines are slow, and a wait that succeeds costs nothing.
const READY: Duration = Duration::from_secs(90);

/// What kind of cluster a test wants.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Names the directory with logs and data.
    pub name: String,
    /// Brokers, with ids 1, 2, 3.
    pub brokers: i32,
    /// The controller runs in a process of its own (id 100), so that every broker may be killed. Otherwise node 1 is both.
    pub separate_controller: bool,
    /// Added to every node's server.properties; the last word.
    pub server_properties: Vec<(String, String)>,
    /// For example `4.4.0`.
    pub kafka_version: String,
    /// Clients reach each broker through a proxy only (see [`KafkaCluster::proxy`]).
    pub proxied: bool,
    /// Security protocol of the clients' listener; keys and users come by `server_properties`.
    pub client_protocol: String,
    /// Heap of a broker.
    pub heap_mib: u32,
}

impl ClusterOptions {
    /// One plain broker.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            brokers: 1,
            separate_controller: false,
            server_properties: Vec::new(),
            kafka_version: default_version(),
            proxied: false,
            client_protocol: "PLAINTEXT".into(),
            heap_mib: 320,
        }
    }

    /// Three brokers that may all be killed, and a controller beside them.
    pub fn three_brokers(name: &str) -> Self {
        Self {
            brokers: 3,
            separate_controller: true,
            ..Self::new(name)
        }
        // Also of the groups' own topic, or a killed broker takes the group along that shares the work.
        .with("offsets.topic.replication.factor", "3")
    }

    /// The same behind a proxy.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// The same with a server property.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.server_properties.push((key.into(), value.into()));
        self
    }
}

/// Whose configs [`KafkaCluster::alter_config`] changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigOf {
    /// A topic.
    Topic(String),
    /// The dynamic configs of one broker.
    Broker(i32),
    /// The dynamic defaults of all brokers.
    AllBrokers,
}

/// A partition as one broker's metadata shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionView {
    /// Broker id of the leader, `None` while there is none.
    pub leader: Option<i32>,
    /// Leader epoch.
    pub leader_epoch: i32,
    /// Broker ids, preferred leader first.
    pub replicas: Vec<i32>,
    /// Broker ids in sync.
    pub isr: Vec<i32>,
}

/// A running cluster. Dropping it kills its processes; its directory stays when the test panics.
#[derive(Debug)]
pub struct KafkaCluster {
    options: ClusterOptions,
    installation: Installation,
    cluster_id: String,
    directory: PathBuf,
    controller_port: u16,
    nodes: Mutex<BTreeMap<i32, Node>>,
    proxy: Option<Proxy>,
}

#[derive(Debug)]
struct Node {
    data: PathBuf,
    log: PathBuf,
    client_port: u16,
    internal_port: u16,
    child: Option<Child>,
    paused: bool,
}

impl KafkaCluster {
    /// Starts a cluster and waits until all brokers know each other.
    pub async fn start(options: ClusterOptions) -> Self {
        let begin = Instant::now();
        let version = options.kafka_version.clone();
        let installation = tokio::task::spawn_blocking(move || Installation::prepare(&version))
            .await
            .unwrap();
        let directory = make_directory(&options.name);
        let mut cluster = Self {
            installation,
            cluster_id: random_uuid(),
            controller_port: process::free_port(),
            nodes: Mutex::new(BTreeMap::new()),
            proxy: None,
            directory,
            options,
        };
        let ids = cluster.node_ids();
        {
            let mut nodes = cluster.nodes();
            for id in &ids {
                let data = cluster.directory.join(format!("data-{id}"));
                cluster.installation.format(&data, &cluster.cluster_id, *id);
                let node = Node {
                    data,
                    log: cluster.directory.join(format!("node-{id}.log")),
                    client_port: process::free_port(),
                    internal_port: process::free_port(),
                    child: None,
                    paused: false,
                };
                nodes.insert(*id, node);
            }
        }
        if cluster.options.proxied {
            let upstreams = cluster
                .broker_ids()
                .into_iter()
                .map(|id| (id, cluster.nodes()[&id].client_port))
                .collect();
            cluster.proxy = Some(Proxy::start(upstreams));
        }
        for id in ids {
            cluster.launch(id);
        }
        cluster.wait_ready().await;
        eprintln!(
            "cluster {} (Kafka {}) ready in {:?}, logs in {}",
            cluster.options.name,
            cluster.options.kafka_version,
            begin.elapsed(),
            cluster.directory.display()
        );
        cluster
    }

    /// Where clients connect: every broker, behind the proxy if there is one.
    pub fn bootstrap(&self) -> String {
        let nodes = self.nodes();
        let servers = self
            .broker_ids()
            .into_iter()
            .map(|id| format!("127.0.0.1:{}", self.advertised_port(id, &nodes[&id])));
        servers.collect::<Vec<_>>().join(",")
    }

    /// The same brokers on their internal listeners: plain, never behind a proxy.
    pub fn direct_bootstrap(&self) -> String {
        let nodes = self.nodes();
        let servers = self
            .broker_ids()
            .into_iter()
            .map(|id| format!("127.0.0.1:{}", nodes[&id].internal_port));
        servers.collect::<Vec<_>>().join(",")
    }

    /// Ids of the brokers, running or not.
    pub fn broker_ids(&self) -> Vec<i32> {
        (1..=self.options.brokers).collect()
    }

    /// The cluster id that clients see.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Where the logs of its processes and the data lie.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The log directory (`log.dirs`) of a node.
    pub fn broker_log_dir(&self, id: i32) -> PathBuf {
        self.nodes()[&id].data.clone()
    }

    /// What a node has logged so far.
    pub fn broker_log(&self, id: i32) -> String {
        let path = self.nodes()[&id].log.clone();
        std::fs::read_to_string(&path).unwrap_or_default()
    }

    /// The address of a broker's internal listener, for [`client::call`].
    pub fn internal_address(&self, id: i32) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.nodes()[&id].internal_port))
    }

    /// The port of a broker's clients' listener itself, never that of its proxy.
    pub fn client_port(&self, id: i32) -> u16 {
        self.nodes()[&id].client_port
    }

    /// Process id of a node that runs.
    pub fn pid(&self, id: i32) -> Option<u32> {
        self.nodes()[&id].child.as_ref().map(Child::id)
    }

    /// True if clients reach it through a proxy only.
    pub fn is_proxied(&self) -> bool {
        self.proxy.is_some()
    }

    /// The control of the proxy; panics for a cluster without one.
    pub fn proxy(&self) -> ProxyHandle {
        self.proxy
            .as_ref()
            .expect("ClusterOptions::proxied")
            .handle()
    }

    /// Ends a node as a power cut would (SIGKILL).
    pub fn kill(&self, id: i32) {
        let mut nodes = self.nodes();
        let node = nodes.get_mut(&id).expect("a node of this cluster");
        let mut child = node.child.take().expect("the node runs");
        node.paused = false;
        process::kill_and_reap(&mut child);
    }

    /// Stops a node in its tracks (SIGSTOP); its connections stay open and mute.
    pub fn pause(&self, id: i32) {
        self.nodes().get_mut(&id).unwrap().paused = true;
        process::signal(self.pid(id).expect("the node runs"), "STOP");
    }

    /// Lets a paused node go on (SIGCONT).
    pub fn resume(&self, id: i32) {
        process::signal(self.pid(id).expect("the node runs"), "CONT");
        self.nodes().get_mut(&id).unwrap().paused = false;
    }

    /// Stops a node in an orderly way (SIGTERM, controlled shutdown) and waits for its end.
    pub async fn stop(&self, id: i32) {
        let mut child = self
            .nodes()
            .get_mut(&id)
            .and_then(|node| node.child.take())
            .expect("the node runs");
        process::signal(child.id(), "TERM");
        let ended = process::wait_for_exit(&mut child, Duration::from_secs(30)).await;
        process::kill_and_reap(&mut child);
        assert!(ended.is_some(), "node {id} did not stop within 30 s");
    }

    /// Starts a node that was killed or stopped, with the same data and ports. Does not wait: see [`Self::wait_ready`].
    pub fn start_again(&self, id: i32) {
        assert!(self.pid(id).is_none(), "node {id} runs already");
        self.launch(id);
    }

    /// The same, but its clients' listener has a new port (which a proxy hides).
    pub fn start_again_on_new_port(&self, id: i32) {
        assert!(self.pid(id).is_none(), "node {id} runs already");
        let port = process::free_port();
        self.nodes().get_mut(&id).unwrap().client_port = port;
        if let Some(proxy) = &self.proxy {
            proxy.handle().set_upstream(id, port);
        }
        self.launch(id);
    }

    /// Waits until every running broker knows every running broker.
    pub async fn wait_ready(&self) {
        poll_until("cluster ready", READY, async || {
            self.assert_alive();
            let running = self.running_brokers();
            for id in &running {
                let metadata = self.metadata_of(*id, &[]).await?;
                let mut known: Vec<i32> = metadata.brokers.iter().map(|b| b.node_id.0).collect();
                known.sort_unstable();
                if !running.iter().all(|wanted| known.contains(wanted)) {
                    return Err(format!("broker {id} knows {known:?} of {running:?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Creates a topic and waits until every running broker shows all its leaders.
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        replication_factor: i16,
        configs: &[(&str, &str)],
    ) {
        let configs = configs.iter().map(|(key, value)| {
            CreatableTopicConfig::default()
                .with_name(text(key))
                .with_value(Some(text(value)))
        });
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(replication_factor)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(10_000);
        let answer = self.admin(7, &request).await;
        let result = &answer.topics[0];
        // 36 (TOPIC_ALREADY_EXISTS) may be the echo of our own request whose answer was lost.
        assert!(
            matches!(result.error_code, 0 | 36),
            "create {name}: error {} {:?}",
            result.error_code,
            result.error_message
        );
        poll_until("topic has leaders everywhere", READY, async || {
            for id in self.running_brokers() {
                let seen = self.partitions_seen_by(id, name).await?;
                if seen.len() != partitions as usize || seen.values().any(|p| p.leader.is_none()) {
                    return Err(format!("broker {id} sees {seen:?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Deletes a topic and waits until no running broker shows it.
    pub async fn delete_topic(&self, name: &str) {
        let state = DeleteTopicState::default().with_name(Some(topic_name(name)));
        let request = DeleteTopicsRequest::default()
            .with_topics(vec![state])
            .with_timeout_ms(10_000);
        let answer = self.admin(6, &request).await;
        let code = answer.responses[0].error_code;
        // 3 (UNKNOWN_TOPIC_OR_PARTITION) may be the echo of our own request whose answer was lost.
        assert!(matches!(code, 0 | 3), "delete {name}: error {code}");
        poll_until("topic gone everywhere", READY, async || {
            for id in self.running_brokers() {
                if self.partitions_seen_by(id, name).await.is_ok() {
                    return Err(format!("broker {id} still shows it"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Sets (`Some`) or removes (`None`) configs and waits until every running broker shows what was set.
    pub async fn alter_config(&self, of: &ConfigOf, entries: &[(&str, Option<&str>)]) {
        let configs = entries.iter().map(|(key, value)| {
            AlterableConfig::default()
                .with_name(text(key))
                .with_config_operation(i8::from(value.is_none()))
                .with_value(value.map(text))
        });
        let (resource_type, resource_name) = of.resource();
        let resource = AlterConfigsResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(&resource_name))
            .with_configs(configs.collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let answer = self.admin(1, &request).await;
        let result = &answer.responses[0];
        assert_eq!(
            result.error_code, 0,
            "alter {of:?}: {:?}",
            result.error_message
        );
        poll_until("config shown everywhere", READY, async || {
            let askable = match of {
                ConfigOf::Broker(id) => vec![*id],
                ConfigOf::Topic(_) | ConfigOf::AllBrokers => self.running_brokers(),
            };
            for id in askable {
                let shown = self.describe_config_of(id, of).await?;
                for (key, value) in entries {
                    if let Some(value) = value
                        && shown.get(*key).map(String::as_str) != Some(*value)
                    {
                        return Err(format!("broker {id}: {key} is {:?}", shown.get(*key)));
                    }
                }
            }
            Ok(())
        })
        .await;
    }

    /// All configs in force, defaults included.
    pub async fn describe_config(&self, of: &ConfigOf) -> BTreeMap<String, String> {
        poll_until("describe configs", READY, async || {
            let broker = match of {
                ConfigOf::Broker(id) => *id,
                ConfigOf::Topic(_) | ConfigOf::AllBrokers => self.any_broker()?,
            };
            self.describe_config_of(broker, of).await
        })
        .await
    }

    /// The partitions of a topic by index; fails when the topic does not exist.
    pub async fn partitions(&self, topic: &str) -> Result<BTreeMap<i32, PartitionView>, String> {
        self.partitions_seen_by(self.any_broker()?, topic).await
    }

    /// The leader of a partition; waits until there is one that runs.
    pub async fn leader_of(&self, topic: &str, partition: i32) -> i32 {
        poll_until("leader", READY, async || {
            let partitions = self.partitions(topic).await?;
            let view = partitions.get(&partition).ok_or("no such partition")?;
            let leader = view.leader.ok_or("no leader")?;
            if self.running_brokers().contains(&leader) {
                Ok(leader)
            } else {
                Err(format!("leader {leader} does not run"))
            }
        })
        .await
    }

    /// Waits until every running broker shows the same leaders and all replicas of a topic in sync.
    pub async fn wait_in_sync(&self, topic: &str) {
        poll_until("all replicas in sync", READY, async || {
            let mut agreed = None;
            for id in self.running_brokers() {
                let seen = self.partitions_seen_by(id, topic).await?;
                let behind = seen
                    .values()
                    .find(|p| p.isr.len() < p.replicas.len() || p.leader.is_none());
                if let Some(behind) = behind {
                    return Err(format!("broker {id} sees {behind:?}"));
                }
                let leaders: Vec<_> = seen.values().map(|p| (p.leader, p.leader_epoch)).collect();
                if *agreed.get_or_insert_with(|| leaders.clone()) != leaders {
                    return Err(format!("broker {id} sees {leaders:?}, another {agreed:?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Moves a partition to other brokers (preferred leader first) and waits until they are in sync.
    pub async fn reassign(&self, topic: &str, partition: i32, replicas: &[i32]) {
        let wanted = ReassignablePartition::default()
            .with_partition_index(partition)
            .with_replicas(Some(replicas.iter().copied().map(BrokerId).collect()));
        let topic_wanted = ReassignableTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![wanted]);
        let request = AlterPartitionReassignmentsRequest::default()
            .with_timeout_ms(10_000)
            .with_topics(vec![topic_wanted]);
        let answer = self.admin(0, &request).await;
        let refused = answer
            .responses
            .iter()
            .flat_map(|t| &t.partitions)
            .find(|p| p.error_code != 0);
        assert!(
            answer.error_code == 0 && refused.is_none(),
            "reassign {topic}-{partition} to {replicas:?}: {answer:?}"
        );
        poll_until("reassignment done", READY, async || {
            let partitions = self.partitions(topic).await?;
            let view = partitions.get(&partition).ok_or("no such partition")?;
            if view.replicas == replicas && replicas.iter().all(|id| view.isr.contains(id)) {
                Ok(())
            } else {
                Err(format!("{view:?}"))
            }
        })
        .await;
    }

    /// Makes `to` the leader of a partition, in place of the last replica if it holds none.
    pub async fn move_leader(&self, topic: &str, partition: i32, to: i32) {
        self.wait_in_sync(topic).await;
        let partitions = self.partitions(topic).await.unwrap();
        let mut replicas = partitions[&partition].replicas.clone();
        replicas.retain(|id| *id != to);
        replicas.truncate(partitions[&partition].replicas.len() - 1);
        replicas.insert(0, to);
        self.reassign(topic, partition, &replicas).await;
        let election = TopicPartitions::default()
            .with_topic(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = ElectLeadersRequest::default()
            .with_election_type(0)
            .with_topic_partitions(Some(vec![election]))
            .with_timeout_ms(10_000);
        let answer = self.admin(2, &request).await;
        let refused = answer
            .replica_election_results
            .iter()
            .flat_map(|t| &t.partition_result)
            // 84 (ELECTION_NOT_NEEDED): it leads already.
            .find(|p| !matches!(p.error_code, 0 | 84));
        assert!(refused.is_none(), "elect {to}: {refused:?}");
        poll_until("leader moved", READY, async || {
            for id in self.running_brokers() {
                let seen = self.partitions_seen_by(id, topic).await?;
                let leader = seen.get(&partition).and_then(|p| p.leader);
                if leader != Some(to) {
                    return Err(format!("broker {id} sees leader {leader:?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Runs a Java tool of this Kafka version and returns what it printed; panics when it fails or takes over 120 s.
    pub async fn tool(&self, class: &str, args: &[&str]) -> String {
        let out = self.directory.join(format!("tool-{}.log", random_uuid()));
        let mut child =
            process::spawn_logged("java", &self.installation.tool_args(class, args), &out);
        let ended = process::wait_for_exit(&mut child, Duration::from_secs(120)).await;
        process::kill_and_reap(&mut child);
        let printed = std::fs::read_to_string(&out).unwrap();
        assert!(
            ended.is_some_and(|status| status.success()),
            "{class} {args:?}: {ended:?}\n{printed}"
        );
        printed
    }

    /// Sends an admin request to any running broker until one answers (KRaft brokers forward to the controller).
    pub async fn admin<R: Request>(&self, version: i16, request: &R) -> R::Response {
        poll_until("admin call", READY, async || {
            let broker = self.internal_address(self.any_broker()?);
            client::call(broker, version, request, Duration::from_secs(15)).await
        })
        .await
    }

    fn node_ids(&self) -> Vec<i32> {
        let mut ids = self.broker_ids();
        if self.options.separate_controller {
            ids.push(CONTROLLER_ID);
        }
        ids
    }

    /// Brokers that have a process and are not paused.
    fn running_brokers(&self) -> Vec<i32> {
        let nodes = self.nodes();
        let running = |id: &i32| nodes[id].child.is_some() && !nodes[id].paused;
        self.broker_ids().into_iter().filter(running).collect()
    }

    fn any_broker(&self) -> Result<i32, String> {
        let running = self.running_brokers();
        if running.is_empty() {
            return Err("no broker runs".into());
        }
        Ok(running[rand::random_range(0..running.len())])
    }

    async fn metadata_of(&self, id: i32, topics: &[&str]) -> Result<MetadataResponse, String> {
        let topics = topics
            .iter()
            .map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
        let request = MetadataRequest::default()
            .with_topics(Some(topics.collect()))
            .with_allow_auto_topic_creation(false);
        client::call(
            self.internal_address(id),
            12,
            &request,
            Duration::from_secs(5),
        )
        .await
    }

    async fn partitions_seen_by(
        &self,
        id: i32,
        topic: &str,
    ) -> Result<BTreeMap<i32, PartitionView>, String> {
        let metadata = self.metadata_of(id, &[topic]).await?;
        let found = metadata.topics.first().ok_or("no topic in the answer")?;
        if found.error_code != 0 {
            return Err(format!("{topic}: error {}", found.error_code));
        }
        let ids = |brokers: &[BrokerId]| brokers.iter().map(|b| b.0).collect::<Vec<_>>();
        let views = found.partitions.iter().map(|p| {
            let view = PartitionView {
                leader: (p.leader_id.0 >= 0).then_some(p.leader_id.0),
                leader_epoch: p.leader_epoch,
                replicas: ids(&p.replica_nodes),
                isr: ids(&p.isr_nodes),
            };
            (p.partition_index, view)
        });
        Ok(views.collect())
    }

    async fn describe_config_of(
        &self,
        broker: i32,
        of: &ConfigOf,
    ) -> Result<BTreeMap<String, String>, String> {
        let (resource_type, resource_name) = of.resource();
        let resource = DescribeConfigsResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(&resource_name))
            .with_configuration_keys(None);
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let address = self.internal_address(broker);
        let answer = client::call(address, 4, &request, Duration::from_secs(5)).await?;
        let result = answer.results.first().ok_or("no result")?;
        if result.error_code != 0 {
            return Err(format!("describe {of:?}: error {}", result.error_code));
        }
        let entries = result.configs.iter().filter_map(|config| {
            let value = config.value.as_ref()?;
            Some((config.name.to_string(), value.to_string()))
        });
        Ok(entries.collect())
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<i32, Node>> {
        self.nodes
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn advertised_port(&self, id: i32, node: &Node) -> u16 {
        match &self.proxy {
            Some(proxy) => proxy.port(id),
            None => node.client_port,
        }
    }

    /// Panics when a process that should run has ended, with the end of its log.
    fn assert_alive(&self) {
        for (id, node) in self.nodes().iter_mut() {
            let Some(child) = &mut node.child else {
                continue;
            };
            if let Some(status) = child.try_wait().unwrap() {
                let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(30)..].join("\n");
                panic!(
                    "node {id} ended with {} ({}):\n{tail}",
                    process::describe_exit(status),
                    node.log.display()
                );
            }
        }
    }

    fn launch(&self, id: i32) {
        let mut nodes = self.nodes();
        let node = nodes.get_mut(&id).expect("a node of this cluster");
        let properties = self.directory.join(format!("node-{id}.properties"));
        std::fs::write(&properties, self.server_properties(id, node)).unwrap();
        let args = self
            .installation
            .node_args(&properties, self.options.heap_mib);
        node.child = Some(process::spawn_logged("java", &args, &node.log));
        node.paused = false;
    }

    fn server_properties(&self, id: i32, node: &Node) -> String {
        let combined = !self.options.separate_controller && id == 1;
        let controller = combined || id == CONTROLLER_ID;
        let roles = match (combined, controller) {
            (true, _) => "broker,controller",
            (false, true) => "controller",
            (false, false) => "broker",
        };
        let mut listeners = Vec::new();
        if id != CONTROLLER_ID {
            listeners.push(format!("CLIENT://127.0.0.1:{}", node.client_port));
            listeners.push(format!("INTERNAL://127.0.0.1:{}", node.internal_port));
        }
        if controller {
            listeners.push(format!("CONTROLLER://127.0.0.1:{}", self.controller_port));
        }
        let controller_id = if self.options.separate_controller {
            CONTROLLER_ID
        } else {
            1
        };
        let mut properties: Vec<(&str, String)> = vec![
            ("node.id", id.to_string()),
            ("process.roles", roles.into()),
            ("log.dirs", node.data.display().to_string()),
            ("listeners", listeners.join(",")),
            ("controller.listener.names", "CONTROLLER".into()),
            (
                "controller.quorum.voters",
                format!("{controller_id}@127.0.0.1:{}", self.controller_port),
            ),
            (
                "listener.security.protocol.map",
                format!(
                    "CLIENT:{},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
                    self.options.client_protocol
                ),
            ),
        ];
        if id != CONTROLLER_ID {
            properties.push(("inter.broker.listener.name", "INTERNAL".into()));
            properties.push((
                "advertised.listeners",
                format!(
                    "CLIENT://127.0.0.1:{},INTERNAL://127.0.0.1:{}",
                    self.advertised_port(id, node),
                    node.internal_port
                ),
            ));
        }
        let mut lines: Vec<String> = properties
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        lines.push(FAST.trim().into());
        lines.extend(
            self.options
                .server_properties
                .iter()
                .map(|(key, value)| format!("{key}={value}")),
        );
        lines.join("\n") + "\n"
    }
}

impl Drop for KafkaCluster {
    fn drop(&mut self) {
        for node in self.nodes().values_mut() {
            if let Some(mut child) = node.child.take() {
                process::kill_and_reap(&mut child);
            }
        }
        if std::thread::panicking() {
            let _only_a_mark = std::fs::write(self.directory.join("failed"), "");
            eprintln!(
                "cluster {}: logs and data kept in {}",
                self.options.name,
                self.directory.display()
            );
        } else {
            let _leftover_is_swept_later = std::fs::remove_dir_all(&self.directory);
        }
    }
}

impl ConfigOf {
    /// Resource type and name of the protocol (`ConfigResource.Type`): 2 is a topic, 4 a broker.
    fn resource(&self) -> (i8, String) {
        match self {
            Self::Topic(name) => (2, name.clone()),
            Self::Broker(id) => (4, id.to_string()),
            Self::AllBrokers => (4, String::new()),
        }
    }
}

/// One source and one destination of one broker each, started once per test process and shared by all its tests, on
/// whatever runtime they run. Tests use topic names of their own (see [`unique`]) and break nothing.
pub async fn shared_pair() -> (&'static KafkaCluster, &'static KafkaCluster) {
    static PAIR: OnceLock<(KafkaCluster, KafkaCluster)> = OnceLock::new();
    let start = || {
        // A runtime of its own: the one of the test that comes first ends with that test.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            tokio::join!(
                KafkaCluster::start(ClusterOptions::new("shared-source")),
                KafkaCluster::start(ClusterOptions::new("shared-destination")),
            )
        })
    };
    let (source, destination) = tokio::task::spawn_blocking(move || PAIR.get_or_init(start))
        .await
        .expect("the shared clusters start");
    eprintln!(
        "shared clusters: logs in {} and {}",
        source.directory().display(),
        destination.directory().display()
    );
    (source, destination)
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{:08x}", rand::random::<u32>())
}

fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.into())
}

fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A directory under cargo's scratch directory, named after this process. The first call of a process sweeps what dead
/// processes left, except directories of failed tests, which stay for a day.
fn make_directory(name: &str) -> PathBuf {
    static SWEPT: OnceLock<()> = OnceLock::new();
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clusters");
    std::fs::create_dir_all(&root).unwrap();
    SWEPT.get_or_init(|| sweep(&root));
    let directory = root.join(format!("{}-{}", std::process::id(), unique(name)));
    std::fs::create_dir(&directory).unwrap();
    directory
}

fn sweep(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let pid = file_name.to_string_lossy();
        let pid = pid.split('-').next().unwrap_or_default();
        let alive = Path::new("/proc").join(pid).exists();
        let age = entry.metadata().and_then(|m| m.modified()).ok();
        let young = age
            .and_then(|modified| modified.elapsed().ok())
            .is_some_and(|age| age < Duration::from_secs(24 * 3600));
        let failed = entry.path().join("failed").exists();
        let still_wanted = alive || (failed && young);
        if !still_wanted {
            let _swept_next_time = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Settings that make a small cluster start, notice and clean fast. Unknown ones are ignored by other Kafka versions.
/// Retention is off unless a topic asks for it: it looks every second, and test records with fixed timestamps are old.
const FAST: &str = "
auto.create.topics.enable=false
auto.leader.rebalance.enable=false
unclean.leader.election.enable=false
super.users=User:ANONYMOUS
num.network.threads=2
num.io.threads=4
background.threads=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=3
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.initial.task.delay.ms=500
log.retention.check.interval.ms=1000
log.retention.ms=-1
log.segment.delete.delay.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=6000
replica.fetch.backoff.ms=200
controller.quorum.append.linger.ms=5
controlled.shutdown.retry.backoff.ms=300
connections.max.idle.ms=600000
";
