//! The listener against peers of every kind: slow, broken, hostile, ordinary Kafka clients, and another implementation of the
//! protocol. Must not need a broker, nor the daemon.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests stop the test like tests do"
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use prometheus::TextEncoder;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use truemirror::config::Limits;
use truemirror::metrics::Metrics;
use truemirror::server::{ListenerOptions, Service, serve};
use truemirror::wire::api::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use truemirror::wire::bounded::Reader;
use truemirror::wire::error_code::ErrorCode;
use truemirror::wire::frame::{RequestFrame, decode_response, response_correlation_id};
use truemirror::wire::mirror_rpc::*;
use truemirror::wire::schema::Request;

const SECOND: Duration = Duration::from_secs(1);

/// Held by the test that looks at the memory of the process, and by those that use much of it.
static MEMORY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A service whose answer depends on the mirror that is asked for: "never" has none, "slow" one after 200 ms, "big" a big
/// one; all others get theirs at once.
#[derive(Clone, Debug, Default)]
struct Answers {
    active: Arc<AtomicUsize>,
    most_active: Arc<AtomicUsize>,
    written: Arc<Mutex<Vec<WriteMirrorStatesRequest>>>,
}

impl Answers {
    async fn wait(&self, mirror: &str) {
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_active.fetch_max(active, Ordering::Relaxed);
        match mirror {
            "never" => std::future::pending().await,
            "slow" => sleep(Duration::from_millis(200)).await,
            _ => tokio::task::yield_now().await,
        }
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
}

macro_rules! refused {
    ($($method:ident: $request:ident => $response:ident;)+) => {$(
        async fn $method(&self, request: $request) -> $response {
            self.wait(&request.mirror_name).await;
            $response::refused(ErrorCode::UNKNOWN_CLUSTER_MIRROR, Some("no such mirror".into()))
        }
    )+};
}

impl Service for Answers {
    refused! {
        start_mirror_topics: StartMirrorTopicsRequest => StartMirrorTopicsResponse;
        stop_mirror_topics: StopMirrorTopicsRequest => StopMirrorTopicsResponse;
        pause_mirror_topics: PauseMirrorTopicsRequest => PauseMirrorTopicsResponse;
        resume_mirror_topics: ResumeMirrorTopicsRequest => ResumeMirrorTopicsResponse;
        delete_cluster_mirror: DeleteClusterMirrorRequest => DeleteClusterMirrorResponse;
        recover_mirror_topics: RecoverMirrorTopicsRequest => RecoverMirrorTopicsResponse;
    }

    async fn list_cluster_mirrors(
        &self,
        _: ListClusterMirrorsRequest,
    ) -> ListClusterMirrorsResponse {
        ListClusterMirrorsResponse::default()
    }

    async fn describe_cluster_mirrors(
        &self,
        request: DescribeClusterMirrorsRequest,
    ) -> DescribeClusterMirrorsResponse {
        let mirror = request.mirror_names.first().cloned().unwrap_or_default();
        self.wait(&mirror).await;
        let bytes = if &*mirror == "big" { 8 << 20 } else { 0 };
        DescribeClusterMirrorsResponse {
            error_message: Some("x".repeat(bytes).into()),
            ..DescribeClusterMirrorsResponse::default()
        }
    }

    async fn read_mirror_states(
        &self,
        request: ReadMirrorStatesRequest,
    ) -> ReadMirrorStatesResponse {
        self.wait(&request.mirror_name).await;
        let partition = |asked: ReadMirrorStatesPartition| ReadMirrorStatesPartitionResult {
            partition_index: asked.partition_index,
            last_mirror_epoch: 4,
            state: 2,
            previous_state: if asked.partition_index == 1 { 7 } else { 16 },
            retry_attempt: i16::try_from(asked.partition_index).unwrap() * 3,
            state_epoch: 17,
            ..ReadMirrorStatesPartitionResult::default()
        };
        let topic = |topic: ReadMirrorStatesTopic| ReadMirrorStatesTopicResult {
            name: topic.name,
            partitions: topic.partitions.into_iter().map(partition).collect(),
        };
        ReadMirrorStatesResponse {
            topics: request.topics.into_iter().map(topic).collect(),
            ..ReadMirrorStatesResponse::default()
        }
    }

