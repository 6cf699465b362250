//! Topics and their configs on real clusters: what is created, widened, held and refused, and what `check` says.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::support::kafka::{ConfigOf, KafkaCluster, shared_pair, unique};
use crate::support::producer::{Producer, ProducerOptions, records};
use crate::support::steps::grow;
use kafka_protocol::messages::CreateAclsRequest;
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use truemirror::config::{NamePatterns, TopicFilter};
use truemirror::coordinator::{CoordinatorParts, Coordinators, StateTopic};
use truemirror::domain::assign::{STATE_TOPIC, Work};
use truemirror::domain::desired::{TopicEntry, TopicGate, TopicSet};
use truemirror::domain::recreate::OnDivergence;
use truemirror::domain::types::TopicPartition;
use truemirror::kafka::cluster::{Cluster, ClusterOptions, Side};
use truemirror::kafka::contact::Contact;
use truemirror::kafka::group::{GroupMember, GroupOptions, Identity};
use truemirror::metrics::Metrics;
use truemirror::sync::topics::{TopicsError, TopicsOptions, run};

const LONG: Duration = Duration::from_secs(60);

fn patterns(texts: &[&str]) -> NamePatterns {
    let mut patterns = NamePatterns::default();
    for text in texts {
        patterns.push(text).unwrap();
    }
    patterns
}

fn wall_clock_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// What the daemon does for the topics of one mirror, driven by a test.
struct Topics {
    sets: watch::Receiver<Arc<TopicSet>>,
    hold_wanted: mpsc::Sender<Arc<str>>,
    running: JoinSet<Result<(), TopicsError>>,
    _coordinating: JoinSet<()>,
    stop: CancellationToken,
}

impl Topics {
    fn start(source: &KafkaCluster, destination: &KafkaCluster, include: &[&str]) -> Self {
        Self::with_replication_factor(source, destination, include, -1)
    }

    fn with_replication_factor(
        source: &KafkaCluster,
        destination: &KafkaCluster,
        include: &[&str],
        replication_factor: i16,
    ) -> Self {
        let options = TopicsOptions {
            fingerprint: 1,
            mirror: "test".to_owned(),
            filter: TopicFilter {
                include: patterns(include),
                exclude: NamePatterns::default(),
            },
            config_exclude: patterns(&["min.insync.replicas"]),
            replication_factor,
            on_divergence: OnDivergence::Fail,
            refresh_interval: Duration::from_millis(500),
            request_timeout: Duration::from_secs(20),
            state_topic: "__mirror_state".into(),
            source_cluster_id: None,
            compared: CancellationToken::new(),
        };
        let cluster = |of: &KafkaCluster, side| {
            let servers = of.bootstrap().split(',').map(str::to_owned).collect();
            Cluster::new(ClusterOptions::new(side, servers)).unwrap()
        };
        let contact = |side| Arc::new(Contact::new("test", side));
        let (sender, sets) = watch::channel(Arc::default());
        let (hold_wanted, asked) = mpsc::channel(16);
        let stop = CancellationToken::new();
        let work: Vec<_> = (0..2)
            .map(|partition| Work {
                partition: TopicPartition::new(STATE_TOPIC, partition),
                leader: None,
            })
            .collect();
        let identity = Identity {
            sidecar_id: "test".into(),
            broker_id: None,
            advertised: "127.0.0.1:1".parse().unwrap(),
            version: "test".into(),
            config_fingerprint: 0,
        };
        let (member, group) = GroupMember::new(
            cluster(destination, Side::Destination),
            GroupOptions::new(&unique("group"), identity),
            watch::channel(Some(work.into())).1,
        );
        let mut coordinating = JoinSet::new();
        let stop_member = stop.clone();
        coordinating.spawn(async move { member.run(&stop_member).await.unwrap() });
        let (coordinators, states) = Coordinators::new(CoordinatorParts {
            cluster: cluster(destination, Side::Destination),
            topic: StateTopic {
                name: unique("state").into(),
                partitions: 2,
                replication_factor: 1,
            },
            group,
            created_after: Vec::new(),
            sidecar: "test".into(),
            incarnation: unique("run").into(),
            address: "".into(),
            request_timeout: Duration::from_secs(20),
            wall_clock_ms,
            metrics: Metrics::new("test").unwrap(),
        });
        coordinating.spawn(coordinators.run(stop.clone()));
        let mut running = JoinSet::new();
        running.spawn(run(
            options,
            cluster(source, Side::Source),
            cluster(destination, Side::Destination),
            contact(Side::Source),
            contact(Side::Destination),
            sender,
            asked,
            states,
            stop.clone(),
        ));
        Self {
            sets,
            hold_wanted,
            running,
            _coordinating: coordinating,
            stop,
        }
    }

