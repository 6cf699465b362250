//! The result of `verify` for people: a table, what is different in words, one line that sums it up. Must not compute more
//! than sums.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{DecimalBytes, HumanCount};

use super::Verified;
use crate::verify::{Difference, LogRange, Outcome, PartitionReport, VerifyReport};

/// Tables with more rows leave out the partitions about which there is nothing to say.
const ALL_ROWS: usize = 30;

/// Rows, and partitions in words, at most.
const MOST_ROWS: usize = 100;

/// All of it, with a line feed at its end.
pub(super) fn table(verified: &Verified<'_>) -> String {
    let report = &verified.report;
    let mut rows: Vec<&PartitionReport> = report.partitions.iter().collect();
    // Stable: within a class the order of topics stays.
    rows.sort_by_key(|part| class(part));
    if rows.len() > ALL_ROWS {
        rows.retain(|part| class(part) != Class::Equal);
        rows.truncate(MOST_ROWS);
    }
    let mut out = String::new();
    if !rows.is_empty() {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header([
            "TOPIC",
            "PARTITION",
            "SOURCE",
            "DESTINATION",
            "COMPARED",
            "RECORDS",
            "RESULT",
        ]);
        for part in &rows {
            table.add_row([
                part.topic.to_string(),
                part.partition.to_string(),
                range(part.source),
                range(part.destination),
                range(part.compared),
                HumanCount(part.records).to_string(),
                result(part),
            ]);
        }
        for column in [1, 5] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        out.push_str(&table.trim_fmt());
        out.push_str("\n\n");
    }
    let mut say = |line: String| {
        out.push_str(&line);
        out.push('\n');
    };
    for topic in &report.missing_topics {
        say(format!("{topic}: the destination does not have the topic"));
    }
    for part in &rows {
        for line in words(part) {
            say(line);
        }
    }
    if !report.only_at_destination.is_empty() {
        say(format!(
            "only at the destination, not compared: {}",
            report.only_at_destination.join(", ")
        ));
    }
    for note in &report.notes {
        say(format!("note: {note}"));
    }
    say(format!("mirror {}: {}", verified.mirror, summary(report)));
    out
}

/// What is worth reading comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Different,
    Unreadable,
    Uncertain,
    Noted,
    Equal,
}

fn class(part: &PartitionReport) -> Class {
    match &part.outcome {
        Outcome::Different(_) => Class::Different,
        Outcome::Unreadable { .. } => Class::Unreadable,
        Outcome::Uncertain { .. } => Class::Uncertain,
        Outcome::Equal if part.lag_offsets > 0 || !part.notes.is_empty() => Class::Noted,
        Outcome::Equal => Class::Equal,
    }
}

fn range(range: Option<LogRange>) -> String {
    range.map_or_else(
        || "-".to_owned(),
        |range| format!("{}..{}", range.start, range.end),
    )
}

fn result(part: &PartitionReport) -> String {
    match &part.outcome {
        Outcome::Equal if part.lag_offsets > 0 => {
            format!("equal, {} behind", HumanCount(unsigned(part.lag_offsets)))
        }
        Outcome::Equal => "equal".to_owned(),
        Outcome::Different(Difference {
            offset: Some(offset),
            ..
        }) => format!("DIFFERENT at {offset}"),
        Outcome::Different(_) => "DIFFERENT".to_owned(),
        Outcome::Unreadable { .. } => "UNREADABLE".to_owned(),
        Outcome::Uncertain { .. } => "UNCERTAIN".to_owned(),
    }
}

/// What the table has no room for.
fn words(part: &PartitionReport) -> Vec<String> {
    let name = format!("{}-{}", part.topic, part.partition);
    let mut lines = Vec::new();
    match &part.outcome {
        Outcome::Equal => {}
        Outcome::Different(difference) => {
            let at = difference
                .offset
                .map_or_else(String::new, |offset| format!("offset {offset}: "));
            lines.push(format!("{name}: {at}{}", difference.reason));
            if let Some(source) = &difference.source {
                lines.push(format!("  source:      {source}"));
            }
            if let Some(destination) = &difference.destination {
                let by = difference
                    .destination_producer_id
                    .map_or_else(String::new, |id| format!(", producer id {id}"));
                lines.push(format!("  destination: {destination}{by}"));
            }
        }
        Outcome::Unreadable { reason } | Outcome::Uncertain { reason } => {
            lines.push(format!("{name}: {reason}"));
        }
    }
    let notes = part.notes.iter();
    lines.extend(notes.map(|note| format!("{name}: note: {note}")));
    lines
}

