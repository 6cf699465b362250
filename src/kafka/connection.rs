//! One connection to one broker: requests go out in the order of the calls, answers come back in that order, every
//! request has a deadline. A connection that broke once is poisoned with the reason and never used again: what was on
//! it may or may not have been done. Must not reconnect, retry or know what is asked.
//!
//! One task per connection does the reading, the writing and the deadlines. Calls put a whole frame into a bounded queue
//! and wait for their answer; a call that is given up leaves its frame whole, and its answer is read and thrown away.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use crate::wire::api::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use crate::wire::api::produce::ProduceRequest;
use crate::wire::bounded::{DecodeError, EncodeError, Reader};
use crate::wire::error_code::ErrorCode;
use crate::wire::frame::{
    FrameLengthError, LENGTH_BYTES, RequestFrame, SegmentedFrame, checked_length, decode_response,
    response_correlation_id,
};
use crate::wire::schema::{Message, Request};

/// Longest pause that a broker's throttle time can impose at once; Kafka's own quota windows are seconds long
/// (`quota.window.num` x `quota.window.size.seconds`, 11 s by default), so more is a fault.
const MAX_THROTTLE: Duration = Duration::from_secs(60);

/// Frames are joined into one write up to this many bytes.
const JOINED_WRITE_BYTES: usize = 256 * 1024;

/// Free space that a read starts with.
const READ_BYTES: usize = 16 * 1024;

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

/// Why a connection is no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// We closed it, or nobody holds it any more.
    #[error("closed here")]
    Closed,
    /// The broker closed it.
    #[error("closed by the broker")]
    ClosedByPeer,
    /// The network broke it.
    #[error("network error")]
    Io(#[source] io::Error),
    /// A request was not answered in time.
    #[error("{api} was not answered within {after:?}")]
    TimedOut {
        /// The request.
        api: &'static str,
        /// Its time limit.
        after: Duration,
    },
    /// A frame of a length that cannot be right.
    #[error("broken framing")]
    Length(#[source] FrameLengthError),
    /// An answer that belongs to no request, or not to the next one.
    #[error("answer {answered} came where {expected:?} was expected")]
    Unexpected {
        /// The correlation id that came.
        answered: i32,
        /// The one that should have come; `None` if nothing was asked.
        expected: Option<i32>,
    },
    /// A frame too short for a header.
    #[error("broken response header")]
    Header(#[source] DecodeError),
    /// The task of the connection was stopped.
    #[error("the process is shutting down")]
    Stopped,
}

/// Broker and client have no version of an API in common.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{api}: truemirror speaks versions {min} to {max}, the broker {}",
    .broker.map_or_else(|| "does not know this API".to_owned(), |(min, max)| format!("{min} to {max}"))
)]
pub struct UnsupportedVersion {
    /// The API.
    pub api: &'static str,
    /// Our lowest version.
    pub min: i16,
    /// Our highest version.
    pub max: i16,
    /// The broker's range; `None` if it does not list the API.
    pub broker: Option<(i16, i16)>,
}

/// A request without an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The connection was gone before the request was queued: nothing was sent.
    #[error("{api} was not sent: the connection is gone")]
    NotSent {
        /// The request.
        api: &'static str,
        /// What became of the connection.
        #[source]
        reason: Arc<LostReason>,
    },
    /// The connection went while the request was under way.
    #[error("the connection was lost before {api} was answered")]
    Lost {
        /// The request.
        api: &'static str,
        /// What became of the connection.
        #[source]
        reason: Arc<LostReason>,
    },
    /// No answer in time.
    #[error("{api} was not answered within {after:?}")]
    TimedOut {
        /// The request.
        api: &'static str,
        /// Its time limit.
        after: Duration,
    },
    /// No common version: nothing was sent.
    #[error(transparent)]
    UnsupportedVersion(#[from] UnsupportedVersion),
    /// An answer came and does not read as one.
    #[error("the answer to {api} version {version} cannot be read")]
    Decode {
        /// The request.
        api: &'static str,
        /// The version that was spoken.
        version: i16,
        /// What is wrong with the bytes.
        #[source]
        source: DecodeError,
    },
    /// The request does not fit the protocol: nothing was sent.
    #[error("{api} cannot be written")]
    Encode {
        /// The request.
        api: &'static str,
        /// What does not fit.
        #[source]
        source: EncodeError,
    },
    /// A Produce with acks = 0 has no answer, so that its outcome could never be known: nothing was sent.
    #[error("Produce with acks = 0 is never answered and not sent")]
    NoAnswerAsked,
    /// Too many requests wait for answers: nothing was sent.
    #[error("{api} was not sent: {in_flight} requests are under way on this connection")]
    QueueFull {
        /// The request.
        api: &'static str,
        /// How many wait.
        in_flight: usize,
    },
}

