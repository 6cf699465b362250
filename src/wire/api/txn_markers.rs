//! Control batches that end a transaction on the partitions named. Must not decide what an answer means.
//! After Kafka 4.4's `WriteTxnMarkersRequest.json`, `WriteTxnMarkersResponse.json`.

use std::sync::Arc;

use crate::domain::types::{ProducerEpoch, ProducerId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "WriteTxnMarkers" key 27, versions 1..=1, flexible from 1:
    WriteTxnMarkersRequest => WriteTxnMarkersResponse
}

wire_struct! {
    /// What is asked (WriteTxnMarkers).
    pub struct WriteTxnMarkersRequest {
        /// The transaction markers to be written.
        markers: Vec<WritableTxnMarker> [0..],
    }
}

wire_struct! {
    /// An element: the transaction markers to be written.
    pub struct WritableTxnMarker {
        /// The current producer ID.
        producer_id: ProducerId [0..] = ProducerId::NONE,
        /// The current epoch associated with the producer ID.
        producer_epoch: ProducerEpoch [0..] = ProducerEpoch(-1),
        /// The result of the transaction to write to the partitions (false = ABORT, true = COMMIT).
        transaction_result: bool [0..],
        /// Each topic that we want to write transaction marker(s) for.
        topics: Vec<WritableTxnMarkerTopic> [0..],
        /// Epoch associated with the transaction state partition hosted by this transaction coordinator.
        coordinator_epoch: i32 [0..],
    }
}

wire_struct! {
    /// An element: each topic that we want to write transaction marker(s) for.
    pub struct WritableTxnMarkerTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// The indexes of the partitions to write transaction markers for.
        partition_indexes: Vec<i32> [0..],
    }
}

wire_struct! {
    /// What a broker answers (WriteTxnMarkers).
    pub struct WriteTxnMarkersResponse {
        /// The results for writing makers.
        markers: Vec<WritableTxnMarkerResult> [0..],
    }
}

wire_struct! {
    /// An element: the results for writing makers.
    pub struct WritableTxnMarkerResult {
        /// The current producer ID in use by the transactional ID.
        producer_id: ProducerId [0..] = ProducerId::NONE,
        /// The results by topic.
        topics: Vec<WritableTxnMarkerTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: the results by topic.
    pub struct WritableTxnMarkerTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// The results by partition.
        partitions: Vec<WritableTxnMarkerPartitionResult> [0..],
    }
}

wire_struct! {
    /// An element: the results by partition.
    pub struct WritableTxnMarkerPartitionResult {
        /// The partition index.
        partition_index: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
    }
}
