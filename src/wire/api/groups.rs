//! Membership of groups in the classic protocol, with static members (KIP-345). Must not decide what an answer means.
//! After Kafka 4.4's `FindCoordinatorRequest.json`, `FindCoordinatorResponse.json`, `JoinGroupRequest.json`,
//! `JoinGroupResponse.json`, `HeartbeatRequest.json`, `HeartbeatResponse.json`, `LeaveGroupRequest.json`,
//! `LeaveGroupResponse.json`, `SyncGroupRequest.json`, `SyncGroupResponse.json`; from the versions of Kafka 2.3 on, the
//! first with `group.instance.id`.

use std::sync::Arc;

use bytes::Bytes;

use crate::domain::types::BrokerId;
use crate::wire::bounded::{DecodeError, Reader, Writer};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{Field, Layout, wire_api, wire_struct};

/// The name of the protocol that a coordinator chose. Null from version 7 of JoinGroup on where there is none; before, a
/// string always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProtocolName(pub Option<Arc<str>>);

impl Field for ProtocolName {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        let none = (layout.version < 7).then_some("");
        w.put_nullable_string(layout.flexible, self.0.as_deref().or(none));
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.nullable_string(layout.flexible).map(Self)
    }

    #[cfg(test)]
    fn sample(layout: Layout, seed: &mut crate::wire::schema::Seed) -> Self {
        let name: Option<Arc<str>> = Field::sample(layout, seed);
        Self(name.or_else(|| (layout.version < 7).then(|| "".into())))
    }
}

wire_api! {
    "FindCoordinator" key 10, versions 2..=6, flexible from 3:
    FindCoordinatorRequest => FindCoordinatorResponse throttled
}

wire_struct! {
    /// What is asked (FindCoordinator).
    pub struct FindCoordinatorRequest {
        /// The coordinator key.
        key: Arc<str> [0..=3],
        /// The coordinator key type. (group, transaction, share).
        key_type: i8 [1..],
        /// The coordinator keys.
        coordinator_keys: Vec<Arc<str>> [4..],
    }
}

wire_struct! {
    /// What a broker answers (FindCoordinator).
    pub struct FindCoordinatorResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..=3],
        /// The error message, or null if there was no error.
        error_message: Option<Arc<str>> [1..=3] = Some("".into()),
        /// The node id.
        node_id: BrokerId [0..=3] = BrokerId(0),
        /// The host name.
        host: Arc<str> [0..=3],
        /// The port.
        port: i32 [0..=3],
        /// Each coordinator result in the response.
        coordinators: Vec<Coordinator> [4..],
    }
}

wire_struct! {
    /// Each coordinator result in the response.
    pub struct Coordinator {
        /// The coordinator key.
        key: Arc<str> [4..],
        /// The node id.
        node_id: BrokerId [4..] = BrokerId(0),
        /// The host name.
        host: Arc<str> [4..],
        /// The port.
        port: i32 [4..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [4..],
        /// The error message, or null if there was no error.
        error_message: Option<Arc<str>> [4..],
    }
}

wire_api! {
    "JoinGroup" key 11, versions 5..=9, flexible from 6:
    JoinGroupRequest => JoinGroupResponse throttled
}

wire_struct! {
    /// What is asked (JoinGroup).
    pub struct JoinGroupRequest {
        /// The group identifier.
        group_id: Arc<str> [0..],
        /// The coordinator considers the consumer dead if it receives no heartbeat after this timeout in
        /// milliseconds.
        session_timeout_ms: i32 [0..],
        /// The maximum time in milliseconds that the coordinator will wait for each member to rejoin when
        /// rebalancing the group.
        rebalance_timeout_ms: i32 [1..] = -1,
        /// The member id assigned by the group coordinator.
        member_id: Arc<str> [0..],
        /// The unique identifier of the consumer instance provided by end user.
        group_instance_id: Option<Arc<str>> [5..],
        /// The unique name the for class of protocols implemented by the group we want to join.
        protocol_type: Arc<str> [0..],
        /// The list of protocols that the member supports.
        protocols: Vec<JoinGroupRequestProtocol> [0..],
        /// The reason why the member (re-)joins the group.
        reason: Option<Arc<str>> [8..],
    }
}

wire_struct! {
    /// An element: the list of protocols that the member supports.
    pub struct JoinGroupRequestProtocol {
        /// The protocol name.
        name: Arc<str> [0..],
        /// The protocol metadata.
        metadata: Bytes [0..],
    }
}

wire_struct! {
    /// What a broker answers (JoinGroup).
    pub struct JoinGroupResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The generation ID of the group.
        generation_id: i32 [0..] = -1,
        /// The group protocol name.
        protocol_type: Option<Arc<str>> [7..],
        /// The group protocol selected by the coordinator.
        protocol_name: ProtocolName [0..],
        /// The leader of the group.
        leader: Arc<str> [0..],
        /// True if the leader must skip running the assignment (KIP-814).
        skip_assignment: bool [9..],
        /// The member ID assigned by the group coordinator.
        member_id: Arc<str> [0..],
        /// The group members.
        members: Vec<JoinGroupResponseMember> [0..],
    }
}

