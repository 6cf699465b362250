//! The operator's commands as people run them, against listeners whose answers are written here. Must not need a broker, nor
//! the daemon.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests stop the test like tests do"
)]

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use truemirror::config::Limits;
use truemirror::domain::types::BrokerId;
use truemirror::metrics::Metrics;
use truemirror::server::{ListenerOptions, Service, serve};
use truemirror::wire::error_code::ErrorCode;
use truemirror::wire::mirror_rpc::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// What a test lets a listener say, and what it was asked.
#[derive(Debug, Default)]
struct Script {
    list: ListClusterMirrorsResponse,
    describe: DescribeClusterMirrorsResponse,
    /// The first answers to changes are COORDINATOR_LOAD_IN_PROGRESS, so often.
    loading: usize,
    asked: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl Scripted {
    /// Notes what was asked, and answers for the topics: whose name begins with "bad" is refused.
    fn topics(
        &self,
        asked: String,
        names: Vec<Arc<str>>,
    ) -> Result<Vec<MirrorTopicResult>, ErrorCode> {
        let mut script = self.0.lock().unwrap();
        script.asked.push(asked);
        if let Some(left) = script.loading.checked_sub(1) {
            script.loading = left;
            return Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
        }
        let result = |name: Arc<str>| MirrorTopicResult {
            error_code: match &*name {
                "bad-paused" => ErrorCode::MIRROR_TOPIC_ALREADY_PAUSED,
                name if name.starts_with("bad") => ErrorCode::TOPIC_ALREADY_IN_CLUSTER_MIRROR,
                _ => ErrorCode::NONE,
            },
            error_message: (&*name == "bad-words").then(|| "west has it".into()),
            name,
        };
        Ok(names.into_iter().map(result).collect())
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.clone()
    }
}

macro_rules! changes {
    ($($method:ident: $request:ident => $response:ident;)+) => {$(
        async fn $method(&self, request: $request) -> $response {
            let names = request.topics.iter().map(|topic| Arc::clone(&topic.topic_name)).collect();
            if &*request.mirror_name == "nobody" {
                return $response::refused(ErrorCode::UNKNOWN_CLUSTER_MIRROR, None);
            }
            match self.topics(format!("{request:?}"), names) {
                Ok(topics) => $response {
                    // As the reference does: the first error of a topic stands on top as well.
                    error_code: topics
                        .iter()
                        .map(|topic| topic.error_code)
                        .find(|code| !code.is_none())
                        .unwrap_or_default(),
                    topics,
                    ..$response::default()
                },
                Err(code) => $response::refused(code, None),
            }
        }
    )+};
}

impl Service for Scripted {
    changes! {
        start_mirror_topics: StartMirrorTopicsRequest => StartMirrorTopicsResponse;
        stop_mirror_topics: StopMirrorTopicsRequest => StopMirrorTopicsResponse;
        pause_mirror_topics: PauseMirrorTopicsRequest => PauseMirrorTopicsResponse;
        resume_mirror_topics: ResumeMirrorTopicsRequest => ResumeMirrorTopicsResponse;
        recover_mirror_topics: RecoverMirrorTopicsRequest => RecoverMirrorTopicsResponse;
    }

    async fn list_cluster_mirrors(
        &self,
        _: ListClusterMirrorsRequest,
    ) -> ListClusterMirrorsResponse {
        self.0.lock().unwrap().list.clone()
    }

    async fn describe_cluster_mirrors(
        &self,
        request: DescribeClusterMirrorsRequest,
    ) -> DescribeClusterMirrorsResponse {
        let mut answer = self.0.lock().unwrap().describe.clone();
        if let Some(name) = request.mirror_names.first() {
            answer.mirrors.retain(|mirror| mirror.mirror_name == *name);
        }
        answer
    }

    async fn read_mirror_states(&self, _: ReadMirrorStatesRequest) -> ReadMirrorStatesResponse {
        ReadMirrorStatesResponse::default()
    }

    async fn write_mirror_states(&self, _: WriteMirrorStatesRequest) -> WriteMirrorStatesResponse {
        WriteMirrorStatesResponse::default()
    }

