//! One connection to one broker: requests go out in the order of the calls, answers come back in that order, every
//! request has a deadline. A connection that broke once is poisoned with the reason and never used again: what was on
//! it may or may not have been done. Must not reconnect, retry or know what is asked.
//!
//! One task per connection does the reading, the writing and the deadlines. Calls put a whole frame into a bounded queue
//! and wait for their answer; a call that is given up leaves its frame whole, and its answer is read and thrown away.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::driver::{Life, Shared, State, Waiter, run};
pub use super::request_error::{LostReason, RequestError, UnsupportedVersion};
use crate::wire::api::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use crate::wire::api::produce::ProduceRequest;
use crate::wire::bounded::{DecodeError, Reader};
use crate::wire::error_code::ErrorCode;
use crate::wire::frame::{RequestFrame, SegmentedFrame, decode_response};
use crate::wire::schema::{Message, Request};

/// What a connection is built with.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// The name under which brokers log and account us.
    pub client_id: Arc<str>,
    /// The largest response frame that is taken, in bytes.
    pub max_frame_bytes: usize,
    /// Bytes reserved at most for a response before they have arrived, where the caller does not say what it expects.
    pub expected_bytes: usize,
    /// Requests that may wait for their answers at the same time; one more is refused with
    /// [`RequestError::QueueFull`].
    pub max_in_flight: usize,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            client_id: Arc::from("truemirror"),
            // Above the largest Fetch we ask for; a broker may exceed that by one batch.
            max_frame_bytes: 256 * 1024 * 1024,
            expected_bytes: 1024 * 1024,
            // A produce lane has some hundred partitions in few requests; the queue is for bursts of small calls.
            max_in_flight: 256,
        }
    }
}

/// What brokers asked for by their throttle times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Answers that asked for a pause.
    pub count: u64,
    /// The sum of the pauses.
    pub total: Duration,
}

/// The answer to a request that was queued. Giving it up does not take the request back.
#[must_use = "the answer says whether the request succeeded"]
pub struct Pending<R: Request> {
    answer: Answer<R>,
    /// The connection lives until its last answer is in.
    _connection: Arc<Handle>,
}

enum Answer<R: Request> {
    Waits(
        &'static str,
        oneshot::Receiver<Result<R::Response, RequestError>>,
    ),
    Failed(Option<RequestError>),
}

impl<R: Request> fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("api", &R::NAME)
            .finish_non_exhaustive()
    }
}

impl<R: Request> Future for Pending<R> {
    type Output = Result<R::Response, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let stopped = |api| RequestError::Lost {
            api,
            reason: Arc::new(LostReason::Stopped),
        };
        match &mut self.answer {
            Answer::Waits(api, receiver) => {
                let api = *api;
                Pin::new(receiver)
                    .poll(cx)
                    .map(|answer| answer.unwrap_or_else(|_| Err(stopped(api))))
            }
            Answer::Failed(error) => {
                Poll::Ready(Err(error.take().unwrap_or_else(|| stopped(R::NAME))))
            }
        }
    }
}

/// The versions that a broker speaks, by API key.
type Versions = BTreeMap<i16, (i16, i16)>;

struct Handle {
    frames: mpsc::Sender<SegmentedFrame>,
    shared: Arc<Shared>,
    options: ConnectionOptions,
    peer: Arc<str>,
}

