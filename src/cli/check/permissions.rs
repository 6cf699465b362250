//! What we may do, by the bits that brokers give (KIP-430), and the commands that grant what
//! is missing. Must not decide which operations are needed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::kafka::connection::{Connection, RequestError};
use crate::wire::api::metadata::{MetadataRequest, MetadataRequestTopic};

/// An ACL operation: its name in Kafka's tools and its code (`AclOperation`).
pub(super) type Operation = (&'static str, u32);

pub(super) const READ: Operation = ("Read", 3);
pub(super) const WRITE: Operation = ("Write", 4);
pub(super) const DELETE: Operation = ("Delete", 6);
pub(super) const ALTER: Operation = ("Alter", 7);
pub(super) const DESCRIBE: Operation = ("Describe", 8);
pub(super) const CLUSTER_ACTION: Operation = ("ClusterAction", 9);
pub(super) const DESCRIBE_CONFIGS: Operation = ("DescribeConfigs", 10);
pub(super) const ALTER_CONFIGS: Operation = ("AlterConfigs", 11);

/// Topics of one question.
const AT_ONCE: usize = 500;

/// The operations that are allowed, a bit per code; topics of which the broker does not say it are left out. All bits
/// are set where nobody checks.
pub(super) async fn allowed(
    connection: &Connection,
    topics: &[Arc<str>],
    timeout: Duration,
) -> Result<BTreeMap<Arc<str>, i32>, RequestError> {
    let mut found = BTreeMap::new();
    for some in topics.chunks(AT_ONCE) {
        let request = MetadataRequest {
            topics: Some(
                some.iter()
                    .map(|name| MetadataRequestTopic {
                        name: Some(Arc::clone(name)),
                        ..Default::default()
                    })
                    .collect(),
            ),
            allow_auto_topic_creation: false,
            include_topic_authorized_operations: true,
            ..Default::default()
        };
        let answer = connection.call(&request, timeout).await?;
        let said = answer
            .topics
            .into_iter()
            .filter(|topic| topic.topic_authorized_operations != i32::MIN);
        found.extend(
            said.filter_map(|topic| Some((topic.name?, topic.topic_authorized_operations))),
        );
    }
    Ok(found)
}

/// The names of the operations of `needed` that `allowed` lacks.
pub(super) fn missing(allowed: i32, needed: &[Operation]) -> Vec<&'static str> {
    let lacks = |code: u32| (allowed >> code) & 1 == 0;
    let missing = needed.iter().filter(|(_, code)| lacks(*code));
    missing.map(|(name, _)| *name).collect()
}

/// The command that grants operations; `resources` are its arguments, `--cluster`, or `--topic` or `--group` and a
/// name. The principal is
/// the one that brokers give to PLAINTEXT connections.
pub(super) fn grant(server: &str, operations: &[&str], resources: &[&str]) -> String {
    let mut command =
        format!("kafka-acls.sh --bootstrap-server {server} --add --allow-principal User:ANONYMOUS");
    for operation in operations {
        command.push_str(" --operation ");
        command.push_str(operation);
    }
    for word in resources {
        command.push(' ');
        command.push_str(word);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_operations_become_the_command_that_grants_them() {
        let needed = [READ, WRITE, ALTER_CONFIGS];
        for (allowed, wanted) in [
            (0b1001_1111_1000, vec![]),
            (0b1000_0000_1000, vec!["Write"]),
            (0, vec!["Read", "Write", "AlterConfigs"]),
        ] {
            assert_eq!(missing(allowed, &needed), wanted, "{allowed:b}");
        }
        assert_eq!(
            grant("b:9092", &["Read", "Write"], &["--topic", "t"]),
            "kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:ANONYMOUS --operation Read --operation \
             Write --topic t"
        );
    }
}