    /// Waits for a set that fits.
    async fn until(&mut self, what: &str, fits: impl Fn(&TopicSet) -> bool) -> Arc<TopicSet> {
        let found = timeout(LONG, self.sets.wait_for(|set| fits(set))).await;
        let found = found.ok().map(|set| Arc::clone(&set.unwrap()));
        found.unwrap_or_else(|| panic!("{what}: last was {:?}", self.sets.borrow()))
    }

    /// Waits for a topic with a gate that fits.
    async fn gate(&mut self, topic: &str, fits: impl Fn(&TopicGate) -> bool) -> TopicEntry {
        let set = self.until(topic, |set| {
            set.topics.get(topic).is_some_and(|entry| fits(&entry.gate))
        });
        set.await.topics[topic].clone()
    }

    async fn unheld(&mut self, topic: &str) -> TopicEntry {
        self.gate(topic, |gate| *gate == TopicGate::Unheld).await
    }

    async fn failed(&mut self, topic: &str) -> (String, bool) {
        let entry = self.gate(topic, |gate| matches!(gate, TopicGate::Failed { .. }));
        match entry.await.gate {
            TopicGate::Failed { reason, permanent } => (reason, permanent),
            gate => panic!("{gate:?}"),
        }
    }

    async fn hold(&mut self, topic: &str) -> usize {
        self.hold_wanted.send(topic.into()).await.unwrap();
        let entry = self.gate(topic, |gate| matches!(gate, TopicGate::Held { .. }));
        match entry.await.gate {
            TopicGate::Held { max_message_bytes } => max_message_bytes,
            gate => panic!("{gate:?}"),
        }
    }

    /// It must still run, and end when it is told to.
    async fn end(mut self) {
        self.stop.cancel();
        let ended = timeout(LONG, self.running.join_next()).await.unwrap();
        assert_eq!(ended.unwrap().unwrap(), Ok(()));
    }
}

fn of(topic: &str) -> ConfigOf {
    ConfigOf::Topic(topic.to_owned())
}

