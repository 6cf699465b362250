//! Mirrors and partitions as tables. Must not ask or merge anything.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::HumanCount;

use super::members::{Gathered, Silent};
use super::words::{of_state, refusal};
use crate::domain::state::PartitionState;
use crate::wire::mirror_rpc::{DescribedMirror, DescribedMirrorPartition, ListedMirror};

/// A partition with the names that it stands under.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'g> {
    pub(super) mirror: &'g DescribedMirror,
    pub(super) topic: &'g str,
    pub(super) partition: &'g DescribedMirrorPartition,
}

/// The partitions that `wanted` chooses, in the order of their names.
pub(super) fn rows(
    gathered: &Gathered,
    failed: bool,
    wanted: impl Fn(&str) -> bool,
) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for mirror in &gathered.mirrors {
        for topic in mirror
            .topics
            .iter()
            .filter(|topic| wanted(&topic.topic_name))
        {
            for partition in &topic.partitions {
                if !failed || state_of(partition) == PartitionState::Failed {
                    rows.push(Row {
                        mirror,
                        topic: &topic.topic_name,
                        partition,
                    });
                }
            }
        }
    }
    rows
}

/// The state; UNKNOWN for a name that no state has.
fn state_of(partition: &DescribedMirrorPartition) -> PartitionState {
    PartitionState::from_name(&partition.state_value).unwrap_or_default()
}

/// Kafka's own tool writes -1 for what is not known; people read a dash.
fn count(number: i64) -> String {
    u64::try_from(number).map_or_else(|_| "-".to_owned(), |number| HumanCount(number).to_string())
}

fn offset(number: i64) -> String {
    if number < 0 {
        "-".to_owned()
    } else {
        number.to_string()
    }
}

/// Milliseconds as a time, if they are known.
pub(super) fn time(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

fn seconds(ms: i64) -> String {
    time(ms).map_or_else(
        || "-".to_owned(),
        |time| format!("{:.1}", time.as_secs_f64()),
    )
}

fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `list`, with a line feed at its end.
pub(super) fn listed(mirrors: &[ListedMirror]) -> String {
    if mirrors.is_empty() {
        return "No mirrors found\n".to_owned();
    }
    let or_dash = |text: &str| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text.to_owned()
        }
    };
    let header = [
        "MIRROR",
        "TOPICS",
        "WANTED",
        "SOURCE-CLUSTER-ID",
        "SOURCE-BOOTSTRAP-SERVER",
    ];
    let mut table = table(&header, &[1]);
    for mirror in mirrors {
        table.add_row([
            mirror.mirror_name.to_string(),
            mirror.topic_count.to_string(),
            wanted(mirror.desired_state).unwrap_or("-").to_owned(),
            or_dash(&mirror.source_cluster_id),
            or_dash(&mirror.source_bootstrap),
        ]);
    }
    table.trim_fmt() + "\n"
}

/// The name of a desired state by its number.
pub(super) fn wanted(desired_state: i8) -> Option<&'static str> {
    let state = PartitionState::from_number(desired_state).ok()?;
    (state != PartitionState::Unknown).then_some(state.name())
}

