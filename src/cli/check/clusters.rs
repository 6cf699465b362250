//! Whether one cluster can be reached: every bootstrap server, every broker, and the APIs they speak. Must not look at
//! topics.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio_util::task::TaskTracker;

use super::report::{CheckReport, some};
use crate::config::{self, HostPort};
use crate::domain::types::BrokerId;
use crate::kafka::cluster::{Cluster, ClusterOptions, Lane, Metadata, Side, Topics};
use crate::kafka::connect::{Address, Connect, ConnectError, TcpConnector};
use crate::kafka::connection::{Connection, ConnectionOptions, UnsupportedVersion};
use crate::kafka::contact::chain;
use crate::wire::api::configs::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};
use crate::wire::api::fetch::FetchRequest;
use crate::wire::api::groups::{
    FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest,
};
use crate::wire::api::list_offsets::ListOffsetsRequest;
use crate::wire::api::metadata::MetadataRequest;
use crate::wire::api::produce::ProduceRequest;
use crate::wire::api::producers::DescribeProducersRequest;
use crate::wire::api::topics::{CreatePartitionsRequest, CreateTopicsRequest};
use crate::wire::api::txn_markers::WriteTxnMarkersRequest;
use crate::wire::schema::Request;

/// An API that a cluster has to speak.
pub(super) struct Need {
    api: &'static str,
    version: fn(&Connection) -> Result<i16, UnsupportedVersion>,
    /// What comes of its absence; nothing works without those that have no such words.
    without: Option<&'static str>,
}

const fn need<R: Request>() -> Need {
    Need {
        api: R::NAME,
        version: Connection::version_of::<R>,
        without: None,
    }
}

const fn wish<R: Request>(without: &'static str) -> Need {
    Need {
        without: Some(without),
        ..need::<R>()
    }
}

pub(super) const fn source_needs() -> [Need; 4] {
    [
        need::<MetadataRequest>(),
        need::<FetchRequest>(),
        need::<ListOffsetsRequest>(),
        need::<DescribeConfigsRequest>(),
    ]
}

pub(super) const fn destination_needs() -> [Need; 15] {
    [
        need::<MetadataRequest>(),
        need::<ProduceRequest>(),
        need::<FetchRequest>(),
        need::<ListOffsetsRequest>(),
        need::<DescribeProducersRequest>(),
        need::<CreateTopicsRequest>(),
        need::<CreatePartitionsRequest>(),
        need::<DescribeConfigsRequest>(),
        need::<IncrementalAlterConfigsRequest>(),
        need::<FindCoordinatorRequest>(),
        need::<JoinGroupRequest>(),
        need::<SyncGroupRequest>(),
        need::<HeartbeatRequest>(),
        wish::<LeaveGroupRequest>(
            "a process that leaves for good is replaced only at the end of its session",
        ),
        wish::<WriteTxnMarkersRequest>(
            "`stop` cannot fence off late appends: it waits for the end of a session instead, and says fenced=false",
        ),
    ]
}

/// A cluster that answers.
pub(super) struct Reached {
    pub(super) cluster: Cluster,
    pub(super) metadata: Arc<Metadata>,
    /// The brokers that could be reached.
    pub(super) brokers: Vec<(BrokerId, Connection)>,
    /// A bootstrap server, for commands that are shown.
    pub(super) server: String,
    /// For each answer.
    pub(super) timeout: Duration,
}

/// Tries everything that can be tried of one cluster; `None` if it does not answer at all.
pub(super) async fn reach(
    side: Side,
    label: &str,
    servers: &[HostPort],
    connection: &config::Connection,
    needs: &[Need],
    report: &mut CheckReport,
) -> Option<Reached> {
    let tried = join_all(servers.iter().map(|server| knock(server, connection))).await;
    let any = tried.iter().any(Result::is_ok);
    let check = format!("{side} bootstrap server");
    for (server, outcome) in servers.iter().zip(&tried) {
        match outcome {
            Ok(()) => report.ok(&check, label, server.to_string()),
            // One of several is enough, as long as it lives.
            Err(error) if any => {
                report.warn(&check, label, found_at(server, error), remedy(error));
            }
            Err(error) => report.fail(&check, label, found_at(server, error), remedy(error)),
        }
    }
    if !any {
        return None;
    }

    let cluster = Cluster::new(ClusterOptions {
        client_id: connection.client_id.clone(),
        connect_timeout: connection.connect_timeout,
        request_timeout: connection.connect_timeout,
        socket_buffer_bytes: Some(connection.socket_buffer_bytes),
        ..ClusterOptions::new(side, servers.iter().map(HostPort::to_string).collect())
    });
    let check = format!("{side} brokers");
    let servers_key = "correct bootstrap_servers: host:port each";
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => {
            report.fail(&check, label, error.to_string(), servers_key);
            return None;
        }
    };
    let metadata = match cluster.refresh(Topics::All).await {
        Ok(metadata) => metadata,
        Err(error) => {
            report.fail(
                &check,
                label,
                chain(&error).to_string(),
                "look at the broker's log",
            );
            cluster.close().await;
            return None;
        }
    };
    let brokers = every_broker(&cluster, &metadata, &check, label, report).await;
    versions(&brokers, needs, side, label, report);
    Some(Reached {
        cluster,
        metadata,
        brokers,
        server: servers.first().map(HostPort::to_string).unwrap_or_default(),
        timeout: connection.request_timeout,
    })
}