#[tokio::test]
async fn a_topic_is_created_like_the_sources_and_held_when_asked() {
    let (source, destination) = shared_pair().await;
    let (topic, other) = (unique("created"), unique("created-not"));
    let own = [
        ("cleanup.policy", "compact"),
        ("max.message.bytes", "2000000"),
        ("segment.ms", "7654321"),
        ("message.timestamp.type", "LogAppendTime"),
        ("retention.ms", "86400000"),
        ("min.insync.replicas", "2"),
        ("compression.type", "gzip"),
    ];
    source.create_topic(&topic, 3, 1, &own).await;
    destination
        .create_topic(&other, 1, 1, &[("retention.ms", "86400000")])
        .await;
    let mut topics = Topics::start(source, destination, &[&topic]);

    let entry = topics.unheld(&topic).await;
    assert_eq!(entry.partitions, 3);
    assert!(!entry.source_topic_id.is_zero() && !entry.destination_topic_id.is_zero());
    assert_eq!(destination.partitions(&topic).await.unwrap().len(), 3);
    let created = destination.describe_config(&of(&topic)).await;
    let mut wanted = vec![
        ("cleanup.policy", "compact,delete"),
        ("max.message.bytes", "2000000"),
        ("segment.ms", "7654321"),
        ("message.timestamp.type", "CreateTime"),
        ("retention.ms", "-1"),
        ("retention.bytes", "-1"),
        ("min.insync.replicas", "1"),
        ("compression.type", "producer"),
    ];
    for (key, value) in &wanted {
        assert_eq!(created[*key], *value, "{key}");
    }

    assert_eq!(topics.hold(&topic).await, 2_000_000);
    let held = destination.describe_config(&of(&topic)).await;
    wanted.extend([
        ("message.timestamp.before.max.ms", "9223372036854775807"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
    ]);
    for (key, value) in wanted {
        assert_eq!(held[key], value, "{key}");
    }
    let untouched = destination.describe_config(&of(&other)).await;
    assert_eq!(untouched["retention.ms"], "86400000");
    assert_eq!(
        source.describe_config(&of(&topic)).await["retention.ms"],
        "86400000"
    );
    topics.end().await;
}

#[tokio::test]
async fn an_existing_topic_is_untouched_until_its_hold_is_wanted() {
    let (source, destination) = shared_pair().await;
    let topic = unique("existing");
    source.create_topic(&topic, 1, 1, &[]).await;
    let own = [
        ("retention.ms", "86400000"),
        ("max.message.bytes", "3000000"),
        ("message.timestamp.after.max.ms", "3600000"),
    ];
    destination.create_topic(&topic, 1, 1, &own).await;
    let mut topics = Topics::start(source, destination, &[&topic]);
    topics.unheld(&topic).await;
    let before = destination.describe_config(&of(&topic)).await;
    for (key, value) in own {
        assert_eq!(before[key], value, "{key}");
    }
    assert_eq!(topics.hold(&topic).await, 3_000_000, "the larger one stays");
    let after = destination.describe_config(&of(&topic)).await;
    assert_eq!(after["retention.ms"], "-1");
    assert_eq!(
        after["message.timestamp.after.max.ms"],
        "9223372036854775807"
    );
    // Asked again when the source takes larger batches now: it looks again.
    source
        .alter_config(&of(&topic), &[("max.message.bytes", Some("5000000"))])
        .await;
    topics.hold_wanted.send((&*topic).into()).await.unwrap();
    let larger = TopicGate::Held {
        max_message_bytes: 5_000_000,
    };
    topics.gate(&topic, |gate| *gate == larger).await;
    topics.end().await;
}

#[tokio::test]
async fn partitions_follow_the_source_and_a_held_topic_stays_held() {
    let (source, destination) = shared_pair().await;
    let topic = unique("grows");
    source.create_topic(&topic, 3, 1, &[]).await;
    let mut topics = Topics::start(source, destination, &[&topic]);
    topics.unheld(&topic).await;
    topics.hold(&topic).await;
    grow(source, &topic, 6).await;
    let set = topics.until("six partitions", |set| set.topics[&*topic].partitions == 6);
    assert!(matches!(
        set.await.topics[&*topic].gate,
        TopicGate::Held { .. }
    ));
    assert_eq!(destination.partitions(&topic).await.unwrap().len(), 6);
    topics.end().await;
}

#[tokio::test]
async fn a_destination_with_more_partitions_is_refused_until_they_are_equal() {
    let (source, destination) = shared_pair().await;
    let topic = unique("wider");
    source.create_topic(&topic, 3, 1, &[]).await;
    let own = [("retention.ms", "86400000")];
    destination.create_topic(&topic, 5, 1, &own).await;
    let mut topics = Topics::start(source, destination, &[&topic]);
    let (reason, permanent) = topics.failed(&topic).await;
    assert!(
        reason.contains("has 5 partitions") && reason.contains("has 3") && !permanent,
        "{reason}"
    );
    topics.hold_wanted.send((&*topic).into()).await.unwrap();
    grow(source, &topic, 5).await;
    let entry = topics.unheld(&topic).await;
    assert_eq!(entry.partitions, 5);
    let configs = destination.describe_config(&of(&topic)).await;
    assert_eq!(configs["retention.ms"], "86400000", "nothing was changed");
    topics.end().await;
}

#[tokio::test]
async fn patterns_mean_whole_names_and_internal_topics_are_never_mirrored() {
    let (source, destination) = shared_pair().await;
    let orders = unique("orders");
    let longer = format!("{orders}2");
    let in_front = format!("x{orders}");
    for topic in [&orders, &longer, &in_front] {
        source.create_topic(topic, 1, 1, &[]).await;
    }
    // As many partitions as the broker gives its own topic of groups.
    for (internal, partitions) in [("__consumer_offsets", 3), ("__mirror_state", 1)] {
        source.create_topic(internal, partitions, 1, &[]).await;
    }
    // Other tests have state topics of other names here.
    let internal = "__(consumer_offsets|mirror_state)";
    let include = [&orders, "__consumer_offsets", "__mirror_state", internal];
    let mut topics = Topics::start(source, destination, &include);
    let set = topics.until("the topic", |set| !set.topics.is_empty());
    let names: Vec<_> = set.await.topics.keys().map(ToString::to_string).collect();
    assert_eq!(names, std::slice::from_ref(&orders));

    // All of them, and only those: an empty topic that came later too (O06).
    let mut all = Topics::start(source, destination, &[&format!(".*{orders}.*"), internal]);
    let set = all.until("three", |set| set.topics.len() >= 3).await;
    let late = format!("{orders}-late");
    let empty = format!("{orders}-empty");
    source.create_topic(&late, 1, 1, &[]).await;
    let producer = Producer::new(&source.bootstrap(), &ProducerOptions::default()).await;
    producer.produce(&late, 0, &records(1, 10)).await;
    source.create_topic(&empty, 4, 1, &[]).await;
    assert_eq!(set.topics.len(), 3);
    let set = all.until("five", |set| set.topics.len() >= 5).await;
    assert_eq!(set.topics.len(), 5);
    assert_eq!(set.topics[&*empty].partitions, 4);
    assert_eq!(destination.partitions(&empty).await.unwrap().len(), 4);
    assert!(destination.partitions("__mirror_state").await.is_err());
    assert_eq!(topics.sets.borrow().topics.len(), 1);
    topics.end().await;
    all.end().await;
}

#[tokio::test]
async fn a_source_topic_that_is_deleted_or_another_now_is_failed_for_good() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("lost");
    let (deleted, recreated) = (format!("{prefix}-deleted"), format!("{prefix}-recreated"));
    for topic in [&deleted, &recreated] {
        source.create_topic(topic, 1, 1, &[]).await;
    }
    let mut topics = Topics::start(source, destination, &[&format!("{prefix}-.*")]);
    topics.unheld(&deleted).await;
    topics.unheld(&recreated).await;
    source.delete_topic(&deleted).await;
    source.delete_topic(&recreated).await;
    source.create_topic(&recreated, 1, 1, &[]).await;
    let (reason, permanent) = topics.failed(&deleted).await;
    assert!(permanent && reason.contains("its copy is kept"), "{reason}");
    let (reason, permanent) = topics.failed(&recreated).await;
    assert!(
        permanent && (reason.contains("topic id changed from") || reason.contains("was deleted")),
        "{reason}"
    );
    assert_eq!(destination.partitions(&deleted).await.unwrap().len(), 1);
    topics.end().await;
}

