//! Which APIs and versions a broker speaks: the first request on every connection (KIP-35, KIP-511). Must not
//! decide what an answer means.
//! After Kafka 4.4's `ApiVersionsRequest.json`, `ApiVersionsResponse.json`.

use std::sync::Arc;

use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "ApiVersions" key 18, versions 0..=4, flexible from 3:
    ApiVersionsRequest => ApiVersionsResponse throttled
}

wire_struct! {
    /// What is asked (ApiVersions).
    pub struct ApiVersionsRequest {
        /// The name of the client.
        client_software_name: Arc<str> [3..],
        /// The version of the client.
        client_software_version: Arc<str> [3..],
    }
}

wire_struct! {
    /// What a broker answers (ApiVersions).
    pub struct ApiVersionsResponse {
        /// The top-level error code.
        error_code: ErrorCode [0..],
        /// The APIs supported by the broker.
        api_keys: Vec<ApiVersion> [0..],
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
    }
    tagged {
        /// Features supported by the broker. Note: in v0-v3, features with MinSupportedVersion = 0 are
        /// omitted.
        0 => supported_features: Vec<SupportedFeatureKey> [3..],
        /// The monotonically increasing epoch for the finalized features information. Valid values are >=
        /// 0. A value of -1 is special and represents unknown epoch.
        1 => finalized_features_epoch: i64 [3..] = -1,
        /// List of cluster-wide finalized features. The information is valid only if
        /// FinalizedFeaturesEpoch >= 0.
        2 => finalized_features: Vec<FinalizedFeatureKey> [3..],
        /// Set by a KRaft controller if the required configurations for ZK migration are present.
        3 => zk_migration_ready: bool [3..],
    }
}

wire_struct! {
    /// An element: the APIs supported by the broker.
    pub struct ApiVersion {
        /// The API index.
        api_key: i16 [0..],
        /// The minimum supported version, inclusive.
        min_version: i16 [0..],
        /// The maximum supported version, inclusive.
        max_version: i16 [0..],
    }
}

wire_struct! {
    /// Features supported by the broker. Note: in v0-v3, features with MinSupportedVersion = 0 are omitted.
    pub struct SupportedFeatureKey {
        /// The name of the feature.
        name: Arc<str> [3..],
        /// The minimum supported version for the feature.
        min_version: i16 [3..],
        /// The maximum supported version for the feature.
        max_version: i16 [3..],
    }
}

wire_struct! {
    /// List of cluster-wide finalized features. The information is valid only if FinalizedFeaturesEpoch >= 0.
    pub struct FinalizedFeatureKey {
        /// The name of the feature.
        name: Arc<str> [3..],
        /// The cluster-wide finalized max version level for the feature.
        max_version_level: i16 [3..],
        /// The cluster-wide finalized min version level for the feature.
        min_version_level: i16 [3..],
    }
}