/// `describe`, with a line feed at its end.
pub(super) fn described(gathered: &Gathered, rows: &[Row<'_>]) -> String {
    let mut out = if rows.is_empty() {
        "No mirror partitions found\n".to_owned()
    } else {
        partitions(rows)
    };
    foot(&mut out, gathered);
    out
}

fn partitions(rows: &[Row<'_>]) -> String {
    let header = [
        "MIRROR",
        "TOPIC",
        "PARTITION",
        "SOURCE-OFFSET",
        "DESTINATION-OFFSET",
        "LAG",
        "SECONDS",
        "STATE",
        "REASON",
    ];
    let mut table = table(&header, &[2, 3, 4, 5, 6]);
    for row in rows {
        let partition = row.partition;
        table.add_row([
            row.mirror.mirror_name.to_string(),
            row.topic.to_owned(),
            partition.partition_index.to_string(),
            offset(partition.source_offset),
            offset(partition.destination_offset),
            count(partition.lag),
            seconds(partition.lag_ms),
            partition.state_value.to_string(),
            reason(partition),
        ]);
    }
    let mut out = table.trim_fmt();
    out.push_str("\n\n");
    out.push_str(&summary(rows));
    out.push('\n');
    out
}

/// Why the partition is where it is.
fn reason(partition: &DescribedMirrorPartition) -> String {
    let state = state_of(partition);
    let message = partition.error_message.as_deref();
    let mut parts = vec![message.unwrap_or_else(|| of_state(state)).to_owned()];
    if state == PartitionState::Failed {
        parts.push(
            match (partition.retry_attempt, time(partition.next_retry_ms)) {
                (-1, _) => "not tried again until truemirror recover".to_owned(),
                (attempt, Some(next)) => format!(
                    "attempt {} in {:.0} s",
                    i32::from(attempt).saturating_add(1),
                    next.as_secs_f64()
                ),
                (attempt, None) => format!("tried again {attempt} times"),
            },
        );
    } else if partition.undecided_records > 0 {
        parts.push(format!(
            "{} records wait for open transactions of the source",
            count(partition.undecided_records)
        ));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("; ")
}

fn summary(rows: &[Row<'_>]) -> String {
    let every = [PartitionState::Unknown]
        .into_iter()
        .chain(PartitionState::ALL);
    let counts: Vec<String> = every
        .filter_map(|state| {
            let number = rows
                .iter()
                .filter(|row| state_of(row.partition) == state)
                .count();
            (number > 0).then(|| format!("{number} {state}"))
        })
        .collect();
    let known = rows.iter().filter(|row| row.partition.lag >= 0);
    let lag = known
        .map(|row| row.partition.lag)
        .fold(0, i64::saturating_add);
    let number = rows.len();
    format!(
        "{number} partition{}: {}; lag {} records",
        if number == 1 { "" } else { "s" },
        counts.join(", "),
        count(lag)
    )
}

/// `describe --failed`, with a line feed at its end.
pub(super) fn failed(gathered: &Gathered, rows: &[Row<'_>]) -> String {
    let mut out = if rows.is_empty() {
        "No failed partitions found\n".to_owned()
    } else {
        let mut table = table(
            &["MIRROR", "TOPIC", "PARTITION", "RETRY", "NEXT", "ERROR"],
            &[2],
        );
        for row in rows {
            let partition = row.partition;
            let retry = match partition.retry_attempt {
                -1 => "NonRetryable".to_owned(),
                attempt => attempt.to_string(),
            };
            let next = time(partition.next_retry_ms);
            table.add_row([
                row.mirror.mirror_name.to_string(),
                row.topic.to_owned(),
                partition.partition_index.to_string(),
                retry,
                next.map_or_else(
                    || "-".to_owned(),
                    |next| format!("{:.0} s", next.as_secs_f64()),
                ),
                partition.error_message.as_deref().unwrap_or("-").to_owned(),
            ]);
        }
        table.trim_fmt() + "\n"
    };
    foot(&mut out, gathered);
    out
}

/// What is to be said of mirrors and processes as a whole.
fn foot(out: &mut String, gathered: &Gathered) {
    for mirror in &gathered.mirrors {
        let name = &mirror.mirror_name;
        let message = mirror.error_message.as_deref();
        if !mirror.error_code.is_none() {
            out.push_str(&format!(
                "mirror {name}: {}\n",
                refusal(mirror.error_code, message)
            ));
        } else if !mirror.source_reachable {
            let words = message.map_or_else(String::new, |message| format!(": {message}"));
            out.push_str(&format!(
                "mirror {name}: the source does not answer{words}\n"
            ));
        } else if let Some(message) = message {
            out.push_str(&format!("mirror {name}: {message}\n"));
        }
    }
    for silent in &gathered.silent {
        out.push_str(&unanswered(silent));
        out.push('\n');
    }
}

/// One line for a process that did not answer.
pub(super) fn unanswered(silent: &Silent) -> String {
    format!(
        "{} did not answer, offsets of its partitions are missing: {}",
        silent.member.sidecar, silent.why
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_words() {
        let base = DescribedMirrorPartition::default;
        for (partition, wanted) in [
            (
                DescribedMirrorPartition {
                    state_value: "FAILED".into(),
                    error_message: Some("foreign writer".into()),
                    retry_attempt: -1,
                    ..base()
                },
                "foreign writer; not tried again until truemirror recover",
            ),
            (
                DescribedMirrorPartition {
                    state_value: "FAILED".into(),
                    error_message: Some("no leader".into()),
                    retry_attempt: 2,
                    next_retry_ms: 4_100,
                    ..base()
                },
                "no leader; attempt 3 in 4 s",
            ),
            (
                DescribedMirrorPartition {
                    state_value: "MIRRORING".into(),
                    undecided_records: 1_234,
                    ..base()
                },
                "1,234 records wait for open transactions of the source",
            ),
            (
                DescribedMirrorPartition {
                    state_value: "MIRRORING".into(),
                    ..base()
                },
                "",
            ),
            (
                DescribedMirrorPartition {
                    state_value: "PAUSED".into(),
                    ..base()
                },
                "until resumed",
            ),
        ] {
            assert_eq!(reason(&partition), wanted);
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        assert_eq!((offset(-1), offset(1_000)), ("-".into(), "1000".into()));
        assert_eq!((count(-1), count(1_000)), ("-".into(), "1,000".into()));
        assert_eq!((seconds(-1), seconds(1_250)), ("-".into(), "1.2".into()));
        assert_eq!(wanted(-1), None);
        assert_eq!(wanted(2), Some("MIRRORING"));
    }
}