impl RequestError {
    /// True if the broker may have done what was asked. False only if the request certainly was not sent.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::TimedOut { .. } | Self::Decode { .. } => true,
            Self::NotSent { .. }
            | Self::UnsupportedVersion(_)
            | Self::Encode { .. }
            | Self::NoAnswerAsked
            | Self::QueueFull { .. } => false,
        }
    }

    /// True if the connection cannot be used any more.
    pub fn connection_lost(&self) -> bool {
        matches!(
            self,
            Self::NotSent { .. } | Self::Lost { .. } | Self::TimedOut { .. }
        )
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

/// How an answer (or its absence) reaches the caller, after the pause that it asks for is in force.
type Complete = Box<dyn FnOnce(&Shared, Result<Bytes, RequestError>) + Send>;

struct Waiter {
    correlation_id: i32,
    api: &'static str,
    after: Duration,
    deadline: Instant,
    expected_bytes: usize,
    complete: Complete,
}

enum Life {
    Open,
    Poisoned(Arc<LostReason>),
}

struct State {
    life: Life,
    waiters: VecDeque<Waiter>,
    next_correlation_id: i32,
    throttled_until: Option<Instant>,
    throttling: Throttling,
}

/// What the handles and the task of a connection share.
struct Shared {
    state: Mutex<State>,
    /// The earliest deadline may have changed.
    deadlines_changed: Notify,
    /// Somebody asks for the end of the connection.
    close: Notify,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection for good and wakes everybody who waits on it.
    fn poison(&self, reason: LostReason) {
        let timed_out = matches!(reason, LostReason::TimedOut { .. });
        let reason = Arc::new(reason);
        let waiters = {
            let mut state = self.state();
            if let Life::Poisoned(_) = state.life {
                return;
            }
            state.life = Life::Poisoned(Arc::clone(&reason));
            std::mem::take(&mut state.waiters)
        };
        let now = Instant::now();
        for waiter in waiters {
            let api = waiter.api;
            let error = if timed_out && waiter.deadline <= now {
                RequestError::TimedOut {
                    api,
                    after: waiter.after,
                }
            } else {
                RequestError::Lost {
                    api,
                    reason: Arc::clone(&reason),
                }
            };
            (waiter.complete)(self, Err(error));
        }
    }

    /// The first request whose time is over, or when the next one's will be.
    fn next_deadline(&self) -> Result<Option<Instant>, LostReason> {
        let now = Instant::now();
        let state = self.state();
        let next = state.waiters.iter().min_by_key(|waiter| waiter.deadline);
        match next {
            Some(waiter) if waiter.deadline <= now => Err(LostReason::TimedOut {
                api: waiter.api,
                after: waiter.after,
            }),
            next => Ok(next.map(|waiter| waiter.deadline)),
        }
    }

    /// A broker asks for a pause: later sends wait for it, and no waiting request loses time by it, because a broker
    /// does not read from a connection that it throttles (KIP-219).
    fn throttle(&self, throttle_time_ms: i32) {
        let Ok(millis @ 1..) = u64::try_from(throttle_time_ms) else {
            return;
        };
        let pause = Duration::from_millis(millis).min(MAX_THROTTLE);
        let now = Instant::now();
        let mut state = self.state();
        let before = state.throttled_until.map_or(now, |until| until.max(now));
        let until = before.max(now + pause);
        for waiter in &mut state.waiters {
            waiter.deadline += until - before;
        }
        state.throttled_until = Some(until);
        state.throttling.count += 1;
        state.throttling.total += pause;
    }

    /// Waits until no pause is asked for any more.
    async fn unthrottled(&self) {
        loop {
            let until = self.state().throttled_until;
            match until {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }
}

/// Poisons when the task ends in whatever way, so that nobody waits for a task that was dropped.
struct PoisonAtEnd(Arc<Shared>);

impl Drop for PoisonAtEnd {
    fn drop(&mut self) {
        self.0.poison(LostReason::Stopped);
    }
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

/// The life of a connection.
async fn run<S>(
    stream: S,
    queue: mpsc::Receiver<SegmentedFrame>,
    shared: Arc<Shared>,
    peer: Arc<str>,
    max_frame_bytes: usize,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let poison = PoisonAtEnd(Arc::clone(&shared));
    // Both halves are used by this one task only.
    let (read, write) = tokio::io::split(stream);
    let reason = tokio::select! {
        reason = read_answers(read, &shared, max_frame_bytes) => reason,
        reason = write_frames(write, queue, &shared) => reason,
        reason = watch_deadlines(&shared) => reason,
        () = shared.close.notified() => LostReason::Closed,
    };
    let in_flight = shared.state().waiters.len();
    match &reason {
        // Nobody misses it: closed here, or idle for too long for the broker (`connections.max.idle.ms`).
        LostReason::Closed => debug!(%peer, "connection closed"),
        LostReason::ClosedByPeer if in_flight == 0 => {
            debug!(%peer, "idle connection closed by the broker");
        }
        reason => info!(%peer, in_flight, %reason, "connection lost"),
    }
    shared.poison(reason);
    drop(poison);
}

async fn write_frames(
    mut write: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<SegmentedFrame>,
    shared: &Shared,
) -> LostReason {
    while let Some(mut frames) = queue.recv().await {
        shared.unthrottled().await;
        while frames.len() < JOINED_WRITE_BYTES {
            let Ok(next) = queue.try_recv() else { break };
            frames.append(next);
        }
        let written = match write.write_all_buf(&mut frames).await {
            Ok(()) => write.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            return LostReason::Io(error);
        }
    }
    LostReason::Closed
}

async fn watch_deadlines(shared: &Shared) -> LostReason {
    loop {
        match shared.next_deadline() {
            Err(timed_out) => return timed_out,
            Ok(None) => shared.deadlines_changed.notified().await,
            Ok(Some(deadline)) => tokio::select! {
                () = sleep_until(deadline) => {}
                () = shared.deadlines_changed.notified() => {}
            },
        }
    }
}

async fn read_answers(
    mut read: impl AsyncRead + Unpin,
    shared: &Shared,
    max_frame_bytes: usize,
) -> LostReason {
    let mut buffer = BytesMut::new();
    loop {
        let body = match read_frame(&mut read, &mut buffer, shared, max_frame_bytes).await {
            Ok(body) => body,
            Err(reason) => return reason,
        };
        let mut r = Reader::new(body);
        let answered = match response_correlation_id(&mut r) {
            Ok(id) => id,
            Err(error) => return LostReason::Header(error),
        };
        let waiter = {
            let mut state = shared.state();
            let expected = state.waiters.front().map(|waiter| waiter.correlation_id);
            if expected == Some(answered) {
                state.waiters.pop_front()
            } else {
                return LostReason::Unexpected { answered, expected };
            }
        };
        if let Some(waiter) = waiter {
            (waiter.complete)(shared, Ok(r.rest()));
        }
    }
}

/// The next frame as one piece, without its length. Memory grows with the bytes that came, not with the length that was
/// announced: at most what the request expects is reserved ahead.
async fn read_frame(
    read: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    shared: &Shared,
    max_frame_bytes: usize,
) -> Result<Bytes, LostReason> {
    fill(read, buffer, LENGTH_BYTES, READ_BYTES).await?;
    let mut prefix = [0; LENGTH_BYTES];
    prefix.copy_from_slice(&buffer.split_to(LENGTH_BYTES));
    let length = checked_length(prefix, max_frame_bytes).map_err(LostReason::Length)?;
    let expected = {
        let state = shared.state();
        state
            .waiters
            .front()
            .map_or(0, |waiter| waiter.expected_bytes)
    };
    fill(read, buffer, length, expected.max(READ_BYTES)).await?;
    Ok(buffer.split_to(length).freeze())
}

/// Reads until `buffer` has `wanted` bytes; reserves at most `ahead` bytes beyond twice what is there.
async fn fill(
    read: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    wanted: usize,
    ahead: usize,
) -> Result<(), LostReason> {
    while buffer.len() < wanted {
        let missing = wanted - buffer.len();
        if buffer.capacity() == buffer.len() || buffer.capacity() < wanted.min(ahead) {
            buffer.reserve(missing.min(ahead.max(buffer.len())).max(READ_BYTES));
        }
        match read.read_buf(buffer).await {
            Ok(0) => return Err(LostReason::ClosedByPeer),
            Ok(_) => {}
            Err(error) => return Err(LostReason::Io(error)),
        }
    }
    Ok(())
}
