//! The report of `check` and how it is shown. Must not ask anybody anything.

use std::fmt;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

/// How one look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but somebody should know.
    Warn,
    /// Something will not be mirrored.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "OK",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        })
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What was looked at.
    pub check: String,
    /// `destination`, the name of a mirror, or `all`.
    pub side: String,
    /// How it ended.
    pub result: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing.
    pub what_to_do: String,
}

/// Everything that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// In the order in which it was looked at.
    pub rows: Vec<Row>,
}

impl CheckReport {
    /// True if anything will not work.
    pub fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.result == Verdict::Fail)
    }

    pub(super) fn ok(&mut self, check: &str, side: &str, found: impl Into<String>) {
        self.push(check, side, Verdict::Ok, found.into(), String::new());
    }

    pub(super) fn warn(
        &mut self,
        check: &str,
        side: &str,
        found: impl Into<String>,
        what_to_do: impl Into<String>,
    ) {
        self.push(check, side, Verdict::Warn, found.into(), what_to_do.into());
    }

    pub(super) fn fail(
        &mut self,
        check: &str,
        side: &str,
        found: impl Into<String>,
        what_to_do: impl Into<String>,
    ) {
        self.push(check, side, Verdict::Fail, found.into(), what_to_do.into());
    }

    fn push(
        &mut self,
        check: &str,
        side: &str,
        result: Verdict,
        found: String,
        what_to_do: String,
    ) {
        self.rows.push(Row {
            check: check.to_owned(),
            side: side.to_owned(),
            result,
            found,
            what_to_do,
        });
    }
}

impl fmt::Display for CheckReport {
    /// A table as wide as the terminal, and a last line that counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_preset(UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["check", "mirror/side", "result", "found", "what to do"]);
        for row in &self.rows {
            table.add_row([
                &row.check,
                &row.side,
                &row.result.to_string(),
                &row.found,
                &row.what_to_do,
            ]);
        }
        writeln!(f, "{table}")?;
        let count = |verdict| self.rows.iter().filter(|row| row.result == verdict).count();
        write!(
            f,
            "{} OK, {} WARN, {} FAIL",
            count(Verdict::Ok),
            count(Verdict::Warn),
            count(Verdict::Fail)
        )
    }
}

/// A few names, and how many more there are.
pub(super) fn some<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let text = shown.join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{text} and {more} more"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fail_is_a_failed_check_and_everything_is_in_the_table() {
        let mut report = CheckReport::default();
        report.ok("versions", "destination", "good");
        report.warn("topics", "m", "compacted", "exclude it");
        assert!(!report.failed());
        report.fail("brokers", "m", "refused", "start it");
        assert!(report.failed());
        let text = report.to_string();
        for part in [
            "what to do",
            "exclude it",
            "refused",
            "1 OK, 1 WARN, 1 FAIL",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][2]["result"], "FAIL");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..7).map(|number| number.to_string()).collect();
        assert_eq!(some(&names), "0, 1, 2, 3, 4 and 2 more");
        assert_eq!(some(&names[..5]), "0, 1, 2, 3, 4");
    }
}
