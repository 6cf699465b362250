//! What a coordinator says of groups in the classic protocol, and what we may do with them (KIP-430). Must not decide what
//! an answer means. After Kafka 4.4's `DescribeGroupsRequest.json`, `DescribeGroupsResponse.json`; from the version on
//! that says what is allowed, and below the one that has an error for a group that nobody has used yet.

use std::sync::Arc;

use bytes::Bytes;

use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "DescribeGroups" key 15, versions 3..=5, flexible from 5:
    DescribeGroupsRequest => DescribeGroupsResponse throttled
}

wire_struct! {
    /// What is asked (DescribeGroups).
    pub struct DescribeGroupsRequest {
        /// The names of the groups to describe.
        groups: Vec<Arc<str>> [0..],
        /// Whether to include authorized operations.
        include_authorized_operations: bool [3..],
    }
}

wire_struct! {
    /// What a broker answers (DescribeGroups).
    pub struct DescribeGroupsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// Each described group.
        groups: Vec<DescribedGroup> [0..],
    }
}

wire_struct! {
    /// An element: each described group.
    pub struct DescribedGroup {
        /// The describe error, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The group ID string.
        group_id: Arc<str> [0..],
        /// The group state string, or the empty string.
        group_state: Arc<str> [0..],
        /// The group protocol type, or the empty string.
        protocol_type: Arc<str> [0..],
        /// The group protocol data, or the empty string.
        protocol_data: Arc<str> [0..],
        /// The group members.
        members: Vec<DescribedGroupMember> [0..],
        /// 32-bit bitfield to represent authorized operations for this group.
        authorized_operations: i32 [3..] = i32::MIN,
    }
}

wire_struct! {
    /// An element: the group members.
    pub struct DescribedGroupMember {
        /// The member id.
        member_id: Arc<str> [0..],
        /// The unique identifier of the consumer instance provided by end user.
        group_instance_id: Option<Arc<str>> [4..],
        /// The client ID used in the member's latest join group request.
        client_id: Arc<str> [0..],
        /// The client host.
        client_host: Arc<str> [0..],
        /// The metadata corresponding to the current group protocol in use.
        member_metadata: Bytes [0..],
        /// The current assignment provided by the group leader.
        member_assignment: Bytes [0..],
    }
}
