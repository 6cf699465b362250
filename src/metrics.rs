//! Every metric of the process in one struct. Must not decide anything, and is no global: who counts is handed it.
//!
//! Names have the prefix `truemirror_`, base units, and `_total` for counters. Handles of one partition are looked up once
//! ([`Metrics::partition`]) and its series go when it leaves ([`Metrics::remove_partition`]).

use std::collections::HashMap;

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    CounterVec, Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::domain::state::PartitionState;
use crate::domain::types::TopicPartition;

const PARTITION: [&str; 3] = ["mirror", "topic", "partition"];

/// Which of the two clusters of a mirror a number is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The cluster that is copied from.
    Source,
    /// The cluster that is copied to.
    Destination,
}

impl Side {
    /// The value of the label `side`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

/// What came of a write of a partition's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateWrite {
    /// It is in the state topic.
    Written,
    /// Its coordinator said no.
    Refused,
    /// Its coordinator could not be asked, or did not know.
    Unavailable,
}

impl StateWrite {
    const ALL: [Self; 3] = [Self::Written, Self::Refused, Self::Unavailable];

    const fn label(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Every metric. Cloning shares the numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    partition_state: IntGaugeVec,
    lag_records: IntGaugeVec,
    undecided_records: IntGaugeVec,
    lag_seconds: GaugeVec,
    records_mirrored: IntCounterVec,
    bytes_mirrored: IntCounterVec,
    batches_mirrored: IntCounterVec,
    corrupt_batches: IntCounterVec,
    partitions: IntGaugeVec,
    /// `{mirror}`: seconds since the source last answered.
    pub source_last_contact_seconds: GaugeVec,
    /// Seconds since the destination last answered.
    pub destination_last_contact_seconds: Gauge,
    /// `{mirror}`: Fetch requests that were answered.
    pub fetch_requests: IntCounterVec,
    /// `{mirror, cause}`: Fetch requests or partitions in them that failed; the cause is a Kafka error name, `timeout` or `connection`.
    pub fetch_errors: IntCounterVec,
    /// Produce requests that were answered.
    pub append_requests: IntCounter,
    /// `{mirror, code}`: appends that were refused or lost; the code is a Kafka error name, `timeout` or `connection`.
    pub append_errors: IntCounterVec,
    /// `{mirror, cause}`: how often a partition asked the destination anew where to go on.
    pub resumes: IntCounterVec,
    /// Appends that the broker answered as a repetition.
    pub duplicate_answers: IntCounter,
    /// `{mirror, reason}`: how often partitions became FAILED.
    pub failures: IntCounterVec,
    /// `{cause}`: records of the state topic that this version does not know, left where they are.
    pub state_records_skipped: IntCounterVec,
    /// Processes that share the work, this one included.
    pub group_members: IntGauge,
    /// The group's generation; -1 before the first of this process.
    pub group_generation: IntGauge,
    /// Seconds since the sending of the last request that the group's coordinator answered well.
    pub group_contact_seconds: Gauge,
    /// Members whose configuration is another than ours.
    pub config_differs: IntGauge,
    /// 1 if the last attempt to take over a configuration was a success, 0 if it was not.
    pub config_last_reload_successful: IntGauge,
    /// When a configuration was last taken over, in seconds since 1970.
    pub config_last_reload_success_timestamp_seconds: Gauge,
    /// Work that the assignment gives to nobody, as the group's leader knows.
    pub unowned_partitions: IntGauge,
    /// Destination brokers that no member stands beside.
    pub brokers_without_sidecar: IntGauge,
    state_partitions: IntGaugeVec,
    /// Keys of the state topic that have a value.
    pub state_keys: IntGauge,
    state_writes: IntCounterVec,
    /// `{mirror, side}`: seconds that brokers asked us to wait.
    pub throttle_seconds: CounterVec,
    /// `{mirror, side}`: connections that were made after the first.
    pub reconnects: IntCounterVec,
    /// Bytes of records held between fetch and acknowledged append.
    pub memory_held_bytes: IntGauge,
    /// The limit of it.
    pub memory_limit_bytes: IntGauge,
    /// Open connections to the listener.
    pub listener_connections: IntGauge,
    /// `{api, error}`: requests to the listener that were answered; the error is a Kafka error name, `NONE` if there was none.
    pub listener_requests: IntCounterVec,
    /// `{reason}`: connections to the listener that we closed for what their peers did.
    pub listener_rejected: IntCounterVec,
}

impl Metrics {
    /// All metrics in a registry of their own, with those of the process (memory, CPU, files).
    ///
    /// # Errors
    /// A name or label that Prometheus does not allow, or one that is there twice.
    pub fn new(version: &str) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let add = Adder {
            registry: &registry,
        };
        add.int_gauges(
            "truemirror_build_info",
            "Always 1; the label is the program's version.",
            &["version"],
        )?
        .with_label_values(&[version])
        .set(1);
        #[cfg(target_os = "linux")]
        registry.register(Box::new(
            prometheus::process_collector::ProcessCollector::for_self(),
        ))?;
        Ok(Self {
            partition_state: add.int_gauges(
                "truemirror_partition_state",
                "State of a mirrored partition by KIP-1279's number: 0 LOG_TRUNCATION, 2 MIRRORING, 7 FAILED.",
                &PARTITION,
            )?,
            partitions: add.int_gauges(
                "truemirror_partitions",
                "Mirrored partitions in a state.",
                &["mirror", "state"],
            )?,
            lag_records: add.int_gauges(
                "truemirror_lag_records",
                "Offsets from the destination's high watermark to the source's last stable offset.",
                &PARTITION,
            )?,
            undecided_records: add.int_gauges(
                "truemirror_undecided_records",
                "Offsets from the source's last stable offset to its high watermark: open transactions, not copied yet.",
                &PARTITION,
            )?,
            lag_seconds: add.gauges(
                "truemirror_lag_seconds",
                "Seconds since the source had decided nothing that the destination does not hold by now; 0 while both are equal.",
                &PARTITION,
            )?,
            source_last_contact_seconds: add.gauges(
                "truemirror_source_last_contact_seconds",
                "Seconds since the source cluster last answered.",
                &["mirror"],
            )?,
            destination_last_contact_seconds: add.gauge(
                "truemirror_destination_last_contact_seconds",
                "Seconds since the destination cluster last answered.",
            )?,
            records_mirrored: add.int_counters(
                "truemirror_records_mirrored_total",
                "Records appended to the destination and acknowledged.",
                &PARTITION,
            )?,
            bytes_mirrored: add.int_counters(
                "truemirror_bytes_mirrored_total",
                "Bytes of record batches, as they are compressed, appended to the destination and acknowledged.",
                &PARTITION,
            )?,
            batches_mirrored: add.int_counters(
                "truemirror_batches_mirrored_total",
                "Record batches appended to the destination and acknowledged.",
                &PARTITION,
            )?,
            fetch_requests: add.int_counters(
                "truemirror_fetch_requests_total",
                "Fetch requests that the source answered.",
                &["mirror"],
            )?,
            fetch_errors: add.int_counters(
                "truemirror_fetch_errors_total",
                "Fetches that failed, as a whole or for one partition, by Kafka error name, timeout or connection.",
                &["mirror", "cause"],
            )?,
            corrupt_batches: add.int_counters(
                "truemirror_corrupt_batches_total",
                "Batches from the source whose bytes were damaged; none of them was appended.",
                &PARTITION,
            )?,
            append_requests: add.int_counter(
                "truemirror_append_requests_total",
                "Produce requests that the destination answered.",
            )?,
            append_errors: add.int_counters(
                "truemirror_append_errors_total",
                "Appends that were refused or lost, by Kafka error name, timeout or connection.",
                &["mirror", "code"],
            )?,
            resumes: add.int_counters(
                "truemirror_resumes_total",
                "Times that a partition asked the destination anew where to go on, by cause.",
                &["mirror", "cause"],
            )?,
            duplicate_answers: add.int_counter(
                "truemirror_duplicate_answers_total",
                "Appends that the destination answered as a repetition of an earlier one.",
            )?,
            failures: add.int_counters(
                "truemirror_failures_total",
                "Times that a partition became FAILED, by reason.",
                &["mirror", "reason"],
            )?,
            state_records_skipped: add.int_counters(
                "truemirror_state_records_skipped_total",
                "Records of the state topic that this version does not know and leaves where they are, by cause.",
                &["cause"],
            )?,
            group_members: add.int_gauge(
                "truemirror_group_members",
                "Processes that share the work of this destination, this one included; 0 before it has joined them.",
            )?,
            group_generation: add.int_gauge(
                "truemirror_group_generation",
                "Generation of the group of these processes; it grows whenever work is handed out anew.",
            )?,
            group_contact_seconds: add.gauge(
                "truemirror_group_contact_seconds",
                "Seconds since the group last answered well; since the start of the process while it is not in the group.",
            )?,
            config_differs: add.int_gauge(
                "truemirror_config_differs",
                "Members of the group whose mirrors are configured otherwise than those of this process.",
            )?,
            config_last_reload_successful: add.int_gauge(
                "truemirror_config_last_reload_successful",
                "Whether the last attempt to take over a configuration was a success (1) or not (0).",
            )?,
            config_last_reload_success_timestamp_seconds: add.gauge(
                "truemirror_config_last_reload_success_timestamp_seconds",
                "When a configuration was last taken over, in seconds since 1970; at first the start of the process.",
            )?,
            unowned_partitions: add.int_gauge(
                "truemirror_unowned_partitions",
                "Partitions to be worked on that the assignment gives to nobody, those on their way from one to another included; only the group's leader knows, all others say 0.",
            )?,
            brokers_without_sidecar: add.int_gauge(
                "truemirror_brokers_without_sidecar",
                "Destination brokers that no member names as its destination.broker_id; 0 where none names any.",
            )?,
            state_partitions: add.int_gauges(
                "truemirror_state_partitions",
                "Partitions of the state topic that this process has read and, if they are its own, taken over (loaded), or not yet (loading).",
                &["state"],
            )?,
            state_keys: add.int_gauge(
                "truemirror_state_keys",
                "Keys of the state topic that have a value: states, topics, mirrors, coordinators.",
            )?,
            state_writes: with_every_outcome(add.int_counters(
                "truemirror_state_writes_total",
                "States of partitions that this process wanted written, by what came of it: written, refused, unavailable (asked again later).",
                &["outcome"],
            )?),
            throttle_seconds: add.counters(
                "truemirror_throttle_seconds_total",
                "Seconds that brokers asked this process to wait.",
                &["mirror", "side"],
            )?,
            reconnects: add.int_counters(
                "truemirror_reconnects_total",
                "Connections made again after one was lost.",
                &["mirror", "side"],
            )?,
            memory_held_bytes: add.int_gauge(
                "truemirror_memory_held_bytes",
                "Bytes of records held between fetch and acknowledged append.",
            )?,
            memory_limit_bytes: add.int_gauge(
                "truemirror_memory_limit_bytes",
                "The most bytes of records that may be held (limits.memory).",
            )?,
            listener_connections: add.int_gauge(
                "truemirror_listener_connections",
                "Open connections to the listener.",
            )?,
            listener_requests: add.int_counters(
                "truemirror_listener_requests_total",
                "Requests to the listener that were answered, by Kafka error name; NONE is success.",
                &["api", "error"],
            )?,
            listener_rejected: add.int_counters(
                "truemirror_listener_rejected_total",
                "Connections to the listener that were closed for what the peer did: malformed or unknown requests, slowness, numbers.",
                &["reason"],
            )?,
            registry,
        })
    }

