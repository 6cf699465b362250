//! Whether the processes can share their work: what brokers say of the group, and for how long they let its members be
//! silent. Must not join it, nor ask anything that makes brokers create `__consumer_offsets`, as FindCoordinator does.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use humantime::format_duration;

use super::clusters::Reached;
use super::permissions::{READ, grant, missing};
use super::report::CheckReport;
use crate::config;
use crate::domain::types::BrokerId;
use crate::kafka::admin::{Configs, describe_group};
use crate::kafka::contact::chain;
use crate::wire::api::group_descriptions::DescribedGroup;
use crate::wire::consumer_protocol::{PROTOCOL, PROTOCOL_TYPE};
use crate::wire::error_code::ErrorCode;

const GROUP: &str = "group";
const SESSION: &str = "group.session_timeout";
const SIDE: &str = "destination";

/// Asks every broker about the group: the one that coordinates it knows, the others say that they do not.
pub(super) async fn group(group: &config::Group, destination: &Reached, report: &mut CheckReport) {
    let id: Arc<str> = group.id.as_str().into();
    let timeout = destination.timeout;
    let asked = destination.brokers.iter().map(|(broker, connection)| {
        let id = &id;
        async move { (*broker, describe_group(connection, id, timeout).await) }
    });
    let answers = join_all(asked).await;
    let command = || grant(&destination.server, &["Read"], &["--group", &id]);
    let mut trouble = None;
    for (broker, answer) in answers {
        match answer {
            Ok(described) => return told(&id, broker, &described, command(), report),
            Err(error) => match error.code() {
                Some(ErrorCode::GROUP_AUTHORIZATION_FAILED) => {
                    let found = format!("{id}: {}", chain(&error));
                    return report.fail(GROUP, SIDE, found, command());
                }
                // Another broker's, or nobody's yet.
                Some(
                    ErrorCode::NOT_COORDINATOR
                    | ErrorCode::COORDINATOR_NOT_AVAILABLE
                    | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
                ) => {}
                _ => trouble = Some((broker, error)),
            },
        }
    }
    match trouble {
        Some((broker, error)) => report.fail(
            GROUP,
            SIDE,
            format!("{id}: broker {broker}: {}", chain(&error)),
            "look at the destination broker's log",
        ),
        None => report.ok(
            GROUP,
            SIDE,
            format!("{id}: allowed to ask; no broker coordinates it yet"),
        ),
    }
}

/// What its coordinator says.
fn told(
    id: &str,
    broker: BrokerId,
    group: &DescribedGroup,
    command: String,
    report: &mut CheckReport,
) {
    let known = group.authorized_operations != i32::MIN;
    if known && !missing(group.authorized_operations, &[READ]).is_empty() {
        let found = format!("{id}: Read is missing, no process can join");
        return report.fail(GROUP, SIDE, found, command);
    }
    let members = group.members.len();
    let foreign = members > 0
        && (&*group.protocol_type != PROTOCOL_TYPE
            || !["", PROTOCOL].contains(&&*group.protocol_data));
    if foreign {
        let found = format!(
            "{id} has {members} members of the protocol {} {}",
            group.protocol_type, group.protocol_data
        );
        let remedy = "choose a group.id that is truemirror's alone";
        return report.fail(GROUP, SIDE, found, remedy);
    }
    report.ok(
        GROUP,
        SIDE,
        format!("{id}, coordinated by broker {broker}, members now: {members}"),
    );
}

/// Whether brokers take the session timeout. `configs` are what one of them says of itself.
pub(super) fn session(
    group: &config::Group,
    broker: BrokerId,
    configs: &Configs,
    report: &mut CheckReport,
) {
    const MIN: &str = "group.min.session.timeout.ms";
    const MAX: &str = "group.max.session.timeout.ms";
    let wanted = group.session_timeout;
    let limit = |key: &str| {
        let value = configs.get(key)?.value.as_deref()?;
        value.parse().ok().map(Duration::from_millis)
    };
    let (min, max) = (limit(MIN), limit(MAX));
    let below = min.is_some_and(|min| wanted < min);
    let above = max.is_some_and(|max| wanted > max);
    let shown = |limit: Option<Duration>| {
        limit.map_or_else(
            || "unknown".to_owned(),
            |limit| format_duration(limit).to_string(),
        )
    };
    let range = format!(
        "{}; broker {broker} takes {} to {}",
        format_duration(wanted),
        shown(min),
        shown(max)
    );
    if below || above {
        let key = if below { MIN } else { MAX };
        report.fail(
            SESSION,
            SIDE,
            range,
            format!("change group.session_timeout, or {key} of all brokers"),
        );
    } else {
        report.ok(SESSION, SIDE, range);
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;
    use crate::kafka::admin::{ConfigEntry, ConfigSource};

    fn configs(min: &str, max: &str) -> Configs {
        let entry = |value: &str| ConfigEntry {
            value: Some(value.into()),
            source: ConfigSource(5),
            read_only: true,
        };
        Configs::from([
            ("group.min.session.timeout.ms".into(), entry(min)),
            ("group.max.session.timeout.ms".into(), entry(max)),
        ])
    }

    #[test]
    fn a_session_timeout_lies_within_what_brokers_take() {
        for (configs, wanted, words) in [
            (configs("6000", "1800000"), Verdict::Ok, "6s to 30m"),
            (configs("10000", "10000"), Verdict::Ok, "10s to 10s"),
            (Configs::new(), Verdict::Ok, "unknown to unknown"),
            (configs("10001", "1800000"), Verdict::Fail, "10s 1ms"),
            (configs("6000", "9999"), Verdict::Fail, "9s 999ms"),
        ] {
            let group = config::Group {
                id: "g".to_owned(),
                member_id: None,
                session_timeout: Duration::from_secs(10),
            };
            let mut report = CheckReport::default();
            session(&group, BrokerId(1), &configs, &mut report);
            let row = &report.rows[0];
            assert_eq!(row.result, wanted, "{row:?}");
            assert!(row.found.contains(words), "{row:?}");
        }
    }

    #[test]
    fn a_group_of_others_and_a_missing_right_are_failures() {
        let group = |protocol: &str, members: usize, operations: i32| DescribedGroup {
            protocol_type: "consumer".into(),
            protocol_data: protocol.into(),
            members: std::iter::repeat_n(Default::default(), members).collect(),
            authorized_operations: operations,
            ..DescribedGroup::default()
        };
        let read = 1 << 3;
        for (group, wanted) in [
            (group("truemirror", 2, read), Verdict::Ok),
            (group("", 0, read), Verdict::Ok),
            (group("range", 0, read), Verdict::Ok),
            (group("", 0, i32::MIN), Verdict::Ok),
            (group("range", 1, read), Verdict::Fail),
            (group("", 0, 1 << 8), Verdict::Fail),
        ] {
            let mut report = CheckReport::default();
            told("g", BrokerId(1), &group, "grant".to_owned(), &mut report);
            assert_eq!(report.rows[0].result, wanted, "{group:?}");
        }
    }
}