/// A handle on a connection; cheap to clone. The connection closes when the last handle and the last [`Pending`] are
/// gone.
#[derive(Clone)]
pub struct Connection {
    handle: Arc<Handle>,
    versions: Arc<Versions>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.handle.peer)
            .field("usable", &self.is_usable())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Takes over `stream`, asks the broker for its versions and is ready for requests. `peer` is for logs. The task of
    /// the connection belongs to `tasks`.
    ///
    /// # Errors
    /// What the first request, ApiVersions, met within `timeout` (for each of at most two tries).
    pub async fn establish<S>(
        stream: S,
        peer: &str,
        options: ConnectionOptions,
        tasks: &TaskTracker,
        timeout: Duration,
    ) -> Result<Self, RequestError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // As many frames as requests may wait: a frame never waits without its waiter.
        let (frames, queue) = mpsc::channel(options.max_in_flight.max(1));
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                life: Life::Open,
                waiters: VecDeque::new(),
                next_correlation_id: 0,
                throttled_until: None,
                throttling: Throttling::default(),
            }),
            deadlines_changed: Notify::new(),
            close: Notify::new(),
        });
        let peer: Arc<str> = peer.into();
        tasks.spawn(run(
            stream,
            queue,
            Arc::clone(&shared),
            Arc::clone(&peer),
            options.max_frame_bytes,
        ));
        let handle = Arc::new(Handle {
            frames,
            shared,
            options,
            peer,
        });
        let versions = negotiate(&handle, timeout).await?;
        Ok(Self {
            handle,
            versions: Arc::new(versions),
        })
    }

    /// The version of `R` that is spoken on this connection: the highest that both sides know.
    ///
    /// # Errors
    /// If there is none.
    pub fn version_of<R: Request>(&self) -> Result<i16, UnsupportedVersion> {
        let (min, max) = (*R::VERSIONS.start(), *R::VERSIONS.end());
        let broker = self.versions.get(&R::API_KEY).copied();
        broker
            .map(|(broker_min, broker_max)| (broker_min.max(min), broker_max.min(max)))
            .filter(|(lowest, highest)| lowest <= highest)
            .map(|(_, highest)| highest)
            .ok_or(UnsupportedVersion {
                api: R::NAME,
                min,
                max,
                broker,
            })
    }

    /// Queues `request`; the order of calls is the order on the wire. Never waits: faults come out of the returned
    /// future. The time limit counts from now; a request that misses it poisons the connection.
    pub fn enqueue<R: Request>(&self, request: &R, timeout: Duration) -> Pending<R> {
        self.enqueue_expecting(request, timeout, self.handle.options.expected_bytes)
    }

    /// The same for a request whose answer may be large: up to `expected_bytes` (what a Fetch asked for) are reserved as
    /// soon as the answer begins, more only as it arrives.
    pub fn enqueue_expecting<R: Request>(
        &self,
        request: &R,
        timeout: Duration,
        expected_bytes: usize,
    ) -> Pending<R> {
        let answer = match self.version_of::<R>() {
            Ok(version) => self.handle.enqueue(
                request,
                version,
                timeout,
                expected_bytes,
                decode_response::<R>,
            ),
            Err(unsupported) => Answer::Failed(Some(unsupported.into())),
        };
        Pending {
            answer,
            _connection: Arc::clone(&self.handle),
        }
    }

    /// Queues a Produce. Its record slices go to the socket as they are, not copied.
    pub fn enqueue_produce(
        &self,
        frame: &ProduceRequest,
        timeout: Duration,
    ) -> Pending<ProduceRequest> {
        if frame.acks == 0 {
            return Pending {
                answer: Answer::Failed(Some(RequestError::NoAnswerAsked)),
                _connection: Arc::clone(&self.handle),
            };
        }
        self.enqueue(frame, timeout)
    }

    /// Queues `request` and waits for its answer.
    ///
    /// # Errors
    /// See [`RequestError`]; [`RequestError::outcome_unknown`] says whether it may have been done.
    pub async fn call<R: Request>(
        &self,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, RequestError> {
        self.enqueue(request, timeout).await
    }

    /// True until the connection is poisoned.
    pub fn is_usable(&self) -> bool {
        matches!(self.handle.shared.state().life, Life::Open)
    }

    /// Why the connection cannot be used any more, if so.
    pub fn lost_reason(&self) -> Option<Arc<LostReason>> {
        match &self.handle.shared.state().life {
            Life::Open => None,
            Life::Poisoned(reason) => Some(Arc::clone(reason)),
        }
    }

    /// Closes the connection for all who hold it; requests under way end with [`RequestError::Lost`].
    pub fn close(&self) {
        self.handle.shared.poison(LostReason::Closed);
        self.handle.shared.close.notify_one();
    }

    /// Requests that wait for their answers.
    pub fn in_flight(&self) -> usize {
        self.handle.shared.state().waiters.len()
    }

    /// Until when nothing is sent because the broker asked for a pause.
    pub fn throttled_until(&self) -> Option<Instant> {
        let until = self.handle.shared.state().throttled_until;
        until.filter(|until| *until > Instant::now())
    }

    /// The pauses that the broker has asked for on this connection so far.
    pub fn throttling(&self) -> Throttling {
        self.handle.shared.state().throttling
    }

    /// Who is at the other end, for logs.
    pub fn peer(&self) -> &str {
        &self.handle.peer
    }

    /// True if both are handles on one connection.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }
}

