//! One connection of a peer: requests are worked on side by side, answers go out in the order of the requests, nothing waits
//! without a deadline. Must not know what is asked.
//!
//! One task does all of it. What a peer can make it hold is bounded: requests in flight by number and by bytes, and one
//! frame that is on its way. When the bound is reached nothing is read, so that the peer feels it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Buf;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::ListenerOptions;
use super::dispatch::{Answer, Dispatch};
use super::frames::{FrameReader, ReadEnd};
use super::rejection::{Complaints, Rejection};
use super::service::Service;
use crate::wire::frame::SegmentedFrame;

/// What a connection is served with.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) peer: SocketAddr,
    pub(super) dispatch: Dispatch<S>,
    pub(super) options: Arc<ListenerOptions>,
    pub(super) complaints: Arc<Complaints>,
    pub(super) stop: CancellationToken,
}

/// Why a connection takes no further request.
#[derive(Debug)]
enum End {
    Gone,
    Idle,
    Stopped,
    Unanswerable,
    Rejected(Rejection),
}

/// An answer that is worked on, and the bytes that its request counts for.
type Working = BoxFuture<'static, (Answer, usize)>;

impl<S: Service> Connection<S> {
    /// Serves `stream` until its peer goes, does what no peer should, is silent for too long, or `stop`.
    pub(super) async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send) {
        let (read, write) = split(stream);
        let mut exchange = Exchange {
            frames: FrameReader::new(read, self.options.request_max_bytes),
            write,
            working: FuturesOrdered::new(),
            out: VecDeque::new(),
            held_bytes: 0,
            requests: 0,
            quiet_since: Instant::now(),
            out_since: Instant::now(),
            was_taking: true,
        };
        let end = exchange.run(&self).await;
        debug!(peer = %self.peer, end = ?end, requests = exchange.requests, "listener connection ends");
        if let End::Rejected(rejection) = &end {
            self.complaints.reject(self.peer, rejection);
        }
        if !matches!(end, End::Gone | End::Rejected(Rejection::SlowReader { .. })) {
            exchange.close(&self.options).await;
        }
    }
}

struct Exchange<T> {
    frames: FrameReader<ReadHalf<T>>,
    write: WriteHalf<T>,
    working: FuturesOrdered<Working>,
    out: VecDeque<SegmentedFrame>,
    held_bytes: usize,
    requests: u64,
    /// Since when nothing is to be done.
    quiet_since: Instant,
    /// Since when the first frame of `out` is being sent.
    out_since: Instant,
    was_taking: bool,
}