    async fn delete_cluster_mirror(
        &self,
        request: DeleteClusterMirrorRequest,
    ) -> DeleteClusterMirrorResponse {
        self.0.lock().unwrap().asked.push(format!("{request:?}"));
        if &*request.mirror_name == "busy" {
            return DeleteClusterMirrorResponse::refused(ErrorCode::CLUSTER_MIRROR_NOT_EMPTY, None);
        }
        DeleteClusterMirrorResponse::default()
    }
}

/// Listeners that are gone with the test.
#[derive(Default)]
struct Listeners {
    tasks: JoinSet<()>,
}

impl Listeners {
    async fn start(&mut self) -> (SocketAddr, Scripted) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Scripted::default();
        let options = ListenerOptions::new(&Limits {
            memory_bytes: 0,
            connections: 16,
            request_max_bytes: 1 << 20,
        });
        let metrics = Metrics::new("0").unwrap();
        self.tasks.spawn(serve(
            listener,
            service.clone(),
            metrics,
            options,
            CancellationToken::new(),
        ));
        (address, service)
    }
}

/// What came of a command.
#[derive(Debug)]
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

fn command(server: SocketAddr, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_truemirror"));
    command
        .args(arguments.split(' '))
        .args(["--server", &server.to_string()])
        .env_remove("RUST_LOG")
        .env_remove("TRUEMIRROR_SERVER")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn run(server: SocketAddr, arguments: &str) -> Outcome {
    let output = timeout(PATIENCE, command(server, arguments).output());
    let output = output.await.expect("the command ends").unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The cells of the lines of a table.
fn cells(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines();
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

fn partition(index: i32, state: &str) -> DescribedMirrorPartition {
    DescribedMirrorPartition {
        partition_index: index,
        state_value: state.into(),
        ..DescribedMirrorPartition::default()
    }
}

fn topic(name: &str, partitions: Vec<DescribedMirrorPartition>) -> DescribedMirrorTopic {
    DescribedMirrorTopic {
        topic_name: name.into(),
        partitions,
    }
}

fn mirror(name: &str, topics: Vec<DescribedMirrorTopic>) -> DescribedMirror {
    DescribedMirror {
        mirror_name: name.into(),
        desired_state: 2,
        topics,
        ..DescribedMirror::default()
    }
}

fn member(sidecar: &str, address: SocketAddr) -> MirrorMember {
    MirrorMember {
        sidecar: sidecar.into(),
        host: address.ip().to_string().into(),
        port: address.port().into(),
        broker_id: BrokerId(1),
        version: "0".into(),
    }
}

/// Two processes that own a partition each, and a third that nobody reaches.
async fn three(listeners: &mut Listeners) -> (SocketAddr, Scripted) {
    let (one, first) = listeners.start().await;
    let (two, second) = listeners.start().await;
    // A port that was free a moment ago.
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let owned = |index| DescribedMirrorPartition {
        source_offset: 1_500,
        destination_offset: 1_400,
        lag: 100,
        lag_ms: 2_500,
        sidecar: Some(format!("s{index}").into()),
        state_epoch: 4,
        ..partition(index, "MIRRORING")
    };
    let failed = DescribedMirrorPartition {
        retry_attempt: -1,
        error_message: Some("changed by another writer at offset 7".into()),
        state_epoch: 9,
        ..partition(2, "FAILED")
    };
    let members = vec![member("s0", one), member("s1", two), member("s2", gone)];
    first.0.lock().unwrap().describe = DescribeClusterMirrorsResponse {
        mirrors: vec![mirror(
            "east",
            vec![topic(
                "orders",
                vec![owned(0), partition(1, "MIRRORING"), failed.clone()],
            )],
        )],
        members: members.clone(),
        answering: Some("s0".into()),
        ..DescribeClusterMirrorsResponse::default()
    };
    second.0.lock().unwrap().describe = DescribeClusterMirrorsResponse {
        mirrors: vec![DescribedMirror {
            source_reachable: false,
            error_message: Some("connection refused".into()),
            ..mirror(
                "east",
                vec![topic(
                    "orders",
                    vec![partition(0, "MIRRORING"), owned(1), failed],
                )],
            )
        }],
        members,
        answering: Some("s1".into()),
        ..DescribeClusterMirrorsResponse::default()
    };
    (one, first)
}

#[tokio::test]
async fn describe_asks_all_members_merges_and_says_who_did_not_answer() {
    let mut listeners = Listeners::default();
    let (server, _) = three(&mut listeners).await;
    let outcome = run(server, "describe").await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let table = cells(&outcome.stdout);
    assert_eq!(
        table[0].join(" "),
        "MIRROR TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAG SECONDS STATE REASON"
    );
    assert_eq!(
        table[1].join(" "),
        "east orders 0 1500 1400 100 2.5 MIRRORING"
    );
    assert_eq!(
        table[2].join(" "),
        "east orders 1 1500 1400 100 2.5 MIRRORING"
    );
    assert_eq!(
        table[3].join(" "),
        "east orders 2 - - - - FAILED changed by another writer at offset 7; not tried again until truemirror recover"
    );
    let rest: Vec<&str> = outcome.stdout.lines().skip(5).collect();
    assert_eq!(
        rest[0],
        "3 partitions: 2 MIRRORING, 1 FAILED; lag 200 records"
    );
    assert_eq!(
        rest[1],
        "mirror east: the source does not answer: connection refused"
    );
    assert!(
        rest[2].starts_with("s2 did not answer, offsets of its partitions are missing: no truemirror answers at 127.0.0.1:"),
        "{rest:#?}"
    );
    assert_eq!((rest.len(), outcome.stderr.as_str()), (3, ""), "{rest:#?}");
}

#[tokio::test]
async fn describe_json_has_the_references_names_and_ours() {
    let mut listeners = Listeners::default();
    let (server, _) = three(&mut listeners).await;
    let outcome = run(server, "describe --mirror east --json").await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(
        outcome.stderr.starts_with("s2 did not answer"),
        "{outcome:?}"
    );
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let owned = |index: i32| {
        json!({
            "mirror": "east", "topic": "orders", "partition": index, "sourceOffset": 1500, "destinationOffset": 1400,
            "lag": 100, "state": "MIRRORING", "retryAttempt": 0, "errorMessage": null, "lagSeconds": 2.5,
            "undecidedRecords": null, "sourceLogStartOffset": null, "nextRetrySeconds": null, "sidecar": format!("s{index}"),
            "stateEpoch": 4, "desiredState": "MIRRORING", "sourceReachable": false
        })
    };
    let failed = json!({
        "mirror": "east", "topic": "orders", "partition": 2, "sourceOffset": -1, "destinationOffset": -1,
        "lag": -1, "state": "FAILED", "retryAttempt": -1, "errorMessage": "changed by another writer at offset 7",
        "lagSeconds": null, "undecidedRecords": null, "sourceLogStartOffset": null, "nextRetrySeconds": null,
        "sidecar": null, "stateEpoch": 9, "desiredState": "MIRRORING", "sourceReachable": false
    });
    assert_eq!(found, json!([owned(0), owned(1), failed]));
}

#[tokio::test]
async fn describe_shows_failed_partitions_alone_and_chosen_topics() {
    let mut listeners = Listeners::default();
    let (server, _) = three(&mut listeners).await;
    let outcome = run(server, "describe --failed").await;
    let table = cells(&outcome.stdout);
    assert_eq!(
        table[0].join(" "),
        "MIRROR TOPIC PARTITION RETRY NEXT ERROR"
    );
    assert_eq!(
        table[1].join(" "),
        "east orders 2 NonRetryable - changed by another writer at offset 7"
    );
    for (arguments, stdout) in [
        (
            "describe --failed --topics other",
            "No failed partitions found\n",
        ),
        ("describe --topics ord", "No mirror partitions found\n"),
        ("describe --topics o.*x --json", "[]\n"),
    ] {
        let outcome = run(server, arguments).await;
        assert!(
            outcome.stdout.starts_with(stdout),
            "{arguments}: {outcome:?}"
        );
        assert_eq!(outcome.code, 0);
    }
    let outcome = run(server, "describe --topics o.*s --json").await;
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn an_unknown_mirror_is_an_error() {
    let mut listeners = Listeners::default();
    let (server, _) = three(&mut listeners).await;
    for arguments in [
        "describe --mirror nobody",
        "pause --mirror nobody --all",
        "resume --mirror nobody --topics a",
    ] {
        let outcome = run(server, arguments).await;
        assert_eq!(outcome.code, 1, "{arguments}: {outcome:?}");
        let line = "mirror nobody: UNKNOWN_CLUSTER_MIRROR (137): there is no such mirror; truemirror list names those there are\n";
        assert!(outcome.stderr.ends_with(line), "{arguments}: {outcome:?}");
        assert_eq!(outcome.stdout, "", "{arguments}");
    }
}

#[tokio::test]
async fn watch_shows_the_picture_again() {
    let mut listeners = Listeners::default();
    let (server, service) = three(&mut listeners).await;
    let mut watching = command(server, "describe --watch")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut until = async |wanted: &str| {
        let reading = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it goes on");
                if line.contains(wanted) {
                    return;
                }
            }
        };
        timeout(PATIENCE, reading).await.expect(wanted);
    };
    until("2 MIRRORING, 1 FAILED").await;
    service.0.lock().unwrap().describe.mirrors[0]
        .topics
        .push(topic("new", vec![partition(0, "PAUSED")]));
    until("2 MIRRORING, 1 PAUSED, 1 FAILED").await;
    let pid = watching.id().unwrap().to_string();
    let interrupted = Command::new("kill")
        .args(["-s", "INT", &pid])
        .status()
        .await;
    assert!(interrupted.unwrap().success());
    let ended = timeout(PATIENCE, watching.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn list_is_sorted_and_has_dashes() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    let outcome = run(server, "list").await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "No mirrors found\n")
    );
    let listed = |name: &str, id: &str, desired_state| ListedMirror {
        mirror_name: name.into(),
        source_bootstrap: "a:1,b:2".into(),
        source_cluster_id: id.into(),
        topic_count: 2,
        topic_names: vec!["orders".into(), "x".into()],
        desired_state,
    };
    service.0.lock().unwrap().list.mirrors = vec![listed("west", "", -1), listed("east", "c1", 4)];
    let outcome = run(server, "list").await;
    let table: Vec<String> = cells(&outcome.stdout)
        .iter()
        .map(|line| line.join(" "))
        .collect();
    assert_eq!(
        table,
        [
            "MIRROR TOPICS WANTED SOURCE-CLUSTER-ID SOURCE-BOOTSTRAP-SERVER",
            "east 2 PAUSED c1 a:1,b:2",
            "west 2 - - a:1,b:2",
        ]
    );
    let outcome = run(server, "list --json").await;
    let found: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        found[0],
        json!({
            "mirror": "east", "topics": 2, "topicNames": ["orders", "x"], "sourceClusterId": "c1",
            "sourceBootstrap": "a:1,b:2", "desiredState": "PAUSED"
        })
    );
}