    async fn write_mirror_states(
        &self,
        request: WriteMirrorStatesRequest,
    ) -> WriteMirrorStatesResponse {
        self.written.lock().unwrap().push(request.clone());
        let partition = |asked: WriteMirrorStatesPartition| WriteMirrorStatesPartitionResult {
            partition_index: asked.partition_index,
            error_code: if asked.state_epoch == -1 {
                ErrorCode::NONE
            } else {
                ErrorCode::FENCED_STATE_EPOCH
            },
            state_epoch: 18,
            error_message: None,
        };
        let topic = |topic: WriteMirrorStatesTopic| WriteMirrorStatesTopicResult {
            name: topic.name,
            partitions: topic.partitions.into_iter().map(partition).collect(),
        };
        WriteMirrorStatesResponse {
            topics: request.topics.into_iter().map(topic).collect(),
            ..WriteMirrorStatesResponse::default()
        }
    }
}

/// What the listener logs from WARN on, in the thread of the test.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A running listener, in the thread of the test.
struct Listening {
    address: SocketAddr,
    answers: Answers,
    metrics: Metrics,
    log: Log,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _logging: tracing::subscriber::DefaultGuard,
}

fn options() -> ListenerOptions {
    ListenerOptions::new(&Limits {
        memory_bytes: 0,
        connections: 256,
        request_max_bytes: 1 << 20,
    })
}

async fn listening(options: ListenerOptions) -> Listening {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let logging = tracing::subscriber::set_default(subscriber);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = Answers::default();
    let metrics = Metrics::new("0").unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(
        listener,
        answers.clone(),
        metrics.clone(),
        options,
        stop.clone(),
    ));
    Listening {
        address,
        answers,
        metrics,
        log,
        stop,
        tasks,
        _logging: logging,
    }
}

impl Listening {
    async fn connect(&self) -> TcpStream {
        let stream = timeout(5 * SECOND, TcpStream::connect(self.address)).await;
        stream.unwrap().unwrap()
    }

    /// Everything that comes back to `bytes`, and how long it took until the listener closed.
    async fn exchange(&self, bytes: &[u8]) -> (Vec<u8>, Duration) {
        let start = Instant::now();
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        (until_closed(&mut stream).await, start.elapsed())
    }

    /// Rejections by their reasons.
    fn rejected(&self) -> BTreeMap<String, u64> {
        let families = self.metrics.registry().gather();
        let text = TextEncoder::new().encode_to_string(&families).unwrap();
        let counted = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("truemirror_listener_rejected_total{reason=\"")?;
            let (reason, count) = rest.split_once("\"} ")?;
            Some((reason.to_owned(), count.parse().unwrap()))
        });
        counted.collect()
    }

    /// A call by a peer of good will.
    async fn versions(&self) -> ApiVersionsResponse {
        let mut stream = self.connect().await;
        send(&mut stream, &ApiVersionsRequest::default(), 0, 1).await;
        let (correlation_id, mut body) = frame(&mut stream).await;
        assert_eq!(correlation_id, 1);
        decode_response::<ApiVersionsRequest>(0, &mut body).unwrap()
    }
}

async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    timeout(20 * SECOND, stream.read_to_end(&mut got))
        .await
        .expect("the listener closes")
        .unwrap();
    got
}

fn encoded<R: Request>(request: &R, version: i16, correlation_id: i32) -> Bytes {
    let frame = RequestFrame::encode(request, version, "test").unwrap();
    let mut frame = frame.number(correlation_id).unwrap();
    frame.copy_to_bytes(frame.len())
}

async fn send<R: Request>(stream: &mut TcpStream, request: &R, version: i16, correlation_id: i32) {
    let bytes = encoded(request, version, correlation_id);
    stream.write_all(&bytes).await.unwrap();
}

/// The next answer: its correlation id, and what stands behind it.
async fn frame(stream: &mut TcpStream) -> (i32, Reader) {
    let reading = async {
        let length = stream.read_i32().await.unwrap();
        let mut frame = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut frame).await.unwrap();
        frame
    };
    let frame = timeout(20 * SECOND, reading).await.expect("an answer");
    let mut r = Reader::new(frame.into());
    (response_correlation_id(&mut r).unwrap(), r)
}

