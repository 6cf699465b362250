//! A broker that says what a test wants: real TCP on a free port of the loopback, real frames, answers from a closure.
//! Must not know what is tested.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use truemirror::domain::types::BrokerId;
use truemirror::wire::api::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use truemirror::wire::api::metadata::{
    MetadataRequest, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
    MetadataResponseTopic,
};
use truemirror::wire::bounded::Reader;
use truemirror::wire::frame::{RequestHeader, SegmentedFrame, encode_response};
use truemirror::wire::schema::Request;

/// One request as it came.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Its header.
    pub(crate) header: RequestHeader,
    /// The bytes behind the header's shared part.
    pub(crate) rest: Bytes,
}

impl Asked {
    /// True if it is an `R`.
    pub(crate) fn is<R: Request>(&self) -> bool {
        self.header.api_key == R::API_KEY
    }

    /// The request's body.
    pub(crate) fn body<R: Request>(&self) -> R {
        self.header
            .decode_body(&mut Reader::new(self.rest.clone()))
            .unwrap()
    }

    /// The frame that answers it with `response`.
    pub(crate) fn answer<R: Request>(&self, response: &R::Response) -> Reply {
        let frame = encode_response::<R>(response, self.header.version, self.header.correlation_id);
        Reply::Bytes(flat(frame.unwrap()))
    }

    /// The frame that answers it with these bytes behind the correlation id.
    pub(crate) fn answer_raw(&self, body: &[u8]) -> Reply {
        let mut frame = i32::try_from(body.len() + 4)
            .unwrap()
            .to_be_bytes()
            .to_vec();
        frame.extend_from_slice(&self.header.correlation_id.to_be_bytes());
        frame.extend_from_slice(body);
        Reply::Bytes(frame.into())
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// These bytes are sent.
    Bytes(Bytes),
    /// Nothing, and the connection stays.
    Silence,
    /// The connection is closed.
    Close,
}

/// One frame as one piece.
pub(crate) fn flat(mut frame: SegmentedFrame) -> Bytes {
    let length = frame.len();
    frame.copy_to_bytes(length)
}

/// The answer to ApiVersions of a broker that knows every version we speak.
pub(crate) fn all_versions() -> ApiVersionsResponse {
    let api_keys = (0..100).map(|api_key| ApiVersion {
        api_key,
        min_version: 0,
        max_version: 20,
    });
    ApiVersionsResponse {
        api_keys: api_keys.collect(),
        ..Default::default()
    }
}

/// Serves one stream: ApiVersions is answered with [`all_versions`] unless `reply` wants it.
pub(crate) async fn serve<S, F>(mut stream: S, mut reply: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: FnMut(&Asked) -> Option<Reply>,
{
    loop {
        let Ok(length) = stream.read_i32().await else {
            return;
        };
        let mut frame = vec![0; usize::try_from(length).unwrap()];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
        let mut r = Reader::new(frame.into());
        let header = RequestHeader::decode(&mut r).unwrap();
        let asked = Asked {
            header,
            rest: r.rest(),
        };
        let said = match reply(&asked) {
            Some(said) => said,
            None if asked.is::<ApiVersionsRequest>() => {
                asked.answer::<ApiVersionsRequest>(&all_versions())
            }
            None => Reply::Silence,
        };
        match said {
            Reply::Silence => {}
            Reply::Close => return,
            Reply::Bytes(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A closure that answers requests; `None` is the default answer.
pub(crate) type Script = Box<dyn FnMut(&Asked) -> Option<Reply> + Send>;

/// A broker on a port of its own. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct FakeBroker {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl FakeBroker {
    /// A broker that answers by `script`.
    pub(crate) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let script = Arc::new(Mutex::new(script));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let script = Arc::clone(&script);
                open.spawn(async move {
                    serve(stream, |asked| (script.lock().unwrap())(asked)).await;
                });
            }
        });
        Self {
            address,
            connections,
            _tasks: tasks,
        }
    }

    /// Connections that were accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// An answer to Metadata with these brokers and one topic whose partitions are led as listed, in epoch 1.
pub(crate) fn metadata(
    cluster_id: &str,
    brokers: &[(i32, SocketAddr)],
    topic: &str,
    leaders: &[i32],
) -> MetadataResponse {
    let brokers = brokers.iter().map(|(id, at)| MetadataResponseBroker {
        node_id: BrokerId(*id),
        host: at.ip().to_string().into(),
        port: at.port().into(),
        rack: None,
    });
    let partitions = leaders
        .iter()
        .enumerate()
        .map(|(index, leader)| MetadataResponsePartition {
            partition_index: i32::try_from(index).unwrap(),
            leader_id: BrokerId(*leader),
            leader_epoch: truemirror::domain::types::LeaderEpoch(1),
            ..Default::default()
        });
    MetadataResponse {
        brokers: brokers.collect(),
        cluster_id: Some(cluster_id.into()),
        topics: vec![MetadataResponseTopic {
            name: Some(topic.into()),
            partitions: partitions.collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The answer to Metadata that `asked` is, or `None` if it is something else.
pub(crate) fn answer_metadata(asked: &Asked, response: &MetadataResponse) -> Option<Reply> {
    asked
        .is::<MetadataRequest>()
        .then(|| asked.answer::<MetadataRequest>(response))
}
