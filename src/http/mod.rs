//! The HTTP endpoint for people and Prometheus. Must not change anything, and must not wait for a Kafka cluster.

mod status_json;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Encoder, TextEncoder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::domain::status::Status;
use crate::metrics::Metrics;

/// Answers with the current state of the process. Called off the async threads; should take milliseconds at most.
pub type StatusSource = Arc<dyn Fn() -> Status + Send + Sync>;

/// Answers whether the process can do its work. Must be quick.
pub type ReadinessSource = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// Brings gauges that grow with time (lag, last contact) up to date before a scrape. Called off the async threads.
pub type MetricsRefresh = Arc<dyn Fn() + Send + Sync>;

/// Whether the process can do its own work. A source that is gone is no reason against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// What is still missing, in words; nothing: ready.
    pub missing: Vec<String>,
}

/// Where the endpoint gets what it shows.
#[derive(Clone)]
pub struct Sources {
    /// The metrics.
    pub metrics: Metrics,
    /// Called before each scrape.
    pub refresh: MetricsRefresh,
    /// For `/readyz`.
    pub readiness: ReadinessSource,
    /// For `/api/v1/status`.
    pub status: StatusSource,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("metrics", &self.metrics)
            .finish_non_exhaustive()
    }
}

/// Serves on `listener` until `stop`, then lets answers that are being written finish for a moment.
///
/// # Cancel safety
/// Dropping the future closes the listener and all connections at once.
pub async fn serve(listener: TcpListener, sources: Sources, stop: CancellationToken) {
    match listener.local_addr() {
        Ok(addr) => info!(addr = %addr, "http listening"),
        Err(error) => warn!(%error, "http listening on an unknown address"),
    }
    let endpoint = Arc::new(Endpoint {
        sources,
        one_at_a_time: Arc::new(Mutex::new(())),
    });
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &permits) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let endpoint = Arc::clone(&endpoint);
                let stop = stop.clone();
                connections.spawn(async move {
                    serve_connection(stream, endpoint, stop).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: connections that end give some back.
                warn!(%error, "http cannot accept a connection");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    let drained = timeout(DRAIN, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
    if drained.is_err() {
        debug!(
            connections = connections.len(),
            "http connections closed without waiting longer"
        );
    }
}

/// More would be somebody who does not close, and each costs memory.
const MAX_CONNECTIONS: usize = 64;
/// For a request's head, and for the silence between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Then a connection is asked to end, so that a reader who never reads cannot keep its place.
const MAX_AGE: Duration = Duration::from_secs(300);
const DRAIN: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const PATHS: &str = "\
truemirror: paths of this endpoint

/metrics        for Prometheus
/livez          200 while the process lives
/readyz         200 when it can work, else 503 with what is missing
/api/v1/status  mirrors and partitions, as JSON
";

struct Endpoint {
    sources: Sources,
    /// Gathering 100,000 series takes megabytes: one at a time, and later ones wait.
    one_at_a_time: Arc<Mutex<()>>,
}

/// Cancel safe: a permit that was not used goes back.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits)
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn serve_connection(stream: TcpStream, endpoint: Arc<Endpoint>, stop: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let endpoint = Arc::clone(&endpoint);
        async move {
            Ok::<_, Infallible>(
                endpoint
                    .answer(request.method(), request.uri().path())
                    .await,
            )
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Ok(ended),
        () = stop.cancelled() => Err(()),
        () = sleep(MAX_AGE) => Err(()),
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(()) => {
            connection.as_mut().graceful_shutdown();
            match timeout(DRAIN, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "http connection ended early");
    }
}

/// hyper's own minimum is 8 KiB.
const MAX_HEAD_BYTES: usize = 16 << 10;

impl Endpoint {
    async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let known = matches!(
            path,
            "/" | "/metrics" | "/livez" | "/readyz" | "/api/v1/status"
        );
        if known && !matches!(*method, Method::GET | Method::HEAD) {
            let mut response = text(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET: nothing can be changed here\n",
            );
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/" => text(StatusCode::OK, PATHS),
            "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => readyz(&(self.sources.readiness)()),
            "/metrics" => {
                let sources = self.sources.clone();
                self.off_thread(METRICS_TEXT, move || {
                    (sources.refresh)();
                    let mut bytes = Vec::new();
                    TextEncoder::new().encode(&sources.metrics.registry().gather(), &mut bytes)?;
                    Ok(bytes)
                })
                .await
            }
            "/api/v1/status" => {
                let sources = self.sources.clone();
                self.off_thread("application/json", move || {
                    status_json::encode(&(sources.status)()).map_err(Into::into)
                })
                .await
            }
            _ => text(StatusCode::NOT_FOUND, "not found; / lists the paths\n"),
        }
    }

    async fn off_thread<F>(&self, content_type: &'static str, work: F) -> Response<Full<Bytes>>
    where
        F: FnOnce() -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        // The guard goes along: a client that hangs up must not let a second gathering start beside the first.
        let guard = Arc::clone(&self.one_at_a_time).lock_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(guard);
            result
        });
        let reason = match done.await {
            Ok(Ok(bytes)) => return respond(StatusCode::OK, content_type, Bytes::from(bytes)),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        warn!(error = %reason, "http answer could not be built");
        text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer could not be built; the log says why\n",
        )
    }
}

