//! Reading and changing the configuration of topics and brokers (KIP-133, KIP-339). Must not decide what an answer
//! means.
//! After Kafka 4.4's `DescribeConfigsRequest.json`, `DescribeConfigsResponse.json`,
//! `IncrementalAlterConfigsRequest.json`, `IncrementalAlterConfigsResponse.json`.

use std::sync::Arc;

use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "DescribeConfigs" key 32, versions 4..=4, flexible from 4:
    DescribeConfigsRequest => DescribeConfigsResponse throttled
}

wire_struct! {
    /// What is asked (DescribeConfigs).
    pub struct DescribeConfigsRequest {
        /// The resources whose configurations we want to describe.
        resources: Vec<DescribeConfigsResource> [0..],
        /// True if we should include all synonyms.
        include_synonyms: bool [1..],
        /// True if we should include configuration documentation.
        include_documentation: bool [3..],
    }
}

wire_struct! {
    /// An element: the resources whose configurations we want to describe.
    pub struct DescribeConfigsResource {
        /// The resource type.
        resource_type: i8 [0..],
        /// The resource name.
        resource_name: Arc<str> [0..],
        /// The configuration keys to list, or null to list all configuration keys.
        configuration_keys: Option<Vec<Arc<str>>> [0..],
    }
}

wire_struct! {
    /// What a broker answers (DescribeConfigs).
    pub struct DescribeConfigsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The results for each resource.
        results: Vec<DescribeConfigsResult> [0..],
    }
}

wire_struct! {
    /// An element: the results for each resource.
    pub struct DescribeConfigsResult {
        /// The error code, or 0 if we were able to successfully describe the configurations.
        error_code: ErrorCode [0..],
        /// The error message, or null if we were able to successfully describe the configurations.
        error_message: Option<Arc<str>> [0..],
        /// The resource type.
        resource_type: i8 [0..],
        /// The resource name.
        resource_name: Arc<str> [0..],
        /// Each listed configuration.
        configs: Vec<DescribeConfigsResourceResult> [0..],
    }
}

wire_struct! {
    /// An element: each listed configuration.
    pub struct DescribeConfigsResourceResult {
        /// The configuration name.
        name: Arc<str> [0..],
        /// The configuration value.
        value: Option<Arc<str>> [0..],
        /// True if the configuration is read-only.
        read_only: bool [0..],
        /// The configuration source.
        config_source: i8 [1..] = -1,
        /// True if this configuration is sensitive.
        is_sensitive: bool [0..],
        /// The synonyms for this configuration key.
        synonyms: Vec<DescribeConfigsSynonym> [1..],
        /// The configuration data type. Type can be one of the following values - BOOLEAN, STRING, INT,
        /// SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD.
        config_type: i8 [3..],
        /// The configuration documentation.
        documentation: Option<Arc<str>> [3..],
    }
}

wire_struct! {
    /// An element: the synonyms for this configuration key.
    pub struct DescribeConfigsSynonym {
        /// The synonym name.
        name: Arc<str> [1..],
        /// The synonym value.
        value: Option<Arc<str>> [1..],
        /// The synonym source.
        source: i8 [1..],
    }
}

wire_api! {
    "IncrementalAlterConfigs" key 44, versions 1..=1, flexible from 1:
    IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse throttled
}

wire_struct! {
    /// What is asked (IncrementalAlterConfigs).
    pub struct IncrementalAlterConfigsRequest {
        /// The incremental updates for each resource.
        resources: Vec<AlterConfigsResource> [0..],
        /// True if we should validate the request, but not change the configurations.
        validate_only: bool [0..],
    }
}

wire_struct! {
    /// An element: the incremental updates for each resource.
    pub struct AlterConfigsResource {
        /// The resource type.
        resource_type: i8 [0..],
        /// The resource name.
        resource_name: Arc<str> [0..],
        /// The configurations.
        configs: Vec<AlterableConfig> [0..],
    }
}

wire_struct! {
    /// An element: the configurations.
    pub struct AlterableConfig {
        /// The configuration key name.
        name: Arc<str> [0..],
        /// The type (Set, Delete, Append, Subtract) of operation.
        config_operation: i8 [0..],
        /// The value to set for the configuration key.
        value: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// What a broker answers (IncrementalAlterConfigs).
    pub struct IncrementalAlterConfigsResponse {
        /// Duration in milliseconds for which the request was throttled due to a quota violation, or zero
        /// if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The responses for each resource.
        responses: Vec<AlterConfigsResourceResponse> [0..],
    }
}

wire_struct! {
    /// An element: the responses for each resource.
    pub struct AlterConfigsResourceResponse {
        /// The resource error code.
        error_code: ErrorCode [0..],
        /// The resource error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
        /// The resource type.
        resource_type: i8 [0..],
        /// The resource name.
        resource_name: Arc<str> [0..],
    }
}
