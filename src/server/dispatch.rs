//! From a request frame to the future of its answer frame: which calls are offered, in which versions, and how long each may
//! take. Must not know sockets or what a call does.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::time::timeout;
use tracing::{debug, error, info};

use super::rejection::Rejection;
use super::service::{Service, for_every_call};
use crate::metrics::Metrics;
use crate::wire::api::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use crate::wire::bounded::Reader;
use crate::wire::error_code::ErrorCode;
use crate::wire::frame::{RequestHeader, SegmentedFrame, encode_response};
use crate::wire::mirror_rpc::*;
use crate::wire::schema::{Message, Request};

/// The answer to one request; `None` if none can be sent, which ends the connection.
pub(super) type Answer = Option<SegmentedFrame>;

/// What every request of one peer is answered with.
#[derive(Clone, Debug)]
pub(super) struct Dispatch<S> {
    pub(super) service: S,
    pub(super) metrics: Metrics,
    pub(super) peer: SocketAddr,
    pub(super) answer_timeout: Duration,
}

macro_rules! calls {
    ($($method:ident $request:ident,)+) => {
        /// Everything that is offered, by rising keys. Nothing that ordinary clients ask a broker for is among it: they see at
        /// once that this is none.
        fn offered() -> Vec<ApiVersion> {
            let mut offered = vec![range_of::<ApiVersionsRequest>(), $( range_of::<$request>(), )+];
            offered.sort_by_key(|range| range.api_key);
            offered
        }

        impl<S: Service> Dispatch<S> {
            /// The answer to come to the request in `frame`. Work begins when it is polled.
            pub(super) fn answer(&self, frame: Bytes) -> Result<BoxFuture<'static, Answer>, Rejection> {
                let mut r = Reader::new(frame);
                let header = RequestHeader::decode(&mut r).map_err(Rejection::Header)?;
                match header.api_key {
                    ApiVersionsRequest::API_KEY => self.versions(&header, &mut r),
                    $(
                        $request::API_KEY => {
                            let request = body::<$request>(&header, &mut r)?;
                            let service = self.service.clone();
                            let work = async move { service.$method(request).await };
                            Ok(self.call::<$request>(header, work))
                        }
                    )+
                    api_key => Err(Rejection::UnknownApi {
                        api_key,
                        version: header.version,
                    }),
                }
            }
        }
    };
}

for_every_call!(calls);

fn range_of<R: Request>() -> ApiVersion {
    ApiVersion {
        api_key: R::API_KEY,
        min_version: *R::VERSIONS.start(),
        max_version: *R::VERSIONS.end(),
    }
}

fn body<R: Request>(header: &RequestHeader, r: &mut Reader) -> Result<R, Rejection> {
    let (api, api_key, version) = (R::NAME, R::API_KEY, header.version);
    if !R::VERSIONS.contains(&version) {
        return Err(Rejection::UnsupportedVersion {
            api,
            api_key,
            version,
        });
    }
    header.decode_body(r).map_err(|source| Rejection::Body {
        api,
        api_key,
        version,
        source,
    })
}

/// Calls that change what is mirrored: who made them is worth a line.
fn changes(api_key: i16) -> bool {
    [
        StartMirrorTopicsRequest::API_KEY,
        StopMirrorTopicsRequest::API_KEY,
        PauseMirrorTopicsRequest::API_KEY,
        ResumeMirrorTopicsRequest::API_KEY,
        DeleteClusterMirrorRequest::API_KEY,
        RecoverMirrorTopicsRequest::API_KEY,
    ]
    .contains(&api_key)
}

impl<S: Service> Dispatch<S> {
    /// A version that is not known here is answered all the same, in version 0, with UNSUPPORTED_VERSION and the range that is
    /// (KIP-511, `ApiVersionsRequest.getErrorResponse`); its body is not read.
    fn versions(
        &self,
        header: &RequestHeader,
        r: &mut Reader,
    ) -> Result<BoxFuture<'static, Answer>, Rejection> {
        let known = ApiVersionsRequest::VERSIONS.contains(&header.version);
        let (version, response) = if known {
            let request: ApiVersionsRequest = body(header, r)?;
            debug!(
                peer = %self.peer,
                client_id = header.client_id.as_deref(),
                software = &*request.client_software_name,
                software_version = &*request.client_software_version,
                "client asks what the listener offers"
            );
            let response = ApiVersionsResponse {
                api_keys: offered(),
                ..ApiVersionsResponse::default()
            };
            (header.version, response)
        } else {
            let response = ApiVersionsResponse {
                error_code: ErrorCode::UNSUPPORTED_VERSION,
                api_keys: vec![range_of::<ApiVersionsRequest>()],
                ..ApiVersionsResponse::default()
            };
            (0, response)
        };
        count::<ApiVersionsRequest>(&self.metrics, response.error_code);
        let frame =
            encode_response::<ApiVersionsRequest>(&response, version, header.correlation_id);
        Ok(ready(frame.ok()).boxed())
    }

    fn call<R: Request>(
        &self,
        header: RequestHeader,
        work: impl Future<Output = R::Response> + Send + 'static,
    ) -> BoxFuture<'static, Answer>
    where
        R::Response: MirrorAnswer,
    {
        let (limit, peer, metrics) = (self.answer_timeout, self.peer, self.metrics.clone());
        let refuse = |code, words: String| R::Response::refused(code, Some(words.into()));
        let answering = async move {
            let response = timeout(limit, work).await.unwrap_or_else(|_| {
                let words = format!(
                    "no answer within {}; it is not known whether it was done",
                    humantime::format_duration(limit)
                );
                refuse(ErrorCode::REQUEST_TIMED_OUT, words)
            });
            let code = response.error_code();
            count::<R>(&metrics, code);
            let client_id = header.client_id.as_deref();
            let error = name(code);
            if changes(R::API_KEY) {
                info!(peer = %peer, client_id, api = R::NAME, error, "operator call answered");
            } else {
                debug!(peer = %peer, client_id, api = R::NAME, error, "call answered");
            }
            let encode = |response: &R::Response| {
                encode_response::<R>(response, header.version, header.correlation_id)
            };
            encode(&response)
                .or_else(|fault| {
                    error!(peer = %peer, api = R::NAME, error = %fault, "answer cannot be written");
                    encode(&refuse(
                        ErrorCode::UNKNOWN_SERVER_ERROR,
                        format!("the answer cannot be written: {fault}"),
                    ))
                })
                .ok()
        };
        answering.boxed()
    }
}

/// The value of the label `error`.
fn name(code: ErrorCode) -> &'static str {
    code.mirror_name().unwrap_or("unknown")
}

fn count<R: Request>(metrics: &Metrics, code: ErrorCode) {
    metrics
        .listener_requests
        .with_label_values(&[R::NAME, name(code)])
        .inc();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_ours_and_api_versions() {
        let offered = offered();
        let keys: Vec<i16> = offered.iter().map(|range| range.api_key).collect();
        assert_eq!(keys, [18, 95, 96, 98, 99, 100, 101, 102, 103, 104, 106]);
        for range in offered {
            let wanted = if range.api_key == 18 { 4 } else { 0 };
            assert_eq!((range.min_version, range.max_version), (0, wanted));
        }
    }
}