#[tokio::test]
async fn s21_a_refused_creation_is_said_and_tried_again() {
    let (source, destination) = shared_pair().await;
    let topic = unique("replicated");
    source.create_topic(&topic, 1, 1, &[]).await;
    let mut topics = Topics::with_replication_factor(source, destination, &[&topic], 3);
    let (reason, permanent) = topics.failed(&topic).await;
    assert!(
        !permanent && reason.contains("INVALID_REPLICATION_FACTOR") && reason.contains("= 3 needs"),
        "{reason}"
    );
    // Whoever makes it possible: here the topic is created by hand.
    destination.create_topic(&topic, 1, 1, &[]).await;
    topics.unheld(&topic).await;
    topics.end().await;
}

#[tokio::test]
async fn s16_a_mirror_of_a_cluster_to_itself_is_refused() {
    let (source, _) = shared_pair().await;
    let mut topics = Topics::start(source, source, &["never-there"]);
    let ended = timeout(LONG, topics.running.join_next()).await.unwrap();
    let error = ended.unwrap().unwrap().unwrap_err();
    let TopicsError::SameCluster { cluster_id } = error else {
        panic!("{error}");
    };
    assert_eq!(&*cluster_id, source.cluster_id());
}

/// Runs `check` with one mirror; `topics` are lines of `[mirror.topics]`. Answers with exit code and both outputs.
async fn check(
    source: &str,
    destination: &str,
    topics: &str,
    arguments: &[&str],
) -> (Option<i32>, String) {
    let quoted = |servers: &str| {
        let servers: Vec<String> = servers.split(',').map(|s| format!("{s:?}")).collect();
        servers.join(", ")
    };
    let mut config = tempfile::NamedTempFile::new().unwrap();
    write!(
        config,
        "[destination]\nbootstrap_servers = [{}]\nconnect_timeout = \"2s\"\n[[mirror]]\nname = \"m\"\n[mirror.source]\n\
         bootstrap_servers = [{}]\n[mirror.topics]\n{topics}\n",
        quoted(destination),
        quoted(source),
    )
    .unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_truemirror"));
    command
        .arg("check")
        .args(arguments)
        .arg("--config")
        .arg(config.path())
        .env_remove("RUST_LOG");
    let output = timeout(LONG, command.output()).await.unwrap().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), text)
}