    /// What a scrape gathers from.
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The handles of one partition. Its series exist from now on.
    pub fn partition(&self, mirror: &str, partition: &TopicPartition) -> PartitionMetrics {
        let number = partition.partition.to_string();
        let labels = [mirror, &*partition.topic, number.as_str()];
        PartitionMetrics {
            state: self.partition_state.with_label_values(&labels),
            lag_records: self.lag_records.with_label_values(&labels),
            undecided_records: self.undecided_records.with_label_values(&labels),
            lag_seconds: self.lag_seconds.with_label_values(&labels),
            records_mirrored: self.records_mirrored.with_label_values(&labels),
            bytes_mirrored: self.bytes_mirrored.with_label_values(&labels),
            batches_mirrored: self.batches_mirrored.with_label_values(&labels),
            corrupt_batches: self.corrupt_batches.with_label_values(&labels),
        }
    }

    /// Removes the series of a partition that is mirrored no longer. Handles that are still held count unseen.
    pub fn remove_partition(&self, mirror: &str, partition: &TopicPartition) {
        let number = partition.partition.to_string();
        let labels = [mirror, &*partition.topic, number.as_str()];
        // Each answers with an error if it was never there, which is what is wanted.
        self.partition_state.remove_label_values(&labels).ok();
        self.lag_records.remove_label_values(&labels).ok();
        self.undecided_records.remove_label_values(&labels).ok();
        self.lag_seconds.remove_label_values(&labels).ok();
        self.records_mirrored.remove_label_values(&labels).ok();
        self.bytes_mirrored.remove_label_values(&labels).ok();
        self.batches_mirrored.remove_label_values(&labels).ok();
        self.corrupt_batches.remove_label_values(&labels).ok();
    }