fn summary(report: &VerifyReport) -> String {
    let count = |wanted: Class| {
        let parts = report.partitions.iter();
        parts.filter(|part| class(part) == wanted).count()
    };
    let mut text = format!(
        "{} partitions, {} records ({}) in {:.1} s: ",
        counted(report.partitions.len()),
        HumanCount(report.records()),
        DecimalBytes(report.bytes()),
        report.duration.as_secs_f64()
    );
    if report.is_equal() {
        text.push_str("all equal");
    } else {
        let faults: Vec<String> = [
            (report.missing_topics.len(), "topics missing"),
            (count(Class::Different), "partitions different"),
            (count(Class::Unreadable), "partitions unreadable"),
            (count(Class::Uncertain), "partitions uncertain"),
        ]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{} {what}", counted(number)))
        .collect();
        text.push_str(&faults.join(", "));
    }
    let lag_offsets = report.lag_offsets();
    if lag_offsets > 0 {
        // Writing to a String cannot fail.
        write!(
            text,
            "; the destination is {} offsets behind",
            HumanCount(unsigned(lag_offsets))
        )
        .ok();
    }
    text
}

fn counted(number: usize) -> HumanCount {
    HumanCount(u64::try_from(number).unwrap_or(u64::MAX))
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::domain::types::ProducerId;

    fn part(partition: i32, lag_offsets: i64, outcome: Outcome) -> PartitionReport {
        let range = |end| Some(LogRange { start: 0, end });
        PartitionReport {
            topic: Arc::from("orders"),
            partition,
            source: range(1_000 + lag_offsets),
            destination: range(1_000),
            compared: range(1_000),
            records: 1_000,
            bytes: 64_000,
            lag_offsets,
            outcome,
            notes: Vec::new(),
        }
    }

    fn shown(partitions: Vec<PartitionReport>) -> String {
        table(&Verified {
            mirror: "m",
            report: VerifyReport {
                partitions,
                duration: Duration::from_millis(1_500),
                ..VerifyReport::default()
            },
        })
    }

    #[test]
    fn few_equal_partitions_are_all_shown_and_many_are_one_line() {
        let few = shown((0..3).map(|at| part(at, 0, Outcome::Equal)).collect());
        assert_eq!(few.lines().count(), 6, "{few}");
        assert!(
            few.ends_with(
                "\nmirror m: 3 partitions, 3,000 records (192.00 kB) in 1.5 s: all equal\n"
            ),
            "{few}"
        );
        let many = shown((0..31).map(|at| part(at, 0, Outcome::Equal)).collect());
        assert_eq!(many.lines().count(), 1, "{many}");
    }

    #[test]
    fn differences_come_first_and_in_words() {
        let mut parts: Vec<_> = (0..40).map(|at| part(at, 0, Outcome::Equal)).collect();
        parts[5] = part(5, 7, Outcome::Equal);
        parts[39] = part(
            39,
            0,
            Outcome::Different(Difference {
                offset: Some(123),
                reason: "the records differ in: value".into(),
                source: Some("this".into()),
                destination: Some("that".into()),
                destination_producer_id: Some(ProducerId(9)),
            }),
        );
        let text = shown(parts);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert!(lines[1].ends_with("DIFFERENT at 123"), "{text}");
        assert!(lines[2].ends_with("equal, 7 behind"), "{text}");
        assert_eq!(
            lines[4..],
            [
                "orders-39: offset 123: the records differ in: value",
                "source:      this",
                "destination: that, producer id 9",
                "mirror m: 40 partitions, 40,000 records (2.56 MB) in 1.5 s: 1 partitions different; \
                 the destination is 7 offsets behind",
            ]
        );
    }
}