fn readyz(readiness: &Readiness) -> Response<Full<Bytes>> {
    if readiness.missing.is_empty() {
        return text(StatusCode::OK, "ok\n");
    }
    let mut body = String::from("not ready\n");
    for missing in &readiness.missing {
        body.push_str("- ");
        body.push_str(missing);
        body.push('\n');
    }
    respond(
        StatusCode::SERVICE_UNAVAILABLE,
        PLAIN_TEXT,
        Bytes::from(body),
    )
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    respond(status, PLAIN_TEXT, Bytes::from_static(body.as_bytes()))
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use std::collections::BTreeMap;

    use crate::domain::state::{DesiredState, PartitionState};
    use crate::domain::status::{
        ClusterStatus, GroupStatus, MemberStatus, MirrorStatus, PartitionStatus, RecordedMirror,
    };
    use crate::domain::types::BrokerId;

    struct Running {
        addr: SocketAddr,
        stop: CancellationToken,
        task: JoinSet<()>,
    }

    async fn start(missing: &[&str]) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let metrics = Metrics::new("9.9.9").unwrap();
        let refreshed = metrics.clone();
        let readiness = Readiness {
            missing: missing.iter().map(|text| (*text).to_owned()).collect(),
        };
        let sources = Sources {
            metrics,
            refresh: Arc::new(move || refreshed.memory_held_bytes.set(77)),
            readiness: Arc::new(move || readiness.clone()),
            status: Arc::new(status),
        };
        let mut task = JoinSet::new();
        task.spawn(serve(listener, sources, stop.clone()));
        Running { addr, stop, task }
    }

    fn status() -> Status {
        let mut partition = PartitionStatus::new(Arc::from("t\"1"), 3, PartitionState::Failed);
        partition.reason = Some("diverged at 17".to_owned());
        partition.lag_records = Some(5);
        let mirror = MirrorStatus {
            name: "eu".to_owned(),
            source: ClusterStatus {
                last_contact_seconds: Some(1.5),
                ..ClusterStatus::default()
            },
            partitions: vec![partition],
            ..MirrorStatus::default()
        };
        let recorded = RecordedMirror {
            deleting: false,
            topics: BTreeMap::from([(Arc::from("t\"1"), DesiredState::Paused)]),
        };
        let other = MemberStatus {
            sidecar: "other".to_owned(),
            broker_id: Some(BrokerId(2)),
            address: "h:9494".to_owned(),
            version: "9.9.8".to_owned(),
            config_differs: true,
        };
        Status {
            version: "9.9.9".to_owned(),
            sidecar: "this".to_owned(),
            group: GroupStatus {
                id: "g".to_owned(),
                generation: 3,
                members: vec![other],
                may_decide: true,
            },
            recorded: BTreeMap::from([("eu".to_owned(), recorded)]),
            mirrors: vec![mirror, MirrorStatus::default()],
            ..Status::default()
        }
    }

    /// Status line, head, body.
    async fn request(addr: SocketAddr, line: &str) -> (String, String) {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let text = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(Duration::from_secs(10), stream.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn every_path_answers_and_nothing_can_be_changed() {
        let running = start(&[]).await;
        for (line, status, part) in [
            ("GET /", 200, "/api/v1/status"),
            ("GET /livez", 200, "ok\n"),
            ("GET /livez?x=1", 200, "ok\n"),
            ("GET /readyz", 200, "ok\n"),
            ("GET /metrics", 200, "truemirror_memory_held_bytes 77\n"),
            (
                "GET /metrics",
                200,
                "truemirror_build_info{version=\"9.9.9\"} 1\n",
            ),
            ("GET /api/v1/status", 200, "\"reason\": \"diverged at 17\""),
            ("HEAD /livez", 200, ""),
            ("POST /metrics", 405, "only GET"),
            ("DELETE /api/v1/status", 405, "only GET"),
            ("GET /metrics/", 404, "not found"),
            ("POST /x", 404, "not found"),
        ] {
            let (head, body) = request(running.addr, line).await;
            assert!(
                head.starts_with(&format!("HTTP/1.1 {status} ")),
                "{line}: {head}"
            );
            assert!(body.contains(part), "{line}: {body}");
        }
        let (head, _) = request(running.addr, "GET /metrics").await;
        assert!(
            head.contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
    }

    #[tokio::test]
    async fn the_status_is_json_with_every_field() {
        let running = start(&[]).await;
        let (_, body) = request(running.addr, "GET /api/v1/status").await;
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        let partition = &json["mirrors"][0]["partitions"][0];
        assert_eq!(partition["topic"], "t\"1");
        assert_eq!(partition["state"], "FAILED");
        assert_eq!(partition["lag_records"], 5);
        assert_eq!(
            partition["destination_log_end_offset"],
            serde_json::Value::Null
        );
        assert_eq!(json["mirrors"][0]["source"]["last_contact_seconds"], 1.5);
        assert_eq!(json["sidecar"], "this");
        let group = serde_json::json!({
            "id": "g", "generation": 3, "may_decide": true,
            "members": [{
                "sidecar": "other", "broker_id": 2, "address": "h:9494", "version": "9.9.8", "config_differs": true,
            }],
        });
        assert_eq!(json["group"], group);
        assert_eq!(partition["desired_state"], "PAUSED");
        assert_eq!(json["mirrors"][0]["desired"], "PAUSED");
        assert_eq!(json["mirrors"][0]["deleting"], false);
        for unknown in ["desired", "deleting"] {
            assert_eq!(json["mirrors"][1][unknown], serde_json::Value::Null);
        }
    }

    #[tokio::test]
    async fn not_ready_says_what_is_missing() {
        let running = start(&["destination: no broker answers"]).await;
        let (head, body) = request(running.addr, "GET /readyz").await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(body, "not ready\n- destination: no broker answers\n");
        let (head, _) = request(running.addr, "GET /livez").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait_for_a_place() {
        let running = start(&[]).await;
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(TcpStream::connect(running.addr).await.unwrap());
        }
        let late = request(running.addr, "GET /livez");
        let mut late = std::pin::pin!(late);
        assert!(
            timeout(Duration::from_millis(200), late.as_mut())
                .await
                .is_err(),
            "served beyond the limit"
        );
        held.clear();
        let (head, _) = late.await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }

    #[tokio::test]
    async fn stopping_ends_idle_connections_and_the_server() {
        let mut running = start(&[]).await;
        let mut idle = TcpStream::connect(running.addr).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 15];
        idle.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        running.stop.cancel();
        let ended = timeout(Duration::from_secs(1), running.task.join_next())
            .await
            .unwrap();
        ended.unwrap().unwrap();
        assert!(TcpStream::connect(running.addr).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_sends_a_head_is_closed() {
        let running = start(&[]).await;
        let mut silent = TcpStream::connect(running.addr).await.unwrap();
        silent.write_all(b"GET /li").await.unwrap();
        let mut rest = Vec::new();
        let read = timeout(Duration::from_secs(3600), silent.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "still open");
    }
}