    /// Removes every series of a mirror that is here no longer, or begins anew: its counters begin at 0 then.
    pub fn remove_mirror(&self, mirror: &str) {
        for gauges in [
            &self.partition_state,
            &self.partitions,
            &self.lag_records,
            &self.undecided_records,
        ] {
            remove_mirror(gauges, mirror);
        }
        for gauges in [&self.lag_seconds, &self.source_last_contact_seconds] {
            remove_mirror(gauges, mirror);
        }
        remove_mirror(&self.throttle_seconds, mirror);
        for counters in [
            &self.records_mirrored,
            &self.bytes_mirrored,
            &self.batches_mirrored,
            &self.corrupt_batches,
            &self.fetch_requests,
            &self.fetch_errors,
            &self.append_errors,
            &self.resumes,
            &self.failures,
            &self.reconnects,
        ] {
            remove_mirror(counters, mirror);
        }
    }

    /// Sets how many of `total` state partitions are loaded.
    pub fn show_state_partitions(&self, total: usize, loaded: usize) {
        let loading = total.saturating_sub(loaded);
        for (state, count) in [("loading", loading), ("loaded", loaded)] {
            self.state_partitions
                .with_label_values(&[state])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts what came of a write of a partition's state.
    pub fn count_state_write(&self, outcome: StateWrite) {
        self.state_writes
            .with_label_values(&[outcome.label()])
            .inc();
    }

    /// Sets how many partitions of `mirror` are in each state, states without any included.
    pub fn count_partitions(&self, mirror: &str, states: impl IntoIterator<Item = PartitionState>) {
        let mut counts = PartitionState::ALL.map(|state| (state, 0_i64));
        for found in states {
            for (state, count) in &mut counts {
                if *state == found {
                    *count = count.saturating_add(1);
                }
            }
        }
        for (state, count) in counts {
            self.partitions
                .with_label_values(&[mirror, state.name()])
                .set(count);
        }
    }
}

/// The metrics of one partition, looked up once.
#[derive(Clone, Debug)]
pub struct PartitionMetrics {
    state: IntGauge,
    /// Offsets from the destination's high watermark to the source's last stable offset.
    pub lag_records: IntGauge,
    /// Offsets from the source's last stable offset to its high watermark.
    pub undecided_records: IntGauge,
    /// Seconds since the two were last equal.
    pub lag_seconds: Gauge,
    /// Records appended and acknowledged.
    pub records_mirrored: IntCounter,
    /// Bytes of batches appended and acknowledged.
    pub bytes_mirrored: IntCounter,
    /// Batches appended and acknowledged.
    pub batches_mirrored: IntCounter,
    /// Damaged batches from the source.
    pub corrupt_batches: IntCounter,
}

impl PartitionMetrics {
    /// Shows `state` by its number.
    pub fn set_state(&self, state: PartitionState) {
        self.state.set(i64::from(state.number()));
    }
}

/// What has not happened yet reads zero.
fn with_every_outcome(writes: IntCounterVec) -> IntCounterVec {
    for outcome in StateWrite::ALL {
        writes.with_label_values(&[outcome.label()]);
    }
    writes
}

/// Removes the series of `mirror` from one metric.
fn remove_mirror<B: MetricVecBuilder>(all: &MetricVec<B>, mirror: &str) {
    for family in all.collect() {
        for series in family.get_metric() {
            let labels = series.get_label().iter();
            let labels: HashMap<&str, &str> =
                labels.map(|label| (label.name(), label.value())).collect();
            if labels.get("mirror") == Some(&mirror) {
                // It was there a moment ago; that it is gone is what is wanted.
                all.remove(&labels).ok();
            }
        }
    }
}

struct Adder<'r> {
    registry: &'r Registry,
}

impl Adder<'_> {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.add(Gauge::with_opts(Opts::new(name, help))?)
    }

    fn int_gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::with_opts(Opts::new(name, help))?)
    }

    fn int_counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::with_opts(Opts::new(name, help))?)
    }

    fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GaugeVec, prometheus::Error> {
        self.add(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn int_gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<CounterVec, prometheus::Error> {
        self.add(CounterVec::new(Opts::new(name, help), labels)?)
    }

    fn int_counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn scrape(metrics: &Metrics) -> String {
        TextEncoder::new()
            .encode_to_string(&metrics.registry().gather())
            .unwrap()
    }

    #[test]
    fn partitions_are_counted_apart() {
        let metrics = Metrics::new("1.2.3").unwrap();
        for (partition, records) in [(0, 10), (1, 20), (2, 0)] {
            metrics
                .partition("m", &TopicPartition::new("t", partition))
                .records_mirrored
                .inc_by(records);
        }
        let text = scrape(&metrics);
        for (partition, records) in [(0, 10), (1, 20), (2, 0)] {
            let line = format!(
                "records_mirrored_total{{mirror=\"m\",partition=\"{partition}\",topic=\"t\"}} {records}\n"
            );
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(text.contains("truemirror_build_info{version=\"1.2.3\"} 1\n"));
    }

    #[test]
    fn a_partition_that_left_has_no_series() {
        let metrics = Metrics::new("0").unwrap();
        let partition = TopicPartition::new("gone", 3);
        let handles = metrics.partition("m", &partition);
        handles.set_state(PartitionState::Failed);
        handles.corrupt_batches.inc();
        assert!(scrape(&metrics).contains(
            "truemirror_partition_state{mirror=\"m\",partition=\"3\",topic=\"gone\"} 7\n"
        ));
        metrics.remove_partition("m", &partition);
        metrics.remove_partition("m", &partition);
        handles.lag_records.set(5);
        assert!(!scrape(&metrics).contains("gone"));
    }

    #[test]
    fn state_partitions_and_writes_are_told_apart() {
        let metrics = Metrics::new("0").unwrap();
        metrics.show_state_partitions(50, 48);
        metrics.count_state_write(StateWrite::Written);
        metrics.count_state_write(StateWrite::Written);
        metrics.count_state_write(StateWrite::Unavailable);
        let text = scrape(&metrics);
        for line in [
            "truemirror_state_partitions{state=\"loading\"} 2\n",
            "truemirror_state_partitions{state=\"loaded\"} 48\n",
            "truemirror_state_writes_total{outcome=\"written\"} 2\n",
            "truemirror_state_writes_total{outcome=\"unavailable\"} 1\n",
            "truemirror_state_writes_total{outcome=\"refused\"} 0\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn states_without_partitions_read_zero() {
        let metrics = Metrics::new("0").unwrap();
        metrics.count_partitions("m", [PartitionState::Failed, PartitionState::Failed]);
        metrics.count_partitions("m", [PartitionState::Mirroring]);
        let text = scrape(&metrics);
        for (state, count) in [("LOG_TRUNCATION", 0), ("MIRRORING", 1), ("FAILED", 0)] {
            let line = format!("truemirror_partitions{{mirror=\"m\",state=\"{state}\"}} {count}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}
