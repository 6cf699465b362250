//! One request to one broker, by the `kafka-protocol` crate: for admin calls that librdkafka lacks. Answers are bound by a
//! deadline; nothing is retried here.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::RequestHeader;
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends `request` over a connection of its own and returns the answer, or why there is none.
pub async fn call<R: Request>(
    broker: SocketAddr,
    version: i16,
    request: &R,
    deadline: Duration,
) -> Result<R::Response, String> {
    let exchange = async {
        let mut connection = TcpStream::connect(broker).await?;
        let mut frame = BytesMut::new();
        RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(1)
            .with_client_id(Some(StrBytes::from_static_str("harness")))
            .encode(&mut frame, R::header_version(version))
            .map_err(std::io::Error::other)?;
        request
            .encode(&mut frame, version)
            .map_err(std::io::Error::other)?;
        connection.write_i32(frame.len() as i32).await?;
        connection.write_all(&frame).await?;
        let length = connection.read_i32().await?;
        let mut answer = vec![0; length as usize];
        connection.read_exact(&mut answer).await?;
        let mut answer = Bytes::from(answer);
        ResponseHeader::decode(
            &mut answer,
            <R::Response as HeaderVersion>::header_version(version),
        )
        .map_err(std::io::Error::other)?;
        <R::Response as Decodable>::decode(&mut answer, version).map_err(std::io::Error::other)
    };
    match tokio::time::timeout(deadline, exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("{broker}, api {}: {error}", R::KEY)),
        Err(_) => Err(format!(
            "{broker}, api {}: no answer in {deadline:?}",
            R::KEY
        )),
    }
}
