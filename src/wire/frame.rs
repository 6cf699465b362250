//! Frames: a 4-byte length, a header, a body. Must not read or write sockets.
//! After Kafka 4.4's `RequestHeader.json` (versions 1 and 2) and `ResponseHeader.json` (versions 0 and 1).

use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::bounded::{DecodeError, EncodeError, Reader, Writer};
use super::schema::{Message, Request};

/// The key of ApiVersions. Its response always has header version 0, so that a client can read the answer of a broker
/// that does not know the version asked for (KIP-511).
pub const API_VERSIONS: i16 = 18;

/// Bytes of the length in front of a frame.
pub const LENGTH_BYTES: usize = 4;

/// Where the correlation id stands in a request frame: behind length, API key and version.
const CORRELATION_AT: std::ops::Range<usize> = 8..12;

/// A frame that is ready to be sent: segments in order, the record bytes among them not copied.
#[derive(Clone, Debug, Default)]
pub struct SegmentedFrame {
    segments: std::collections::VecDeque<Bytes>,
    length: usize,
}

impl SegmentedFrame {
    /// Bytes that are left to send, the length prefix included.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if everything is sent.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Puts another frame behind this one, so that one write can carry both.
    pub fn append(&mut self, other: Self) {
        self.length = self.length.saturating_add(other.length);
        self.segments.extend(other.segments);
    }

    fn of(mut head: bytes::BytesMut, rest: Vec<Bytes>) -> Result<Self, EncodeError> {
        let length = rest
            .iter()
            .map(Bytes::len)
            .fold(head.len(), usize::saturating_add);
        let too_long = EncodeError {
            what: "frame",
            length,
        };
        let body = i32::try_from(length.saturating_sub(LENGTH_BYTES)).map_err(|_| too_long)?;
        if let Some(prefix) = head.get_mut(..LENGTH_BYTES) {
            prefix.copy_from_slice(&body.to_be_bytes());
        }
        let segments = std::iter::once(head.freeze()).chain(rest).collect();
        Ok(Self { segments, length })
    }
}

/// Sent with vectored writes: every segment is one slice.
impl Buf for SegmentedFrame {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.segments.front().map_or(&[], |segment| segment)
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slot, segment) in dst.iter_mut().zip(&self.segments) {
            *slot = IoSlice::new(segment);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        self.length = self.length.saturating_sub(count);
        let mut left = count;
        while let Some(front) = self.segments.front_mut() {
            if left < front.len() {
                front.advance(left);
                return;
            }
            left -= front.len();
            self.segments.pop_front();
        }
    }
}

/// A whole request frame but for its correlation id, which [`RequestFrame::number`] sets: frames are encoded by many
/// tasks, numbers are given in the order of sending.
#[derive(Debug)]
pub struct RequestFrame {
    head: bytes::BytesMut,
    rest: Vec<Bytes>,
}

impl RequestFrame {
    /// Encodes `request` in `version`. `client_id` is what the broker's logs and quotas know us by.
    pub fn encode<R: Request>(
        request: &R,
        version: i16,
        client_id: &str,
    ) -> Result<Self, EncodeError> {
        let mut w = Writer::new();
        w.put_i32(0);
        w.put_i16(R::API_KEY);
        w.put_i16(version);
        w.put_i32(0);
        // The client id keeps its classic length also in header version 2.
        w.put_nullable_string(false, Some(client_id));
        if R::flexible(version) {
            w.put_tagged(Vec::new());
        }
        request.encode_body(version, &mut w);
        let (head, rest) = w.finish()?;
        Ok(Self { head, rest })
    }

    /// Sets the correlation id and the length; the frame is then ready.
    pub fn number(mut self, correlation_id: i32) -> Result<SegmentedFrame, EncodeError> {
        if let Some(place) = self.head.get_mut(CORRELATION_AT) {
            place.copy_from_slice(&correlation_id.to_be_bytes());
        }
        SegmentedFrame::of(self.head, self.rest)
    }
}

/// The header of a request, as a listener or a fake broker reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Which API.
    pub api_key: i16,
    /// Which version of it.
    pub version: i16,
    /// What the answer must repeat.
    pub correlation_id: i32,
    /// Who asks.
    pub client_id: Option<Arc<str>>,
}

impl RequestHeader {
    /// Reads the part that all header versions share.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        r.at("RequestHeader");
        Ok(Self {
            api_key: r.i16()?,
            version: r.i16()?,
            correlation_id: r.i32()?,
            client_id: r.nullable_string(false)?,
        })
    }

    /// Reads the rest of the header and the body, once `R` is known to be the API.
    pub fn decode_body<R: Request>(&self, r: &mut Reader) -> Result<R, DecodeError> {
        if R::flexible(self.version) {
            r.at("RequestHeader (tagged fields)");
            r.skip_tagged()?;
        }
        R::decode_body(self.version, r)
    }
}

/// True if the response to `api_key` in `version` has header version 1, with a tag section.
fn response_header_is_flexible<R: Request>(version: i16) -> bool {
    R::API_KEY != API_VERSIONS && R::flexible(version)
}

