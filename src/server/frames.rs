//! Frames out of a stream of bytes. Must not know what is in a frame, and never reserves what a length field asks for.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::rejection::Rejection;
use crate::wire::frame::{LENGTH_BYTES, checked_length};

/// Bytes reserved at least before reading: small requests, several of them in one read.
const LEAST_RESERVED_BYTES: usize = 4 * 1024;

/// Bytes reserved at most ahead of those that have come, whatever a length says.
const RESERVED_BYTES: usize = 16 * 1024;

/// Why there is no further frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadEnd {
    /// The stream ended or broke.
    #[error("the peer is gone")]
    Gone(#[source] Option<io::Error>),
    /// What came is no frame.
    #[error(transparent)]
    Rejected(#[from] Rejection),
}

/// Reads the frames of one peer.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    read: R,
    buffer: BytesMut,
    max_frame_bytes: usize,
    begun: Option<Instant>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(read: R, max_frame_bytes: usize) -> Self {
        Self {
            read,
            buffer: BytesMut::new(),
            max_frame_bytes,
            begun: None,
        }
    }

    /// Since when a frame is on its way that is not whole yet.
    pub(super) const fn begun(&self) -> Option<Instant> {
        self.begun
    }

    /// Bytes of it that have come.
    pub(super) fn got(&self) -> usize {
        self.buffer.len()
    }

    /// Lets the clock of a begun frame start anew: it was us who did not read.
    pub(super) fn restart_clock(&mut self) {
        self.begun = self.begun.map(|_| Instant::now());
    }

    /// The next frame without its length.
    ///
    /// # Cancel safety
    /// Nothing is lost if this is dropped: what has come stays in the buffer.
    pub(super) async fn next(&mut self) -> Result<Bytes, ReadEnd> {
        loop {
            let missing = match self.whole()? {
                Ok(frame) => return Ok(frame),
                Err(missing) => missing,
            };
            self.buffer
                .reserve(missing.clamp(LEAST_RESERVED_BYTES, RESERVED_BYTES));
            match self.read.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(ReadEnd::Gone(None)),
                Ok(_) => {}
                Err(error) => return Err(ReadEnd::Gone(Some(error))),
            }
            self.begun = self.begun.or_else(|| Some(Instant::now()));
        }
    }

    /// A frame that is whole in the buffer, or how many bytes it lacks at least.
    fn whole(&mut self) -> Result<Result<Bytes, usize>, Rejection> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(Err(LENGTH_BYTES.saturating_sub(self.buffer.len())));
        };
        let length = checked_length(*prefix, self.max_frame_bytes)
            .map_err(|error| Rejection::of_length(*prefix, error))?;
        let wanted = length.saturating_add(LENGTH_BYTES);
        if let Some(missing) = wanted
            .checked_sub(self.buffer.len())
            .filter(|left| *left > 0)
        {
            return Ok(Err(missing));
        }
        self.buffer.advance(LENGTH_BYTES);
        let frame = self.buffer.split_to(length).freeze();
        self.begun = (!self.buffer.is_empty()).then(Instant::now);
        Ok(Ok(frame))
    }

    /// What is left of the stream, for being read over.
    pub(super) fn into_inner(self) -> R {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    /// The frames in `bytes` when they come in pieces of `step`, and how it ends.
    async fn read(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, String) {
        let mut reader = FrameReader::new(pieces(bytes, step), 10);
        let mut frames = Vec::new();
        loop {
            match reader.next().await {
                Ok(frame) => frames.push(frame.to_vec()),
                Err(end) => return (frames, end.to_string()),
            }
        }
    }

    fn pieces(bytes: &[u8], step: usize) -> PiecedStream {
        let pieces = bytes.chunks(step).map(Bytes::copy_from_slice);
        PiecedStream(pieces.collect())
    }

    struct PiecedStream(VecDeque<Bytes>);

    impl AsyncRead for PiecedStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.0.pop_front() {
                buffer.put_slice(&piece.split_to(piece.len().min(buffer.remaining())));
                if !piece.is_empty() {
                    self.0.push_front(piece);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn frames_are_the_same_in_pieces_of_any_size() {
        let bytes = b"\0\0\0\x03abc\0\0\0\0\0\0\0\x0a0123456789\0\0\0\x02x";
        for step in 1..=bytes.len() {
            let (frames, end) = read(bytes, step).await;
            assert_eq!(
                frames,
                [&b"abc"[..], b"", b"0123456789"],
                "pieces of {step}"
            );
            assert_eq!(end, "the peer is gone");
        }
    }

    #[tokio::test]
    async fn a_length_above_the_limit_ends_the_reading_at_once() {
        for (bytes, end) in [
            (
                &b"\0\0\0\x01a\0\0\0\x0b"[..],
                "the peer announced a frame of 11 bytes, at most 10 are taken",
            ),
            (
                b"\0\0\0\x01a\xff\xff\xff\xfe",
                "a frame length of -2 is no length",
            ),
        ] {
            assert_eq!(read(bytes, 3).await, (vec![b"a".to_vec()], end.to_owned()));
        }
    }

    #[tokio::test]
    async fn a_begun_frame_reserves_little() {
        let mut reader = FrameReader::new(&b"\0\x0f\xff\xff"[..], 1 << 20);
        assert!(reader.next().await.is_err());
        assert!(reader.buffer.capacity() < 4 * RESERVED_BYTES);
        assert!(reader.begun().is_some());
    }
}