#[tokio::test]
async fn each_topic_is_one_line_and_a_refusal_has_its_name_and_words() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    let outcome = run(
        server,
        "pause --mirror east --topics orders,bad-paused --topics bad-words",
    )
    .await;
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert_eq!(
        outcome.stdout,
        "bad-paused: REFUSED: MIRROR_TOPIC_ALREADY_PAUSED (140): the topic is paused; resume it first\n\
         bad-words: REFUSED: TOPIC_ALREADY_IN_CLUSTER_MIRROR (138): west has it\n\
         orders: pausing\n\
         mirror east: 1 topic pausing, 2 refused\n"
    );
    // Names need no look at what is there.
    assert_eq!(service.asked().len(), 1);
    let outcome = run(server, "resume --mirror east --topics orders").await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "orders: resuming\nmirror east: 1 topic resuming\n")
    );
    assert!(service.asked()[1].starts_with("ResumeMirrorTopicsRequest"));
}

#[tokio::test]
async fn a_dry_run_says_so_to_the_server_and_to_people() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    for (arguments, first, last) in [
        (
            "start --mirror m --topics a --dry-run",
            "a: would be started",
            "mirror m: 1 topic would be started (dry run, nothing was changed)",
        ),
        (
            "pause --mirror m --topics a --dry-run",
            "a: would be paused",
            "mirror m: 1 topic would be paused (dry run, nothing was changed)",
        ),
        (
            "resume --mirror m --topics a --dry-run",
            "a: would be resumed",
            "mirror m: 1 topic would be resumed (dry run, nothing was changed)",
        ),
        (
            "stop --mirror m --topics a --dry-run",
            "a: would be stopped",
            "mirror m: 1 topic would be stopped (dry run, nothing was changed)",
        ),
        (
            "recover --mirror m --topics a --dry-run",
            "a: would be tried again",
            "mirror m: 1 topic would be tried again (dry run, nothing was changed)",
        ),
        (
            "delete --mirror m --dry-run",
            "mirror m: would be deleted",
            "mirror m: would be deleted",
        ),
    ] {
        let outcome = run(server, arguments).await;
        assert_eq!(outcome.code, 0, "{arguments}: {outcome:?}");
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        assert_eq!(
            (lines[0], *lines.last().unwrap()),
            (first, last),
            "{arguments}"
        );
        let asked = service.asked();
        assert!(
            asked.last().unwrap().contains("dry_run: true"),
            "{arguments}: {asked:?}"
        );
    }
}

