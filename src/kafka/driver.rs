//! The task of one connection: reads, writes and watches deadlines over a shared list of those who wait. Must not know
//! messages: a waiter brings its own decoder.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::connection::Throttling;
use super::request_error::{LostReason, RequestError};
use crate::wire::bounded::Reader;
use crate::wire::frame::{LENGTH_BYTES, SegmentedFrame, checked_length, response_correlation_id};

/// Longest pause that a broker's throttle time can impose at once; Kafka's own quota windows are seconds long
/// (`quota.window.num` x `quota.window.size.seconds`, 11 s by default), so more is a fault.
const MAX_THROTTLE: Duration = Duration::from_secs(60);

/// Frames are joined into one write up to this many bytes.
const JOINED_WRITE_BYTES: usize = 256 * 1024;

/// Free space that a read starts with.
const READ_BYTES: usize = 16 * 1024;

/// How an answer (or its absence) reaches the caller, after the pause that it asks for is in force.
pub(super) type Complete = Box<dyn FnOnce(&Shared, Result<Bytes, RequestError>) + Send>;

pub(super) struct Waiter {
    pub(super) correlation_id: i32,
    pub(super) api: &'static str,
    pub(super) after: Duration,
    pub(super) deadline: Instant,
    pub(super) expected_bytes: usize,
    pub(super) complete: Complete,
}

pub(super) enum Life {
    Open,
    Poisoned(Arc<LostReason>),
}

pub(super) struct State {
    pub(super) life: Life,
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) next_correlation_id: i32,
    pub(super) throttled_until: Option<Instant>,
    pub(super) throttling: Throttling,
}

/// What the handles and the task of a connection share.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// The earliest deadline may have changed.
    pub(super) deadlines_changed: Notify,
    /// Somebody asks for the end of the connection.
    pub(super) close: Notify,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection for good and wakes everybody who waits on it.
    pub(super) fn poison(&self, reason: LostReason) {
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
    pub(super) fn throttle(&self, throttle_time_ms: i32) {
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
pub(super) struct PoisonAtEnd(Arc<Shared>);

impl Drop for PoisonAtEnd {
    fn drop(&mut self) {
        self.0.poison(LostReason::Stopped);
    }
}

/// The life of a connection.
pub(super) async fn run<S>(
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