wire_struct! {
    /// An element: the group members.
    pub struct JoinGroupResponseMember {
        /// The group member ID.
        member_id: Arc<str> [0..],
        /// The unique identifier of the consumer instance provided by end user.
        group_instance_id: Option<Arc<str>> [5..],
        /// The group member metadata.
        metadata: Bytes [0..],
    }
}

wire_api! {
    "Heartbeat" key 12, versions 3..=4, flexible from 4:
    HeartbeatRequest => HeartbeatResponse throttled
}

wire_struct! {
    /// What is asked (Heartbeat).
    pub struct HeartbeatRequest {
        /// The group id.
        group_id: Arc<str> [0..],
        /// The generation of the group.
        generation_id: i32 [0..],
        /// The member ID.
        member_id: Arc<str> [0..],
        /// The unique identifier of the consumer instance provided by end user.
        group_instance_id: Option<Arc<str>> [3..],
    }
}

wire_struct! {
    /// What a broker answers (Heartbeat).
    pub struct HeartbeatResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
    }
}

wire_api! {
    "LeaveGroup" key 13, versions 3..=5, flexible from 4:
    LeaveGroupRequest => LeaveGroupResponse throttled
}

wire_struct! {
    /// What is asked (LeaveGroup).
    pub struct LeaveGroupRequest {
        /// The ID of the group to leave.
        group_id: Arc<str> [0..],
        /// List of leaving member identities.
        members: Vec<MemberIdentity> [3..],
    }
}

wire_struct! {
    /// An element: list of leaving member identities.
    pub struct MemberIdentity {
        /// The member ID to remove from the group.
        member_id: Arc<str> [3..],
        /// The group instance ID to remove from the group.
        group_instance_id: Option<Arc<str>> [3..],
        /// The reason why the member left the group.
        reason: Option<Arc<str>> [5..],
    }
}

wire_struct! {
    /// What a broker answers (LeaveGroup).
    pub struct LeaveGroupResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// List of leaving member responses.
        members: Vec<MemberResponse> [3..],
    }
}

wire_struct! {
    /// An element: list of leaving member responses.
    pub struct MemberResponse {
        /// The member ID to remove from the group.
        member_id: Arc<str> [3..],
        /// The group instance ID to remove from the group.
        group_instance_id: Option<Arc<str>> [3..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [3..],
    }
}

wire_api! {
    "SyncGroup" key 14, versions 3..=5, flexible from 4:
    SyncGroupRequest => SyncGroupResponse throttled
}

wire_struct! {
    /// What is asked (SyncGroup).
    pub struct SyncGroupRequest {
        /// The unique group identifier.
        group_id: Arc<str> [0..],
        /// The generation of the group.
        generation_id: i32 [0..],
        /// The member ID assigned by the group.
        member_id: Arc<str> [0..],
        /// The unique identifier of the consumer instance provided by end user.
        group_instance_id: Option<Arc<str>> [3..],
        /// The group protocol type.
        protocol_type: Option<Arc<str>> [5..],
        /// The group protocol name.
        protocol_name: Option<Arc<str>> [5..],
        /// Each assignment.
        assignments: Vec<SyncGroupRequestAssignment> [0..],
    }
}

wire_struct! {
    /// Each assignment.
    pub struct SyncGroupRequestAssignment {
        /// The ID of the member to assign.
        member_id: Arc<str> [0..],
        /// The member assignment.
        assignment: Bytes [0..],
    }
}

wire_struct! {
    /// What a broker answers (SyncGroup).
    pub struct SyncGroupResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The group protocol type.
        protocol_type: Option<Arc<str>> [5..],
        /// The group protocol name.
        protocol_name: Option<Arc<str>> [5..],
        /// The member assignment.
        assignment: Bytes [0..],
    }
}