#[tokio::test]
async fn patterns_and_all_mean_the_topics_with_something_to_do() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    service.0.lock().unwrap().describe.mirrors = vec![
        mirror(
            "east",
            vec![
                topic(
                    "orders-1",
                    vec![partition(0, "MIRRORING"), partition(1, "FAILED")],
                ),
                topic("orders-2", vec![partition(0, "PAUSED")]),
                topic("payments", vec![partition(0, "STOPPED")]),
            ],
        ),
        mirror(
            "west",
            vec![topic("orders-9", vec![partition(0, "MIRRORING")])],
        ),
    ];
    for (arguments, topics) in [
        ("pause --mirror east --all", vec!["orders-1"]),
        (
            "pause --mirror east --topics payments,o.*",
            vec!["orders-1", "payments"],
        ),
        ("resume --mirror east --all", vec!["orders-2"]),
        (
            "recover --mirror east --topics orders-[0-9]",
            vec!["orders-1"],
        ),
        (
            "promote --mirror east --all --yes",
            vec!["orders-1", "orders-2"],
        ),
    ] {
        let outcome = run(server, arguments).await;
        assert_eq!(outcome.code, 0, "{arguments}: {outcome:?}");
        let named: Vec<&str> = outcome
            .stdout
            .lines()
            .map(|line| line.split(": ").next().unwrap())
            .filter(|name| !name.starts_with("mirror "))
            .collect();
        assert_eq!(named, topics, "{arguments}");
    }
    let asked = service.asked().len();
    let outcome = run(server, "resume --mirror west --all").await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (
            0,
            "mirror west: nothing to do: 1 topic found, none would be resumed\n"
        )
    );
    let outcome = run(server, "pause --mirror west --topics x.*,y+").await;
    assert_eq!(outcome.code, 1);
    assert_eq!(
        outcome.stderr,
        "mirror west: no topic matches \"x.*\", \"y+\"; truemirror describe --mirror west shows those there are\n"
    );
    assert_eq!(service.asked().len(), asked);
}