fn found_at(server: &HostPort, error: &ConnectError) -> String {
    let words = chain(error).to_string();
    if words.starts_with(&server.to_string()) {
        words
    } else {
        format!("{server}: {words}")
    }
}

/// Connects to one address and asks for versions, nothing more.
async fn knock(server: &HostPort, connection: &config::Connection) -> Result<(), ConnectError> {
    let address = Address {
        host: server.host.as_str().into(),
        port: server.port,
    };
    let after = connection.connect_timeout;
    let connector = TcpConnector::new(after, None);
    let stream = connector.connect(&address).await?;
    let tasks = TaskTracker::new();
    let options = ConnectionOptions {
        client_id: connection.client_id.as_str().into(),
        ..ConnectionOptions::default()
    };
    let peer = address.to_string();
    let established = Connection::establish(stream, &peer, options, &tasks, after).await;
    let outcome = established.map(|connection| connection.close());
    tasks.close();
    tasks.wait().await;
    outcome.map_err(|source| ConnectError::Setup { address, source })
}

fn remedy(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Resolve { .. } | ConnectError::NoAddress { .. } => {
            "correct the host name, or make it known to this machine's resolver"
        }
        ConnectError::Tcp { .. } => {
            "is a broker running there, is it the listener's port, does a firewall refuse it?"
        }
        ConnectError::TimedOut { .. } => {
            "is the host up, does a firewall drop packets, is connect_timeout long enough?"
        }
        ConnectError::Setup { .. } => {
            "the port must be a PLAINTEXT listener of a Kafka broker, not one with TLS or SASL, and not a controller's"
        }
        _ => "look at the broker's log",
    }
}

async fn every_broker(
    cluster: &Cluster,
    metadata: &Metadata,
    check: &str,
    label: &str,
    report: &mut CheckReport,
) -> Vec<(BrokerId, Connection)> {
    let attempts = metadata.brokers.iter().map(|(id, node)| async move {
        let outcome = cluster.broker(*id, Lane::Control).await;
        (*id, node.address.to_string(), outcome)
    });
    let mut reached = Vec::new();
    let mut addresses = Vec::new();
    for (id, address, outcome) in join_all(attempts).await {
        match outcome {
            Ok(connection) => {
                addresses.push(format!("{id} at {address}"));
                reached.push((id, connection));
            }
            Err(error) => report.fail(
                check,
                label,
                format!("broker {id} at {address}: {}", chain(&error)),
                format!(
                    "the address comes from advertised.listeners of broker {id} and must be reachable from here: {}",
                    remedy(&error)
                ),
            ),
        }
    }
    if reached.len() == metadata.brokers.len() && !reached.is_empty() {
        report.ok(
            check,
            label,
            format!("{0} of {0} reachable: {1}", reached.len(), some(&addresses)),
        );
    }
    reached
}

fn versions(
    brokers: &[(BrokerId, Connection)],
    needs: &[Need],
    side: Side,
    label: &str,
    report: &mut CheckReport,
) {
    let check = format!("{side} versions");
    let mut complete = true;
    for (id, connection) in brokers {
        for need in needs {
            let Err(error) = (need.version)(connection) else {
                continue;
            };
            let found = format!("broker {id}: {error}");
            complete = false;
            match need.without {
                None => report.fail(
                    &check,
                    label,
                    found,
                    "the broker's Kafka version is too old or too new for this truemirror",
                ),
                Some(without) => report.warn(
                    &check,
                    label,
                    format!("{found}: {without}"),
                    "nothing, or bring the broker's Kafka version up to date",
                ),
            }
        }
    }
    if complete && !brokers.is_empty() {
        let apis: Vec<&str> = needs.iter().map(|need| need.api).collect();
        report.ok(&check, label, format!("all {} APIs are spoken", apis.len()));
    }
}