/// What happened next.
enum Event {
    Stop,
    Wrote(std::io::Result<usize>),
    Answered((Answer, usize)),
    Frame(Result<bytes::Bytes, ReadEnd>),
    WriteDeadline,
    ReadDeadline,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Exchange<T> {
    async fn run<S: Service>(&mut self, connection: &Connection<S>) -> End {
        let options = &*connection.options;
        let mut end = None;
        loop {
            let in_flight = self.working.len().saturating_add(self.out.len());
            if in_flight == 0
                && let Some(end) = end.take()
            {
                return end;
            }
            let taking = end.is_none()
                && in_flight < options.max_in_flight
                && self.held_bytes < options.request_max_bytes;
            if taking && !self.was_taking {
                self.frames.restart_clock();
            }
            self.was_taking = taking;
            match self.event(connection, taking, end.is_none()).await {
                Event::Stop => end = Some(End::Stopped),
                Event::Wrote(Ok(sent)) if sent > 0 => self.sent(),
                Event::Wrote(_) => return End::Gone,
                Event::Answered((Some(frame), bytes)) => {
                    self.held_bytes = self.held_bytes.saturating_sub(bytes);
                    if self.out.is_empty() {
                        self.out_since = Instant::now();
                    }
                    self.out.push_back(frame);
                }
                // Answers go in order: without this one the later ones have no place.
                Event::Answered((None, _)) => return End::Unanswerable,
                Event::WriteDeadline => {
                    let after = options.write_timeout;
                    return End::Rejected(Rejection::SlowReader { after });
                }
                Event::ReadDeadline => end = Some(self.too_late(options)),
                Event::Frame(frame) => match self.take(connection, frame) {
                    Ok(()) => {}
                    // Nobody is there for the answers that are still worked on.
                    Err(End::Gone) => return End::Gone,
                    Err(reason) => end = Some(reason),
                },
            }
        }
    }

    async fn event<S: Service>(
        &mut self,
        connection: &Connection<S>,
        taking: bool,
        open: bool,
    ) -> Event {
        let options = &*connection.options;
        let sending = !self.out.is_empty();
        let read_deadline = self.read_deadline(options);
        tokio::select! {
            biased;
            () = connection.stop.cancelled(), if open => Event::Stop,
            wrote = write_front(&mut self.write, &mut self.out), if sending => Event::Wrote(wrote),
            Some(answer) = self.working.next() => Event::Answered(answer),
            frame = self.frames.next(), if taking => Event::Frame(frame),
            () = sleep_until(self.out_since + options.write_timeout), if sending => Event::WriteDeadline,
            () = sleep_until(read_deadline.unwrap_or(self.quiet_since)), if taking && read_deadline.is_some() => {
                Event::ReadDeadline
            }
        }
    }

    /// Until when something must come in; `None` while the peer waits for us.
    fn read_deadline(&self, options: &ListenerOptions) -> Option<Instant> {
        if let Some(begun) = self.frames.begun() {
            return Some(begun + options.frame_timeout);
        }
        if !self.working.is_empty() || !self.out.is_empty() {
            return None;
        }
        // Whoever connects has something to say, or takes a place from somebody who has.
        let silence = if self.requests == 0 {
            options.frame_timeout
        } else {
            options.idle_timeout
        };
        Some(self.quiet_since + silence)
    }

    fn too_late(&self, options: &ListenerOptions) -> End {
        if self.frames.begun().is_none() && self.requests > 0 {
            return End::Idle;
        }
        End::Rejected(Rejection::SlowSender {
            after: options.frame_timeout,
            got: self.frames.got(),
        })
    }

    fn take<S: Service>(
        &mut self,
        connection: &Connection<S>,
        frame: Result<bytes::Bytes, ReadEnd>,
    ) -> Result<(), End> {
        let frame = frame.map_err(|end| match end {
            ReadEnd::Gone(_) => End::Gone,
            ReadEnd::Rejected(rejection) => End::Rejected(rejection),
        })?;
        let bytes = frame.len();
        let answer = connection.dispatch.answer(frame).map_err(End::Rejected)?;
        self.requests = self.requests.saturating_add(1);
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        self.working
            .push_back(Box::pin(async move { (answer.await, bytes) }));
        Ok(())
    }

    /// Bytes of the first frame went out.
    fn sent(&mut self) {
        if self.out.front().is_some_and(SegmentedFrame::is_empty) {
            self.out.pop_front();
            self.out_since = Instant::now();
            self.quiet_since = self.out_since;
        }
    }

    /// Ends the connection so that the peer still gets what was sent: a socket that is closed with bytes unread is reset, and
    /// a reset takes the last answers with it.
    async fn close(self, options: &ListenerOptions) {
        const READ_OVER_BYTES: u64 = 64 * 1024;
        let Self {
            frames, mut write, ..
        } = self;
        let closing = async {
            if write.shutdown().await.is_ok() {
                let mut rest = frames.into_inner().take(READ_OVER_BYTES);
                // Whatever comes now is of no use to anybody.
                tokio::io::copy(&mut rest, &mut tokio::io::sink())
                    .await
                    .ok();
            }
        };
        timeout(options.linger, closing).await.ok();
    }
}

/// Cancel safe: what was written is taken off the frame.
async fn write_front<T: AsyncWrite>(
    write: &mut WriteHalf<T>,
    out: &mut VecDeque<SegmentedFrame>,
) -> std::io::Result<usize> {
    match out.front_mut().filter(|frame| frame.has_remaining()) {
        Some(frame) => write.write_buf(frame).await,
        None => Ok(0),
    }
}
