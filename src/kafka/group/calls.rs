//! The calls of a member to its coordinator, one function each, and what goes wrong with them. Must not decide what the
//! member does next.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::lease::boot_time;
use super::{GroupError, GroupOptions};
use crate::domain::types::{BrokerId, TopicPartition};
use crate::kafka::cluster::{Cluster, ClusterError, Lane, Topics};
use crate::kafka::connect::{Address, ConnectError};
use crate::kafka::connection::{Connection, Pending, RequestError};
use crate::wire::api::groups::{
    Coordinator, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest,
    JoinGroupRequest, JoinGroupRequestProtocol, LeaveGroupRequest, MemberIdentity,
    SyncGroupRequest, SyncGroupRequestAssignment,
};
use crate::wire::bounded::{DecodeError, EncodeError};
use crate::wire::consumer_protocol::{
    ConsumerProtocolSubscription, PROTOCOL, PROTOCOL_TYPE, by_topic, encode,
};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::Request;

/// `FindCoordinatorRequest.CoordinatorType.GROUP`.
const GROUP: i8 = 0;

/// A call that brought nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("cannot reach the coordinator of the group")]
    Connect(#[from] ConnectError),
    #[error("cannot find out where the coordinator of the group listens")]
    Cluster(#[from] ClusterError),
    #[error("no answer of the group's coordinator")]
    Request(#[from] RequestError),
    #[error("broker {broker} did not take a connection within {after:?}")]
    Slow { broker: BrokerId, after: Duration },
    #[error("{api} was refused: {code}")]
    Refused { api: &'static str, code: ErrorCode },
    #[error("the answer to FindCoordinator names no coordinator")]
    NoCoordinator,
    #[error("cannot write what is to be said to the group")]
    Encode(#[from] EncodeError),
    #[error("cannot read what the group gives out")]
    Decode(#[from] DecodeError),
}

/// Where a member goes from a call that did not succeed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nowhere: it ends.
    Fatal(GroupError),
    /// It joins again, because of this.
    Rejoin(&'static str),
    /// It tries again after a pause.
    Again(CallError),
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Request(RequestError::UnsupportedVersion(source)) => {
                Self::Fatal(GroupError::BrokerTooOld { source })
            }
            other => Self::Again(other),
        }
    }
}

/// The calls of one member.
#[derive(Debug)]
pub(super) struct Calls {
    cluster: Cluster,
    group_id: Arc<str>,
    instance_id: Arc<str>,
    session_timeout: Duration,
    coordinator: Option<BrokerId>,
}

impl Calls {
    pub(super) fn new(cluster: Cluster, options: &GroupOptions) -> Self {
        Self {
            cluster,
            group_id: Arc::clone(&options.group_id),
            instance_id: Arc::clone(&options.identity.sidecar_id),
            session_timeout: options.session_timeout,
            coordinator: None,
        }
    }

    /// Heartbeats follow each other at this distance, from sending to sending. Members learn by them that the next generation has
    /// begun: a second at most, since nobody's work moves before all have joined.
    pub(super) fn heartbeat_interval(&self) -> Duration {
        (self.session_timeout / 3).min(Duration::from_secs(1))
    }

    /// A leader that does not know the work yet waits for it this long before it hands out what others have and no more.
    pub(super) fn work_patience(&self) -> Duration {
        self.session_timeout / 5
    }

    /// Time for calls that are answered at once. A heartbeat that got lost is noticed in time to be repeated before the
    /// right to decide runs out.
    pub(super) fn short(&self) -> Duration {
        self.session_timeout / 4
    }

    /// How long the coordinator waits for members to join and to sync. A member that is alive learns of a rebalance within
    /// a heartbeat interval and joins at once. One that is not is dropped at the end of its session, which lies before the
    /// end of this: so nobody is still in the group whose word is old.
    fn rebalance_timeout(&self) -> Duration {
        self.session_timeout * 2
    }

    /// Time for calls that wait for other members.
    fn long(&self) -> Duration {
        self.rebalance_timeout() + self.short()
    }

    /// Asks for the coordinator anew at the next call.
    pub(super) fn forget_coordinator(&mut self) {
        self.coordinator = None;
    }

    async fn find_coordinator(&self) -> Result<BrokerId, CallError> {
        let any = self.cluster.any(Lane::Control).await?;
        let request = FindCoordinatorRequest {
            key: Arc::clone(&self.group_id),
            key_type: GROUP,
            coordinator_keys: vec![Arc::clone(&self.group_id)],
        };
        let found = coordinator(any.call(&request, self.short()).await?)?;
        let address = Address {
            host: found.host,
            port: u16::try_from(found.port).unwrap_or_default(),
        };
        let known = self.cluster.leaders();
        let known = known.brokers.get(&found.node_id);
        if known.is_none_or(|node| node.address != address) {
            self.cluster.refresh(Topics::Named(Vec::new())).await?;
        }
        Ok(found.node_id)
    }

    /// A connection to the coordinator, which is found first if it is not known.
    pub(super) async fn connection(&mut self, lane: Lane) -> Result<Connection, CallError> {
        let broker = match self.coordinator {
            Some(broker) => broker,
            None => self.find_coordinator().await?,
        };
        let after = self.short();
        let connected = timeout(after, self.cluster.broker(broker, lane)).await;
        let connection = connected.map_err(|_| CallError::Slow { broker, after })??;
        self.coordinator = Some(broker);
        Ok(connection)
    }

    /// Sends a heartbeat over its own connection, since a coordinator answers nothing on one on which a JoinGroup waits.
    /// Returns when it was sent, and the answer.
    pub(super) async fn heartbeat(
        &mut self,
        member_id: &Arc<str>,
        generation_id: i32,
    ) -> Result<(Duration, ErrorCode), CallError> {
        let connection = self.connection(Lane::Heartbeat).await?;
        let request = HeartbeatRequest {
            group_id: Arc::clone(&self.group_id),
            generation_id,
            member_id: Arc::clone(member_id),
            group_instance_id: Some(Arc::clone(&self.instance_id)),
        };
        let sent = boot_time();
        let answer = connection.call(&request, self.short()).await?;
        Ok((sent, answer.error_code))
    }

    /// Queues a JoinGroup that says who we are and what we claim.
    pub(super) fn join(
        &self,
        connection: &Connection,
        member_id: &Arc<str>,
        claim: Claim<'_>,
    ) -> Result<Pending<JoinGroupRequest>, CallError> {
        let subscription = ConsumerProtocolSubscription {
            topics: Vec::new(),
            user_data: Some(claim.user_data),
            owned_partitions: by_topic(claim.owned),
            generation_id: claim.generation,
            rack_id: None,
        };
        let request = JoinGroupRequest {
            group_id: Arc::clone(&self.group_id),
            session_timeout_ms: millis(self.session_timeout),
            rebalance_timeout_ms: millis(self.rebalance_timeout()),
            member_id: Arc::clone(member_id),
            group_instance_id: Some(Arc::clone(&self.instance_id)),
            protocol_type: PROTOCOL_TYPE.into(),
            protocols: vec![JoinGroupRequestProtocol {
                name: PROTOCOL.into(),
                metadata: encode(&subscription)?,
            }],
            reason: Some(claim.reason.into()),
        };
        Ok(connection.enqueue(&request, self.long()))
    }

    /// Queues a SyncGroup; only the leader has `assignments`.
    pub(super) fn sync(
        &self,
        connection: &Connection,
        member_id: &Arc<str>,
        generation_id: i32,
        assignments: Vec<SyncGroupRequestAssignment>,
    ) -> Pending<SyncGroupRequest> {
        let request = SyncGroupRequest {
            group_id: Arc::clone(&self.group_id),
            generation_id,
            member_id: Arc::clone(member_id),
            group_instance_id: Some(Arc::clone(&self.instance_id)),
            protocol_type: Some(PROTOCOL_TYPE.into()),
            protocol_name: Some(PROTOCOL.into()),
            assignments,
        };
        connection.enqueue(&request, self.long())
    }

    /// Takes our place out of the group.
    pub(super) async fn leave(&mut self, member_id: &Arc<str>) -> Result<(), CallError> {
        let connection = self.connection(Lane::Heartbeat).await?;
        let request = LeaveGroupRequest {
            group_id: Arc::clone(&self.group_id),
            members: vec![MemberIdentity {
                member_id: Arc::clone(member_id),
                group_instance_id: Some(Arc::clone(&self.instance_id)),
                reason: Some("the sidecar was told to leave".into()),
            }],
        };
        let answer = connection.call(&request, self.short()).await?;
        let ours = answer.members.first().map(|member| member.error_code);
        match answer.error_code.ok().err().or(ours).unwrap_or_default() {
            // Not known: out already.
            ErrorCode::NONE | ErrorCode::UNKNOWN_MEMBER_ID => Ok(()),
            code => Err(CallError::Refused {
                api: LeaveGroupRequest::NAME,
                code,
            }),
        }
    }
}

/// What a member says when it joins.
pub(super) struct Claim<'a> {
    pub(super) owned: &'a std::collections::BTreeSet<TopicPartition>,
    pub(super) generation: i32,
    pub(super) user_data: Bytes,
    pub(super) reason: &'a str,
}

/// The coordinator, out of an answer of any version.
fn coordinator(answer: FindCoordinatorResponse) -> Result<Coordinator, CallError> {
    let old = Coordinator {
        node_id: answer.node_id,
        host: answer.host,
        port: answer.port,
        error_code: answer.error_code,
        ..Default::default()
    };
    let found = answer.coordinators.into_iter().next().unwrap_or(old);
    if let Err(code) = found.error_code.ok() {
        return Err(CallError::Refused {
            api: FindCoordinatorRequest::NAME,
            code,
        });
    }
    if found.host.is_empty() || found.node_id.0 < 0 {
        return Err(CallError::NoCoordinator);
    }
    Ok(found)
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