fn read_request(mirror: &str) -> ReadMirrorStatesRequest {
    ReadMirrorStatesRequest {
        mirror_name: mirror.into(),
        topics: Vec::new(),
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Malformed frames: name, bytes, the reason that counts them, and what the log line must say.
fn malformed() -> Vec<(String, Vec<u8>, &'static str, &'static str)> {
    let wanted = [
        ("M01", "negative_length", "-1 is no length"),
        ("M02", "oversized", "2147483647 bytes, at most 1048576"),
        ("M03", "tls", "looks like TLS"),
        ("M04", "http", "looks like HTTP"),
        ("M05", "header", "header does not read"),
        ("M06", "unknown_api", "api key 32767 in version 0"),
        ("M08", "unknown_api", "api key 3 in version 1"),
        ("M09", "header", "header does not read"),
        ("M10", "body", "ApiVersions (18) version 3 does not read"),
    ];
    let fixtures = include_str!("data/frames.hex");
    let mut frames: Vec<_> = fixtures
        .lines()
        .filter_map(|line| {
            let (name, bytes) = line.split_once(' ').unwrap();
            let (_, reason, words) = wanted.iter().find(|(wanted, ..)| *wanted == name)?;
            Some((name.to_owned(), hex(bytes), *reason, *words))
        })
        .collect();
    assert_eq!(frames.len(), wanted.len());
    for (name, bytes, reason, words) in [
        (
            "an empty frame",
            "00000000",
            "header",
            "header does not read",
        ),
        // ReadMirrorStates, header v2, mirror "x", an array of 2^32-2 topics.
        (
            "M08 for our own calls",
            "00000013 0064 0000 00000002 000178 00 0278 ffffffff0f",
            "body",
            "ReadMirrorStates (100) version 0 does not read",
        ),
        (
            "M09 with length -2",
            "0000000b 0012 0000 00000003 fffe 78",
            "header",
            "header does not read",
        ),
        (
            "M10 with an over-long number of fields",
            "00000011 0012 0003 00000004 000178 ffffffffff01",
            "body",
            "ApiVersions (18) version 3 does not read",
        ),
        (
            "a mirror's name that is not UTF-8",
            "00000010 0064 0000 00000002 000178 00 02ff 01 00",
            "body",
            "not UTF-8",
        ),
        (
            "ReadMirrorStates in version 1",
            "0000000b 0064 0001 00000002 000178",
            "unsupported_version",
            "ReadMirrorStates (100) is not offered in version 1",
        ),
    ] {
        let bytes = hex(&bytes.replace(' ', ""));
        let length = u32::from_be_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(usize::try_from(length).unwrap(), bytes.len() - 4, "{name}");
        frames.push((name.to_owned(), bytes, reason, words));
    }
    frames
}

#[tokio::test]
async fn each_malformed_frame_closes_its_connection_with_one_line_and_nothing_else() {
    for (name, bytes, reason, words) in malformed() {
        let listening = listening(options()).await;
        let mut bystander = listening.connect().await;
        send(&mut bystander, &ApiVersionsRequest::default(), 0, 1).await;
        frame(&mut bystander).await;

        let (got, took) = listening.exchange(&bytes).await;
        assert!(got.is_empty(), "{name}: answered {got:?}");
        assert!(took < SECOND, "{name}: closed after {took:?}");

        let one = BTreeMap::from([(reason.to_owned(), 1)]);
        assert_eq!(listening.rejected(), one, "{name}");
        let lines = listening.log.lines();
        assert_eq!(lines.len(), 1, "{name}: {lines:#?}");
        for part in [words, "WARN", "peer=127.0.0.1:", reason] {
            assert!(lines[0].contains(part), "{name}: {part} in {}", lines[0]);
        }
        if reason == "unknown_api" {
            assert!(lines[0].contains("api_key=") && lines[0].contains("version="));
        }
        send(&mut bystander, &ApiVersionsRequest::default(), 0, 2).await;
        assert_eq!(frame(&mut bystander).await.0, 2, "{name}: others go on");
        assert_eq!(listening.versions().await.error_code, ErrorCode::NONE);
    }
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn floods_of_malformed_frames_cost_neither_memory_nor_log() {
    let _alone = MEMORY.lock().await;
    let listening = listening(options()).await;
    let frames = malformed();
    let round = async |count: usize| {
        for _ in 0..count {
            for (name, bytes, ..) in &frames {
                assert!(listening.exchange(bytes).await.0.is_empty(), "{name}");
            }
        }
    };
    round(10).await;
    let before = resident_bytes();
    round(200).await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "memory has grown by {grown} bytes");
    let rejected: u64 = listening.rejected().values().sum();
    assert_eq!(rejected, 210 * u64::try_from(frames.len()).unwrap());
    let kinds: std::collections::BTreeSet<_> = frames
        .iter()
        .map(|(_, bytes, reason, _)| {
            let keyed = ["unknown_api", "body", "unsupported_version"].contains(reason);
            (*reason, keyed.then(|| bytes[4..6].to_vec()))
        })
        .collect();
    let lines = listening.log.lines();
    assert_eq!(lines.len(), kinds.len(), "{lines:#?}");
    assert_eq!(listening.versions().await.error_code, ErrorCode::NONE);
}

#[tokio::test]
async fn api_versions_of_the_future_are_answered_in_version_0_and_the_connection_lives() {
    let listening = listening(options()).await;
    let mut stream = listening.connect().await;
    let fixtures = include_str!("data/frames.hex");
    let line = fixtures.lines().find(|line| line.starts_with("M07 "));
    let asked = hex(&line.unwrap()[4..]);
    for _ in 0..2 {
        stream.write_all(&asked).await.unwrap();
        let mut answer = [0; 20];
        timeout(SECOND, stream.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            answer.to_vec(),
            hex("000000100000002a002300000001001200000004")
        );
    }
    assert_eq!(listening.log.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn a_null_client_id_and_unknown_tagged_fields_are_fine() {
    let listening = listening(options()).await;
    for (name, bytes) in [
        ("a null client id", "0000000a 0012 0000 00000003 ffff"),
        (
            "an unknown tag in the header",
            "00000016 0012 0003 00000003 000178 01 7f02abcd 0261 0262 00",
        ),
        (
            "the same unknown tag twice",
            "00000019 0012 0003 00000003 000178 02 0701ab 0701cd 0261 0262 00",
        ),
    ] {
        let mut bytes = hex(&bytes.replace(' ', ""));
        let length = u32::try_from(bytes.len() - 4).unwrap();
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        let mut stream = listening.connect().await;
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(frame(&mut stream).await.0, 3, "{name}");
    }
    assert_eq!(listening.log.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_offered_reads_the_same_elsewhere_in_every_version() {
    let listening = listening(options()).await;
    for version in 0..=4 {
        let mut frame = BytesMut::new();
        theirs::RequestHeader::default()
            .with_request_api_key(18)
            .with_request_api_version(version)
            .with_correlation_id(9)
            .with_client_id(Some(StrBytes::from_static_str("them")))
            .encode(
                &mut frame,
                theirs::ApiVersionsRequest::header_version(version),
            )
            .unwrap();
        theirs::ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("them"))
            .with_client_software_version(StrBytes::from_static_str("1"))
            .encode(&mut frame, version)
            .unwrap();
        let mut stream = listening.connect().await;
        stream
            .write_i32(i32::try_from(frame.len()).unwrap())
            .await
            .unwrap();
        stream.write_all(&frame).await.unwrap();
        let (correlation_id, body) = self::frame(&mut stream).await;
        assert_eq!(correlation_id, 9);
        let mut body = body.rest();
        let answer = theirs::ApiVersionsResponse::decode(&mut body, version).unwrap();
        assert!(body.is_empty());
        let keys: Vec<i16> = answer.api_keys.iter().map(|api| api.api_key).collect();
        assert_eq!(keys, [18, 95, 96, 98, 99, 100, 101, 102, 103, 104, 106]);
    }
}

#[tokio::test]
async fn a_good_request_in_front_of_a_bad_one_is_answered() {
    let listening = listening(options()).await;
    let mut bytes = encoded(&read_request("slow"), 0, 5).to_vec();
    bytes.extend_from_slice(&hex("0000000b7fff000000000001000178"));
    // Behind the end nothing is read as a request.
    bytes.extend_from_slice(&encoded(&read_request("x"), 0, 6));
    let (got, _) = listening.exchange(&bytes).await;
    let mut r = Reader::new(Bytes::from(got).slice(4..));
    assert_eq!(response_correlation_id(&mut r), Ok(5));
    let answer = decode_response::<ReadMirrorStatesRequest>(0, &mut r);
    assert_eq!(answer.unwrap().error_code, ErrorCode::NONE);
}

#[tokio::test]
async fn split_frames_get_the_answers_of_whole_ones() {
    let listening = listening(options()).await;
    let mut bytes = encoded(&ApiVersionsRequest::default(), 0, 1).to_vec();
    bytes.extend_from_slice(&encoded(&read_request("x"), 0, 2));
    for at in 0..=bytes.len() {
        let mut stream = listening.connect().await;
        stream.set_nodelay(true).unwrap();
        stream.write_all(&bytes[..at]).await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(&bytes[at..]).await.unwrap();
        assert_eq!(frame(&mut stream).await.0, 1, "split at {at}");
        assert_eq!(frame(&mut stream).await.0, 2, "split at {at}");
    }
}

/// Case P16: a request whose answer does not come must not hold up others for ever.
#[tokio::test]
async fn p16_twenty_pipelined_requests_are_all_answered_in_order_and_in_time() {
    let listening = listening(ListenerOptions {
        answer_timeout: SECOND,
        ..options()
    })
    .await;
    let mut stream = listening.connect().await;
    let start = Instant::now();
    for number in 0..20 {
        let mirror = if number == 7 { "never" } else { "x" };
        send(&mut stream, &read_request(mirror), 0, number).await;
    }
    for number in 0..20 {
        let (correlation_id, mut body) = frame(&mut stream).await;
        assert_eq!(correlation_id, number);
        let answer = decode_response::<ReadMirrorStatesRequest>(0, &mut body).unwrap();
        if number == 7 {
            assert_eq!(answer.error_code, ErrorCode::REQUEST_TIMED_OUT);
            let words = answer.error_message.unwrap();
            assert!(words.contains("no answer within 1s"), "{words}");
        } else {
            assert_eq!(answer.error_code, ErrorCode::NONE);
        }
        let took = start.elapsed();
        assert_eq!(took < SECOND, number < 7, "{number} after {took:?}");
        assert!(took < 5 * SECOND, "{number} after {took:?}");
    }
}

#[tokio::test]
async fn requests_are_worked_on_side_by_side_and_answered_in_order() {
    let listening = listening(ListenerOptions {
        max_in_flight: 4,
        ..options()
    })
    .await;
    let mut stream = listening.connect().await;
    let mut bytes = Vec::new();
    for number in 0..12 {
        bytes.extend_from_slice(&encoded(&read_request("slow"), 0, number));
    }
    stream.write_all(&bytes).await.unwrap();
    for number in 0..12 {
        assert_eq!(frame(&mut stream).await.0, number);
    }
    assert_eq!(listening.answers.most_active.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn bytes_of_requests_in_flight_have_a_limit() {
    let listening = listening(ListenerOptions {
        request_max_bytes: 100_000,
        ..options()
    })
    .await;
    let mut stream = listening.connect().await;
    let mut request = read_request("slow");
    request.topics.push(ReadMirrorStatesTopic {
        name: "x".repeat(60_000).into(),
        partitions: Vec::new(),
    });
    let bytes = encoded(&request, 0, 1);
    let sending = async {
        let (mut read, mut write) = stream.split();
        let writing = async {
            for _ in 0..10 {
                write.write_all(&bytes).await.unwrap();
            }
        };
        let reading = async {
            for _ in 0..10 {
                let length = read.read_i32().await.unwrap();
                let mut frame = vec![0; usize::try_from(length).unwrap()];
                read.read_exact(&mut frame).await.unwrap();
            }
        };
        tokio::join!(writing, reading);
    };
    timeout(20 * SECOND, sending).await.unwrap();
    assert_eq!(listening.answers.most_active.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn slow_senders_are_closed_at_the_deadline_and_disturb_nobody() {
    let listening = listening(ListenerOptions {
        connections: 40,
        frame_timeout: SECOND,
        ..options()
    })
    .await;
    let mut peers = JoinSet::new();
    let start = Instant::now();
    for number in 0..50 {
        let address = listening.address;
        peers.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Some say nothing at all, the others send byte by byte.
            if number % 2 == 0 {
                stream.write_all(&[0, 0, 0, 64]).await.ok();
            }
            let dripping = async {
                let (mut read, mut write) = stream.split();
                let drip = async {
                    loop {
                        sleep(Duration::from_millis(300)).await;
                        if number % 2 == 1 || write.write_all(&[0]).await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    }
                };
                let mut end = [0; 1];
                tokio::select! {
                    () = drip => {}
                    // Either a clean end or a reset.
                    read = read.read(&mut end) => assert_eq!(read.unwrap_or(0), 0),
                }
            };
            timeout(10 * SECOND, dripping).await.expect("closed");
            start.elapsed()
        });
    }
    // Another address has its half of the places.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(listening.address).await.unwrap();
    while let Some(took) = peers.join_next().await {
        assert!(took.unwrap() < 8 * SECOND);
        send(&mut other, &read_request("x"), 0, 1).await;
        frame(&mut other).await;
    }
    let rejected = listening.rejected();
    assert_eq!(rejected["slow_sender"], 20, "{rejected:?}");
    assert_eq!(rejected["connections_of_address"], 30, "{rejected:?}");
    assert_eq!(
        listening.log.lines().len(),
        2,
        "{:#?}",
        listening.log.lines()
    );
}

#[tokio::test]
async fn a_silent_peer_is_closed_without_a_line() {
    let listening = listening(ListenerOptions {
        idle_timeout: Duration::from_millis(300),
        ..options()
    })
    .await;
    let mut stream = listening.connect().await;
    send(&mut stream, &read_request("slow"), 0, 1).await;
    frame(&mut stream).await;
    let start = Instant::now();
    assert!(until_closed(&mut stream).await.is_empty());
    let took = start.elapsed();
    assert!(
        took > Duration::from_millis(250) && took < 5 * SECOND,
        "{took:?}"
    );
    assert_eq!(listening.log.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn a_slow_reader_is_closed_at_the_deadline() {
    let _much = MEMORY.lock().await;
    let listening = listening(ListenerOptions {
        write_timeout: SECOND,
        ..options()
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(listening.address).await.unwrap();
    let request = DescribeClusterMirrorsRequest {
        mirror_names: vec!["big".into()],
        ..DescribeClusterMirrorsRequest::default()
    };
    for number in 0..3 {
        send(&mut stream, &request, 0, number).await;
    }
    let deadline = Instant::now() + 10 * SECOND;
    while listening.rejected().is_empty() {
        assert!(Instant::now() < deadline, "not closed");
        // Another peer is served meanwhile.
        listening.versions().await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(listening.rejected()["slow_reader"], 1);
    let lines = listening.log.lines();
    assert!(
        lines[0].contains("an answer was not read within 1s"),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn at_the_end_what_is_worked_on_is_still_answered() {
    let mut listening = listening(options()).await;
    let mut stream = listening.connect().await;
    send(&mut stream, &read_request("slow"), 0, 1).await;
    let deadline = Instant::now() + 5 * SECOND;
    while listening.answers.active.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "not worked on");
        tokio::task::yield_now().await;
    }
    listening.stop.cancel();
    assert_eq!(frame(&mut stream).await.0, 1);
    assert!(until_closed(&mut stream).await.is_empty());
    let ended = timeout(5 * SECOND, listening.tasks.join_next()).await;
    ended.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(listening.address).await.is_err());
    assert_eq!(listening.metrics.listener_connections.get(), 0);
}

#[tokio::test]
async fn requests_are_counted_by_call_and_error() {
    let listening = listening(options()).await;
    let mut stream = listening.connect().await;
    send(&mut stream, &read_request("x"), 0, 1).await;
    let delete = DeleteClusterMirrorRequest {
        mirror_name: "x".into(),
        ..DeleteClusterMirrorRequest::default()
    };
    send(&mut stream, &delete, 0, 2).await;
    frame(&mut stream).await;
    let (_, mut body) = frame(&mut stream).await;
    let answer = decode_response::<DeleteClusterMirrorRequest>(0, &mut body).unwrap();
    assert_eq!(answer.error_code, ErrorCode::UNKNOWN_CLUSTER_MIRROR);
    let counted = |labels: [&str; 2]| {
        let counter = listening
            .metrics
            .listener_requests
            .with_label_values(&labels);
        counter.get()
    };
    assert_eq!(counted(["ReadMirrorStates", "NONE"]), 1);
    assert_eq!(
        counted(["DeleteClusterMirror", "UNKNOWN_CLUSTER_MIRROR"]),
        1
    );
    assert_eq!(listening.metrics.listener_connections.get(), 1);
}

/// Cases P07 and M06 from the side of an ordinary client: it must not take the listener for a broker, nor storm it.
#[tokio::test]
async fn an_ordinary_client_ends_with_a_clear_error_and_does_not_loop_wildly() {
    let listening = listening(options()).await;
    let servers = listening.address.to_string();
    let mut asking = JoinSet::new();
    let start = Instant::now();
    asking.spawn_blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("group.id", "g")
            .create()
            .unwrap();
        consumer
            .fetch_metadata(None, 4 * SECOND)
            .map(|metadata| metadata.brokers().len())
            .map_err(|error| error.to_string())
    });
    let outcome = asking.join_next().await.unwrap().unwrap();
    let error = outcome.expect_err("no metadata");
    assert!(
        !error.is_empty() && start.elapsed() < 15 * SECOND,
        "{error}"
    );
    let asked = listening
        .metrics
        .listener_requests
        .with_label_values(&["ApiVersions", "NONE"])
        .get();
    // Connections that it makes again would be at 100 ms, 200 ms and so on.
    assert!((1..10).contains(&asked), "asked {asked} times: {error}");
    assert_eq!(listening.log.lines(), Vec::<String>::new());
}

/// The tables of the KIP, read by somebody else: a few lines of Python.
#[tokio::test]
async fn a_second_implementation_reads_and_writes_states() {
    let listening = listening(options()).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mirror_client.py");
    let asking = tokio::process::Command::new("python3")
        .arg(script)
        .args([
            listening.address.ip().to_string(),
            listening.address.port().to_string(),
        ])
        .kill_on_drop(true)
        .output();
    let output = timeout(20 * SECOND, asking)
        .await
        .unwrap()
        .expect("python3 (Debian package python3)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let got: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let wanted = serde_json::json!({
        "versions": {
            "error": 0,
            "apis": [
                [18, 0, 4], [95, 0, 0], [96, 0, 0], [98, 0, 0], [99, 0, 0], [100, 0, 0], [101, 0, 0], [102, 0, 0],
                [103, 0, 0], [104, 0, 0], [106, 0, 0]
            ]
        },
        "read": {
            "throttle": 0, "error": 0, "message": null,
            "topics": [{
                "name": "orders",
                "partitions": [
                    {"partition": 0, "epoch": 4, "state": 2, "error": 0, "previous": 16, "attempt": 0, "state_epoch": 17},
                    {"partition": 1, "epoch": 4, "state": 2, "error": 0, "previous": 7, "attempt": 3, "state_epoch": 17}
                ]
            }]
        },
        "write": {
            "throttle": 0, "error": 0, "message": null,
            "topics": [{
                "name": "orders",
                "partitions": [
                    {"partition": 0, "error": 0, "state_epoch": 18},
                    {"partition": 1, "error": 124, "state_epoch": 18}
                ]
            }]
        }
    });
    assert_eq!(got, wanted);
    let written = listening.answers.written.lock().unwrap().clone();
    let partition = |index, state, last_mirror_epoch| WriteMirrorStatesPartition {
        partition_index: index,
        state,
        last_mirror_epoch,
        ..WriteMirrorStatesPartition::default()
    };
    let wanted = WriteMirrorStatesRequest {
        mirror_name: "east".into(),
        topics: vec![WriteMirrorStatesTopic {
            name: "orders".into(),
            partitions: vec![
                partition(0, 2, 5),
                WriteMirrorStatesPartition {
                    state_epoch: 3,
                    error_message: Some("why".into()),
                    ..partition(1, 7, -1)
                },
            ],
        }],
        stopped_topics: vec!["gone".into()],
        incarnation: "".into(),
    };
    assert_eq!(written, [wanted]);
}