#[tokio::test]
async fn check_finds_nothing_wrong_with_a_good_pair_and_changes_nothing() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("checked");
    let (there, missing) = (format!("{prefix}-there"), format!("{prefix}-missing"));
    for topic in [&there, &missing] {
        source.create_topic(topic, 2, 1, &[]).await;
    }
    let own = [("retention.ms", "86400000")];
    destination.create_topic(&there, 2, 1, &own).await;
    let include = format!("include = [\"{prefix}-.*\", \"not-there\"]");
    let (source_servers, destination_servers) = (source.bootstrap(), destination.bootstrap());
    let (code, text) = check(&source_servers, &destination_servers, &include, &[]).await;
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "2 match",
        &missing,
        source.cluster_id(),
        "1 of 1 reachable",
        "would create 1 of 1",
        "\"not-there\" matches no topic",
        "producer.id.expiration.ms",
        "all 15 APIs are spoken",
        "10s; broker 1 takes 500ms to 30m",
        "__mirror_state would be created: 50 partitions, replication factor 1",
        "Write, Read, Describe, DescribeConfigs  ",
        "Alter or ClusterAction of the cluster",
        "truemirror",
        "Write, Read, Describe, AlterConfigs, DescribeConfigs; topics: 1",
        "0 FAIL",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(destination.partitions(&missing).await.is_err());
    assert!(destination.partitions("__mirror_state").await.is_err());
    let configs = destination.describe_config(&of(&there)).await;
    assert_eq!(configs["retention.ms"], "86400000");
}