impl Handle {
    fn enqueue<R: Request>(
        &self,
        request: &R,
        version: i16,
        timeout: Duration,
        expected_bytes: usize,
        decode: fn(i16, &mut Reader) -> Result<R::Response, DecodeError>,
    ) -> Answer<R> {
        let api = R::NAME;
        let failed = |error| Answer::Failed(Some(error));
        let encoded = RequestFrame::encode(request, version, &self.options.client_id);
        let frame = match encoded {
            Ok(frame) => frame,
            Err(source) => return failed(RequestError::Encode { api, source }),
        };
        let (sender, receiver) = oneshot::channel();
        let complete = Box::new(
            move |shared: &Shared, answer: Result<Bytes, RequestError>| {
                let answer = answer.and_then(|body| {
                    decode(version, &mut Reader::new(body)).map_err(|source| RequestError::Decode {
                        api,
                        version,
                        source,
                    })
                });
                shared.throttle(answer.as_ref().map_or(0, Message::throttle_time_ms));
                // The caller may have given up: then the answer is nobody's.
                drop(sender.send(answer));
            },
        );

        let mut state = self.shared.state();
        if let Life::Poisoned(reason) = &state.life {
            let reason = Arc::clone(reason);
            return failed(RequestError::NotSent { api, reason });
        }
        let in_flight = state.waiters.len();
        let full = RequestError::QueueFull { api, in_flight };
        let Some(place) = (in_flight < self.options.max_in_flight)
            .then(|| self.frames.try_reserve().ok())
            .flatten()
        else {
            return failed(full);
        };
        let correlation_id = state.next_correlation_id;
        let frame = match frame.number(correlation_id) {
            Ok(frame) => frame,
            Err(source) => return failed(RequestError::Encode { api, source }),
        };
        state.next_correlation_id = correlation_id.checked_add(1).unwrap_or(0);
        let now = Instant::now();
        let starts = state.throttled_until.map_or(now, |until| until.max(now));
        let deadline = starts + timeout;
        let earliest = state
            .waiters
            .iter()
            .all(|waiter| deadline < waiter.deadline);
        state.waiters.push_back(Waiter {
            correlation_id,
            api,
            after: timeout,
            deadline,
            expected_bytes,
            complete,
        });
        place.send(frame);
        drop(state);
        if earliest {
            self.shared.deadlines_changed.notify_one();
        }
        Answer::Waits(api, receiver)
    }
}

/// Asks for the broker's versions. A broker that does not know our version of the question answers in version 0 with
/// UNSUPPORTED_VERSION (35), usually with its range (KIP-511): then it is asked again, in a version it knows.
async fn negotiate(handle: &Handle, timeout: Duration) -> Result<Versions, RequestError> {
    let request = ApiVersionsRequest {
        client_software_name: "truemirror".into(),
        client_software_version: env!("CARGO_PKG_VERSION").into(),
    };
    let (min, max) = (
        *ApiVersionsRequest::VERSIONS.start(),
        *ApiVersionsRequest::VERSIONS.end(),
    );
    let mut version = max;
    loop {
        let expected_bytes = handle.options.expected_bytes;
        let answer = handle.enqueue(&request, version, timeout, expected_bytes, read_versions);
        let answer = match answer {
            Answer::Waits(api, receiver) => receiver.await.unwrap_or_else(|_| {
                Err(RequestError::Lost {
                    api,
                    reason: Arc::new(LostReason::Stopped),
                })
            }),
            Answer::Failed(error) => Err(error.unwrap_or(RequestError::NoAnswerAsked)),
        }?;
        if answer.error_code.is_none() {
            let range = |api: &crate::wire::api::api_versions::ApiVersion| {
                (api.api_key, (api.min_version, api.max_version))
            };
            return Ok(answer.api_keys.iter().map(range).collect());
        }
        let named = answer
            .api_keys
            .iter()
            .find(|api| api.api_key == ApiVersionsRequest::API_KEY)
            .map_or(min, |api| api.max_version.clamp(min, max));
        if answer.error_code != ErrorCode::UNSUPPORTED_VERSION || named >= version {
            return Err(RequestError::UnsupportedVersion(UnsupportedVersion {
                api: ApiVersionsRequest::NAME,
                min,
                max,
                broker: None,
            }));
        }
        debug!(
            asked = version,
            named, "broker does not know our version of ApiVersions"
        );
        // Falls with every turn, so this ends.
        version = named;
    }
}

/// Reads an answer to ApiVersions: with error 35 it is in version 0 whatever was asked (and old brokers leave out even
/// the list).
fn read_versions(version: i16, r: &mut Reader) -> Result<ApiVersionsResponse, DecodeError> {
    let mut code = r.clone();
    if code.i16() != Ok(ErrorCode::UNSUPPORTED_VERSION.0) {
        return decode_response::<ApiVersionsRequest>(version, r);
    }
    Ok(
        decode_response::<ApiVersionsRequest>(0, r).unwrap_or_else(|_| ApiVersionsResponse {
            error_code: ErrorCode::UNSUPPORTED_VERSION,
            ..Default::default()
        }),
    )
}
