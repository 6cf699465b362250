//! The outbound Kafka client: connections, leaders, calls. Must not decide anything about mirroring.