#[tokio::test]
async fn check_says_what_makes_a_topic_unfit_for_states_and_a_session_too_long() {
    let (source, destination) = shared_pair().await;
    let (fit, unfit) = (unique("states"), unique("no-states"));
    let own = [("cleanup.policy", "compact")];
    destination.create_topic(&fit, 3, 1, &own).await;
    destination.create_topic(&unfit, 2, 1, &[]).await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    let checked = async |state: &str, session: &str| {
        let topics = format!(
            "include = [\"not-there\"]\n[state]\ntopic = \"{state}\"\npartitions = 3\n[group]\nid = \"{state}\"\n\
             session_timeout = \"{session}\""
        );
        check(&from, &to, &topics, &[]).await
    };
    let (code, text) = checked(&fit, "10s").await;
    assert_eq!(code, Some(0), "{text}");
    let found = format!("{fit}, 3 partitions, cleanup.policy=compact");
    assert!(text.contains(&found), "{found} in\n{text}");

    let (code, text) = checked(&unfit, "31m").await;
    assert_eq!(code, Some(1), "{text}");
    for part in [
        &format!("{unfit} has 2 partitions, state.partitions is 3"),
        "set state.partitions = 2",
        &format!("{unfit} has cleanup.policy=delete, the state topic needs cleanup.policy=compact"),
        &format!("--entity-name {unfit} --add-config cleanup.policy=compact"),
        "31m; broker 1 takes 500ms to 30m",
        "change group.session_timeout, or group.max.session.timeout.ms of all brokers",
        "3 FAIL",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[tokio::test]
async fn check_says_which_addresses_were_tried_and_what_came() {
    let (source, _) = shared_pair().await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (silent.local_addr().unwrap(), silent);
    let closed = format!("127.0.0.1:{}", crate::support::process::free_port());
    let destination = format!("{closed},{},no-such-host.invalid:9092", silent.0);
    let include = "include = [\"x\"]";
    let (code, text) = check(&source.bootstrap(), &destination, include, &[]).await;
    assert_eq!(code, Some(1), "{text}");
    for part in [
        &format!("{closed}: cannot connect to"),
        "Connection refused",
        &format!("{} accepts connections, but", silent.0),
        "does not answer as a Kafka broker",
        "no-such-host.invalid:9092: cannot resolve",
        "3 FAIL",
        "source brokers",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[tokio::test]
async fn check_names_the_topics_that_cannot_be_mirrored_and_a_cluster_mixed_up() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("hindered");
    let wide = format!("{prefix}-wide");
    source.create_topic(&wide, 3, 1, &[]).await;
    destination.create_topic(&wide, 5, 1, &[]).await;
    let stamped = format!("{prefix}-stamped");
    let own = [("message.timestamp.type", "LogAppendTime")];
    source.create_topic(&stamped, 1, 1, &own).await;
    let compacted = format!("{prefix}-compacted");
    let own = [("cleanup.policy", "compact")];
    source.create_topic(&compacted, 1, 1, &own).await;
    let topics = format!("include = [\"{prefix}-.*\"]\nreplication_factor = 3");
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    let (code, text) = check(&from, &to, &topics, &["--json"]).await;
    assert_eq!(code, Some(1), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let has = |check: &str, result: &str, part: &str| {
        let fits = |row: &&serde_json::Value| {
            row["check"] == check
                && row["result"] == result
                && row["found"].as_str().unwrap().contains(part)
        };
        assert!(rows.iter().any(|row| fits(&row)), "{check} {part}: {text}");
    };
    has("partitions", "FAIL", &format!("{wide}: "));
    has("partitions", "FAIL", "has 5 partitions");
    has("timestamps", "FAIL", &stamped);
    has("compaction", "WARN", &compacted);
    has("replication factor", "FAIL", "3 wanted");
    has("topic creation", "FAIL", "INVALID_REPLICATION_FACTOR");

    let same = from.replace("127.0.0.1", "localhost");
    let (code, text) = check(&from, &same, "include = [\"x\"]", &[]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("are the same cluster"), "{text}");
}

#[tokio::test]
async fn missing_permissions_are_named_with_the_command_that_grants_them() {
    let (source, _) = shared_pair().await;
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let options = crate::support::kafka::ClusterOptions::new("guarded")
        .with("authorizer.class.name", authorizer)
        .with("super.users", "User:nobody")
        .with("allow.everyone.if.no.acl.found", "true");
    let destination = KafkaCluster::start(options).await;
    let topic = unique("guarded");
    source.create_topic(&topic, 1, 1, &[]).await;
    let own = [("retention.ms", "86400000")];
    destination.create_topic(&topic, 1, 1, &own).await;
    // Kafka's codes: topic 2, group 3, cluster 4; literal 3, allow 3; Read 3, ClusterAction 9, DescribeConfigs 10. What has an
    // ACL is closed to all others. The broker itself needs ClusterAction, and with it alone nobody makes ACLs: it comes last.
    let (us, other) = ("User:ANONYMOUS", "User:other");
    for (kind, name, principal, operation) in [
        (2, &*topic, us, 3),
        (2, &*topic, us, 10),
        (2, "__mirror_state", other, 3),
        (3, "truemirror", other, 3),
        (4, "kafka-cluster", us, 9),
    ] {
        let acl = AclCreation::default()
            .with_resource_type(kind)
            .with_resource_name(StrBytes::from_string(name.to_owned()))
            .with_resource_pattern_type(3)
            .with_principal(StrBytes::from_static_str(principal))
            .with_host(StrBytes::from_static_str("*"))
            .with_operation(operation)
            .with_permission_type(3);
        let request = CreateAclsRequest::default().with_creations(vec![acl]);
        let answer = destination.admin(3, &request).await;
        assert_eq!(answer.results[0].error_code, 0, "{answer:?}");
    }

    let include = format!("include = [\"{topic}\"]");
    let to = destination.bootstrap();
    let (code, text) = check(&source.bootstrap(), &to, &include, &[]).await;
    assert_eq!(code, Some(1), "{text}");
    let grant =
        format!("kafka-acls.sh --bootstrap-server {to} --add --allow-principal User:ANONYMOUS");
    for part in [
        &format!("{grant} --operation Write --operation AlterConfigs --topic {topic}"),
        "CreateTopics of __mirror_state was refused: TOPIC_AUTHORIZATION_FAILED",
        &format!(
            "{grant} --operation Create --operation Write --operation Read --operation Describe --operation DescribeConfigs \
             --topic __mirror_state"
        ),
        "DescribeGroups of truemirror was refused: GROUP_AUTHORIZATION_FAILED",
        &format!("{grant} --operation Read --group truemirror"),
        "not known whether control records may be written",
        &format!("{grant} --operation Alter --cluster (brokers before Kafka 3.8: ClusterAction)"),
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let recreating = format!("{include}\n[mirror.policy]\non_divergence = \"recreate\"");
    let (_, text) = check(&source.bootstrap(), &to, &recreating, &[]).await;
    let part = format!("{grant} --operation Write --operation AlterConfigs --operation Delete");
    assert!(text.contains(&part), "{part} in\n{text}");
    for untouched in ["__mirror_state", "__consumer_offsets"] {
        assert!(destination.partitions(untouched).await.is_err());
    }

    let mut topics = Topics::start(source, &destination, &[&topic]);
    topics.unheld(&topic).await;
    topics.hold_wanted.send((&*topic).into()).await.unwrap();
    let (reason, permanent) = topics.failed(&topic).await;
    for part in [
        "TOPIC_AUTHORIZATION_FAILED",
        "--operation AlterConfigs",
        "kafka-configs.sh --alter",
        "retention.ms=[-1]",
    ] {
        assert!(reason.contains(part), "{part} in {reason}");
    }
    assert!(!permanent, "granted later, it goes on");
    topics.end().await;
}
