//! The JSON of `verify --json`. Must not compute: every number comes from the report.

use serde::Serialize;

use super::Verified;
use crate::verify::{Difference, LogRange, Outcome, PartitionReport};

/// All mirrors as one indented document with a line feed at its end.
pub(super) fn encode(all: &[Verified<'_>]) -> Result<Vec<u8>, serde_json::Error> {
    let document = Document {
        equal: all.iter().all(|verified| verified.report.is_equal()),
        mirrors: all.iter().map(MirrorJson::from).collect(),
    };
    let mut bytes = serde_json::to_vec_pretty(&document)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[derive(Serialize)]
struct Document<'r> {
    equal: bool,
    mirrors: Vec<MirrorJson<'r>>,
}

#[derive(Serialize)]
struct MirrorJson<'r> {
    name: &'r str,
    equal: bool,
    records: u64,
    bytes: u64,
    lag_offsets: i64,
    duration_seconds: f64,
    missing_topics: Vec<&'r str>,
    only_at_destination: Vec<&'r str>,
    notes: &'r [String],
    partitions: Vec<PartitionJson<'r>>,
}

#[derive(Serialize)]
struct PartitionJson<'r> {
    topic: &'r str,
    partition: i32,
    result: &'static str,
    source: Option<RangeJson>,
    destination: Option<RangeJson>,
    compared: Option<RangeJson>,
    records: u64,
    bytes: u64,
    lag_offsets: i64,
    difference: Option<DifferenceJson<'r>>,
    reason: Option<&'r str>,
    notes: &'r [String],
}

#[derive(Serialize)]
struct RangeJson {
    start: i64,
    end: i64,
}

#[derive(Serialize)]
struct DifferenceJson<'r> {
    offset: Option<i64>,
    reason: &'r str,
    source: Option<&'r str>,
    destination: Option<&'r str>,
    destination_producer_id: Option<i64>,
}

impl<'r> From<&'r Verified<'_>> for MirrorJson<'r> {
    fn from(verified: &'r Verified<'_>) -> Self {
        let report = &verified.report;
        Self {
            name: verified.mirror,
            equal: report.is_equal(),
            records: report.records(),
            bytes: report.bytes(),
            lag_offsets: report.lag_offsets(),
            duration_seconds: report.duration.as_secs_f64(),
            missing_topics: report.missing_topics.iter().map(|name| &**name).collect(),
            only_at_destination: report
                .only_at_destination
                .iter()
                .map(|name| &**name)
                .collect(),
            notes: &report.notes,
            partitions: report.partitions.iter().map(PartitionJson::from).collect(),
        }
    }
}

impl<'r> From<&'r PartitionReport> for PartitionJson<'r> {
    fn from(report: &'r PartitionReport) -> Self {
        let (result, difference, reason) = match &report.outcome {
            Outcome::Equal => ("equal", None, None),
            Outcome::Different(difference) => ("different", Some(difference.into()), None),
            Outcome::Unreadable { reason } => ("unreadable", None, Some(reason.as_str())),
            Outcome::Uncertain { reason } => ("uncertain", None, Some(reason.as_str())),
        };
        Self {
            topic: &report.topic,
            partition: report.partition,
            result,
            source: report.source.map(RangeJson::from),
            destination: report.destination.map(RangeJson::from),
            compared: report.compared.map(RangeJson::from),
            records: report.records,
            bytes: report.bytes,
            lag_offsets: report.lag_offsets,
            difference,
            reason,
            notes: &report.notes,
        }
    }
}

impl From<LogRange> for RangeJson {
    fn from(range: LogRange) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

impl<'r> From<&'r Difference> for DifferenceJson<'r> {
    fn from(difference: &'r Difference) -> Self {
        Self {
            offset: difference.offset,
            reason: &difference.reason,
            source: difference.source.as_deref(),
            destination: difference.destination.as_deref(),
            destination_producer_id: difference.destination_producer_id.map(|id| id.0),
        }
    }
}