#[tokio::test]
async fn start_passes_names_and_patterns_on() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    let outcome = run(
        server,
        "start --mirror east --topics orders,pay.* --exclude pay-x.*",
    )
    .await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "orders: starting\nmirror east: 1 topic starting\n")
    );
    let asked = service.asked();
    for part in [
        "StartMirrorTopicsRequest { mirror_name: \"east\"",
        "topic_name: \"orders\"",
        "state_validation_offset: -1",
        "include_patterns: [\"pay.*\"]",
        "exclude_patterns: [\"pay-x.*\"]",
    ] {
        assert!(asked[0].contains(part), "{part} in {asked:?}");
    }
    let outcome = run(server, "start --mirror east --all").await;
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(service.asked()[1].contains("include_patterns: [\".*\"]"));
    assert!(outcome.stderr.contains("no topic matches"), "{outcome:?}");
}

#[tokio::test]
async fn stop_without_a_terminal_needs_consent() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    let outcome = run(server, "stop --mirror east --topics orders").await;
    assert_eq!(outcome.code, 2, "{outcome:?}");
    for part in ["one-way", "--yes", "--dry-run", "pause can be undone"] {
        assert!(outcome.stderr.contains(part), "{part} in {outcome:?}");
    }
    assert_eq!(service.asked(), Vec::<String>::new());
    let outcome = run(server, "stop --mirror east --topics orders --yes").await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (
            0,
            "orders: stopping\nmirror east: 1 topic stopping; writable as soon as truemirror describe shows STOPPED\n"
        )
    );
}

