//! A cluster's id, its brokers and what we may do with it (KIP-700). Must not decide what an answer means.
//! After Kafka 4.4's `DescribeClusterRequest.json`, `DescribeClusterResponse.json`.

use std::sync::Arc;

use crate::domain::types::BrokerId;
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "DescribeCluster" key 60, versions 0..=1, flexible from 0:
    DescribeClusterRequest => DescribeClusterResponse throttled
}

wire_struct! {
    /// What is asked (DescribeCluster).
    pub struct DescribeClusterRequest {
        /// Whether to include cluster authorized operations.
        include_cluster_authorized_operations: bool [0..],
        /// The endpoint type to describe. 1=brokers, 2=controllers.
        endpoint_type: i8 [1..] = 1,
    }
}

wire_struct! {
    /// What a broker answers (DescribeCluster).
    pub struct DescribeClusterResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The top-level error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The top-level error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
        /// The endpoint type that was described. 1=brokers, 2=controllers.
        endpoint_type: i8 [1..] = 1,
        /// The cluster ID that responding broker belongs to.
        cluster_id: Arc<str> [0..],
        /// The ID of the controller. When handled by a controller, returns the current voter leader ID.
        /// When handled by a broker, returns a random alive broker ID as a fallback.
        controller_id: BrokerId [0..] = BrokerId(-1),
        /// Each broker in the response.
        brokers: Vec<DescribeClusterBroker> [0..],
        /// 32-bit bitfield to represent authorized operations for this cluster.
        cluster_authorized_operations: i32 [0..] = i32::MIN,
    }
}

wire_struct! {
    /// An element: each broker in the response.
    pub struct DescribeClusterBroker {
        /// The broker ID.
        broker_id: BrokerId [0..] = BrokerId(-1),
        /// The broker hostname.
        host: Arc<str> [0..],
        /// The broker port.
        port: i32 [0..],
        /// The rack of the broker, or null if it has not been assigned to a rack.
        rack: Option<Arc<str>> [0..],
    }
}