/// The answer to a request `R` of `version`: frame for a listener or a fake broker.
pub fn encode_response<R: Request>(
    response: &R::Response,
    version: i16,
    correlation_id: i32,
) -> Result<SegmentedFrame, EncodeError> {
    let mut w = Writer::new();
    w.put_i32(0);
    w.put_i32(correlation_id);
    if response_header_is_flexible::<R>(version) {
        w.put_tagged(Vec::new());
    }
    response.encode_body(version, &mut w);
    let (head, rest) = w.finish()?;
    SegmentedFrame::of(head, rest)
}

/// The correlation id of a response frame (without its length).
pub fn response_correlation_id(r: &mut Reader) -> Result<i32, DecodeError> {
    r.at("ResponseHeader.correlation_id");
    r.i32()
}

/// Header rest and body of the answer to a request `R` of `version`, behind the correlation id.
pub fn decode_response<R: Request>(
    version: i16,
    r: &mut Reader,
) -> Result<R::Response, DecodeError> {
    if response_header_is_flexible::<R>(version) {
        r.at("ResponseHeader (tagged fields)");
        r.skip_tagged()?;
    }
    R::Response::decode_body(version, r)
}

/// A frame length that no peer of good will sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer announced a frame of {length} bytes, at most {max} are taken")]
pub struct FrameLengthError {
    /// What the length field says.
    pub length: i32,
    /// The limit.
    pub max: usize,
}

/// Checks a length field against the limit.
pub fn checked_length(prefix: [u8; LENGTH_BYTES], max: usize) -> Result<usize, FrameLengthError> {
    let length = i32::from_be_bytes(prefix);
    usize::try_from(length)
        .ok()
        .filter(|bytes| *bytes <= max)
        .ok_or(FrameLengthError { length, max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::metadata::MetadataRequest;
    use crate::wire::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
    use crate::wire::schema::RecordSlices;
    use kafka_protocol::messages as theirs;
    use kafka_protocol::protocol::Decodable;

    fn flat(mut frame: SegmentedFrame) -> Bytes {
        let length = frame.len();
        frame.copy_to_bytes(length)
    }

    #[test]
    fn a_request_header_reads_the_same_elsewhere() {
        let frame = RequestFrame::encode(&MetadataRequest::default(), 12, "me").unwrap();
        let bytes = flat(frame.number(77).unwrap());
        assert_eq!(
            bytes.len() - LENGTH_BYTES,
            checked_length(bytes[..4].try_into().unwrap(), 1000).unwrap()
        );
        let header = theirs::RequestHeader::decode(&mut bytes.slice(4..), 2).unwrap();
        assert_eq!(header.request_api_key, 3);
        assert_eq!(header.request_api_version, 12);
        assert_eq!(header.correlation_id, 77);
        assert_eq!(header.client_id.unwrap().to_string(), "me");
        let mut r = Reader::new(bytes.slice(4..));
        let header = RequestHeader::decode(&mut r).unwrap();
        let body: MetadataRequest = header.decode_body(&mut r).unwrap();
        assert_eq!(body, MetadataRequest::default());
    }

    #[test]
    fn record_bytes_travel_from_caller_to_frame_without_a_copy() {
        let header = Bytes::from(vec![1; 61]);
        let rest = Bytes::from(vec![2; 100_000]);
        let request = ProduceRequest {
            acks: 1,
            topic_data: vec![TopicProduceData {
                name: "t".into(),
                partition_data: vec![PartitionProduceData {
                    index: 3,
                    records: RecordSlices(vec![header, rest.clone()]),
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let frame = RequestFrame::encode(&request, 9, "me").unwrap();
        let frame = frame.number(1).unwrap();
        assert!(frame.segments.iter().any(|s| s.as_ptr() == rest.as_ptr()));
        let bytes = flat(frame);
        let mut r = Reader::new(bytes.slice(4..));
        let header = RequestHeader::decode(&mut r).unwrap();
        assert_eq!(header.decode_body::<ProduceRequest>(&mut r), Ok(request));
    }

    #[test]
    fn a_frame_is_advanced_over_its_segments_in_any_step() {
        let frame = SegmentedFrame::of(
            bytes::BytesMut::from(&b"\0\0\0\0ab"[..]),
            vec![Bytes::from_static(b"cde"), Bytes::from_static(b"f")],
        );
        let frame = frame.unwrap();
        let whole = flat(frame.clone());
        for step in 1..12 {
            let mut frame = frame.clone();
            let mut seen = Vec::new();
            while frame.has_remaining() {
                let step = step.min(frame.remaining());
                let mut slices = [IoSlice::new(&[]); 8];
                let filled = frame.chunks_vectored(&mut slices);
                let bytes: Vec<u8> = slices[..filled].iter().flat_map(|s| s.to_vec()).collect();
                assert_eq!(bytes.len(), frame.remaining());
                seen.extend_from_slice(&bytes[..step]);
                frame.advance(step);
            }
            assert_eq!(seen, whole);
        }
    }

    #[test]
    fn negative_and_oversized_lengths_are_refused() {
        for (length, good) in [
            (-1_i32, false),
            (i32::MIN, false),
            (0, true),
            (10, true),
            (11, false),
        ] {
            assert_eq!(
                checked_length(length.to_be_bytes(), 10).is_ok(),
                good,
                "{length}"
            );
        }
    }
}