#[tokio::test]
async fn stop_asks_at_a_terminal() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    for (answer, code, asked) in [("no\n", 1, 0), ("\n", 1, 0), ("yes\n", 0, 1)] {
        let line = format!(
            "{} promote --mirror east --topics orders,x --server {server}",
            env!("CARGO_BIN_EXE_truemirror")
        );
        // `script` gives the command a terminal.
        let mut typing = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the command script (Debian package bsdutils)");
        let mut stdin = typing.stdin.take().unwrap();
        stdin.write_all(answer.as_bytes()).await.unwrap();
        let output = timeout(PATIENCE, typing.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        drop(stdin);
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{answer:?}: {shown}");
        for part in ["one-way", "topics  orders, x", "Type yes"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert_eq!(shown.contains("nothing was changed"), code == 1, "{shown}");
        assert_eq!(service.asked().len(), asked, "{answer:?}");
    }
}

#[tokio::test]
async fn a_mirror_with_topics_is_not_deleted() {
    let mut listeners = Listeners::default();
    let (server, _) = listeners.start().await;
    let outcome = run(server, "delete --mirror busy").await;
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    assert_eq!(
        outcome.stderr,
        "mirror busy: CLUSTER_MIRROR_NOT_EMPTY (143): the mirror has topics that are not stopped; stop them first\n"
    );
    let outcome = run(server, "delete --mirror idle").await;
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (0, "mirror idle: deleted\n")
    );
}

#[tokio::test]
async fn a_coordinator_that_loads_is_asked_again() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    service.0.lock().unwrap().loading = 2;
    let outcome = run(server, "pause --mirror east --topics orders").await;
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(service.asked().len(), 3);
    service.0.lock().unwrap().loading = usize::MAX;
    let outcome = run(server, "pause --mirror east --topics orders --timeout 1s").await;
    assert_eq!(outcome.code, 1);
    let words = "mirror east: COORDINATOR_LOAD_IN_PROGRESS (14): the process that keeps the state of the mirror";
    assert!(outcome.stderr.starts_with(words), "{outcome:?}");
}

#[tokio::test]
async fn nobody_there_says_what_to_look_at() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    for arguments in [
        "list",
        "describe",
        "pause --mirror m --all",
        "delete --mirror m",
    ] {
        let outcome = run(gone, arguments).await;
        assert_eq!(outcome.code, 1, "{arguments}: {outcome:?}");
        for part in [
            format!("no truemirror answers at {gone}: cannot connect to 127.0.0.1"),
            "refused".to_owned(),
            "does not run".to_owned(),
            "--server HOST:PORT".to_owned(),
        ] {
            assert!(
                outcome.stderr.contains(&part),
                "{arguments}: {part} in {outcome:?}"
            );
        }
    }
    // Somebody who accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let outcome = run(silent.local_addr().unwrap(), "list --timeout 1s").await;
    assert_eq!(outcome.code, 1);
    assert!(
        outcome.stderr.contains("does not answer as a Kafka broker"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_wrong_command_line_is_usage() {
    let mut listeners = Listeners::default();
    let (server, service) = listeners.start().await;
    for arguments in [
        "pause --mirror east",
        "pause --topics a",
        "stop --mirror east --topics ( --yes",
        "describe --watch --json",
    ] {
        let outcome = run(server, arguments).await;
        assert_eq!(outcome.code, 2, "{arguments}: {outcome:?}");
    }
    assert_eq!(service.asked(), Vec::<String>::new());
}
