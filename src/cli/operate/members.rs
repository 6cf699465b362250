//! One picture of the mirrors from the answers of all processes: each knows how far those partitions are that it owns. Must not
//! show anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::server::{OperateError, Server, ServerArgs};
use crate::kafka::connect::Address;
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::{
    DescribeClusterMirrorsRequest, DescribeClusterMirrorsResponse, DescribedMirror,
    DescribedMirrorPartition, DescribedMirrorTopic, MirrorMember,
};

/// What all processes together know.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The mirrors in the order of their names, the topics and partitions in theirs.
    pub(super) mirrors: Vec<DescribedMirror>,
    /// Who did not answer, and why.
    pub(super) silent: Vec<Silent>,
}

/// A process that did not answer.
#[derive(Debug)]
pub(super) struct Silent {
    pub(super) member: MirrorMember,
    pub(super) why: String,
}

/// The processes beside the first are asked no longer than this: one that hangs must not hide what the others say.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the server for `mirror` (or all), and whom it names as well.
///
/// # Errors
/// If the server itself does not answer, or refuses.
pub(super) async fn gather(
    args: &ServerArgs,
    mirror: Option<&str>,
) -> Result<Gathered, OperateError> {
    let request = DescribeClusterMirrorsRequest {
        mirror_names: mirror.map(Arc::from).into_iter().collect(),
        ..DescribeClusterMirrorsRequest::default()
    };
    let server = Server::connect(&args.server, args.timeout).await?;
    let first = server.call(&request).await?;
    refused(&first)?;
    let timeout = args.timeout.min(MEMBER_TIMEOUT);
    let mut asking: FuturesUnordered<_> = first
        .members
        .iter()
        .filter(|member| !is_first(member, &first, &args.server))
        .map(async |member| (member, ask(member, &request, timeout).await))
        .collect();
    let mut answers = vec![first.mirrors.clone()];
    let mut silent = Vec::new();
    while let Some((member, answer)) = asking.next().await {
        match answer {
            Ok(answer) => answers.push(answer.mirrors),
            Err(error) => silent.push(Silent {
                member: member.clone(),
                // The advice behind it is for the server that was named.
                why: error
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            }),
        }
    }
    silent.sort_by(|one, other| one.member.sidecar.cmp(&other.member.sidecar));
    Ok(Gathered {
        mirrors: merge(answers),
        silent,
    })
}

/// True if `member` is the process that has answered already.
fn is_first(
    member: &MirrorMember,
    first: &DescribeClusterMirrorsResponse,
    server: &Address,
) -> bool {
    match &first.answering {
        Some(sidecar) => *sidecar == member.sidecar,
        None => {
            first.members.len() == 1
                || (member.host == server.host && member.port == i32::from(server.port))
        }
    }
}

async fn ask(
    member: &MirrorMember,
    request: &DescribeClusterMirrorsRequest,
    timeout: Duration,
) -> Result<DescribeClusterMirrorsResponse, OperateError> {
    let address = Address {
        host: Arc::clone(&member.host),
        // A port that is none is one that nobody listens at.
        port: u16::try_from(member.port).unwrap_or(0),
    };
    let server = Server::connect(&address, timeout).await?;
    let answer = server.call(request).await?;
    refused(&answer)?;
    Ok(answer)
}

fn refused(answer: &DescribeClusterMirrorsResponse) -> Result<(), OperateError> {
    answer
        .error_code
        .ok()
        .map_err(|code| OperateError::Refused {
            what: "describe".to_owned(),
            code,
            message: answer.error_message.clone(),
        })
}

/// What is known of one mirror, and of its partitions by topic and index.
type Known = (
    DescribedMirror,
    BTreeMap<(Arc<str>, i32), DescribedMirrorPartition>,
);

/// One picture of several: of a partition the one that says most, of a mirror what any of them complains of.
pub(super) fn merge(answers: Vec<Vec<DescribedMirror>>) -> Vec<DescribedMirror> {
    let mut mirrors: BTreeMap<Arc<str>, Known> = BTreeMap::new();
    for mut mirror in answers.into_iter().flatten() {
        let topics = std::mem::take(&mut mirror.topics);
        let (known, partitions) = mirrors
            .entry(Arc::clone(&mirror.mirror_name))
            .or_insert_with(|| (mirror.clone(), BTreeMap::new()));
        merge_mirror(known, mirror);
        for topic in topics {
            for partition in topic.partitions {
                let key = (Arc::clone(&topic.topic_name), partition.partition_index);
                let better = partitions
                    .get(&key)
                    .is_none_or(|known| says_more(&partition, known));
                if better {
                    partitions.insert(key, partition);
                }
            }
        }
    }
    let mut merged = Vec::new();
    for (mut mirror, partitions) in mirrors.into_values() {
        for ((name, _), partition) in partitions {
            match mirror.topics.last_mut() {
                Some(topic) if topic.topic_name == name => topic.partitions.push(partition),
                _ => mirror.topics.push(DescribedMirrorTopic {
                    topic_name: name,
                    partitions: vec![partition],
                }),
            }
        }
        merged.push(mirror);
    }
    merged
}

fn merge_mirror(known: &mut DescribedMirror, other: DescribedMirror) {
    // Who does not know a mirror yet says so; one who knows it is right.
    if !known.error_code.is_none() && other.error_code.is_none() {
        *known = other;
        return;
    }
    if known.error_code.is_none() && !other.error_code.is_none() {
        return;
    }
    known.source_reachable &= other.source_reachable;
    known.error_message = known.error_message.take().or(other.error_message);
    if known.desired_state == -1 {
        known.desired_state = other.desired_state;
    }
    if known.source_cluster_id.is_empty() {
        known.source_cluster_id = other.source_cluster_id;
    }
    if known.source_bootstrap.is_empty() {
        known.source_bootstrap = other.source_bootstrap;
    }
}

/// True if `one` is to be shown rather than `other`: the owner knows offsets, and of two states the later one counts.
fn says_more(one: &DescribedMirrorPartition, other: &DescribedMirrorPartition) -> bool {
    let weight = |partition: &DescribedMirrorPartition| {
        (
            partition.source_offset >= 0 || partition.destination_offset >= 0,
            partition.state_epoch,
            partition.sidecar.is_some(),
        )
    };
    weight(one) > weight(other)
}

/// The error of `mirror` where it was asked for by name.
pub(super) fn find<'g>(
    gathered: &'g Gathered,
    mirror: &str,
) -> Result<&'g DescribedMirror, OperateError> {
    let refused = |code, message| OperateError::Refused {
        what: format!("mirror {mirror}"),
        code,
        message,
    };
    let mut mirrors = gathered.mirrors.iter();
    let found = mirrors
        .find(|found| *found.mirror_name == *mirror)
        .ok_or_else(|| refused(ErrorCode::UNKNOWN_CLUSTER_MIRROR, None))?;
    let message = found.error_message.clone();
    found
        .error_code
        .ok()
        .map_err(|code| refused(code, message))?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A topic with its partitions: index, source offset, state epoch.
    type Topic<'t> = (&'t str, &'t [(i32, i64, i32)]);

    fn mirror(name: &str, topics: &[Topic<'_>]) -> DescribedMirror {
        let partition =
            |(index, source_offset, state_epoch): &(i32, i64, i32)| DescribedMirrorPartition {
                partition_index: *index,
                source_offset: *source_offset,
                state_epoch: *state_epoch,
                ..DescribedMirrorPartition::default()
            };
        DescribedMirror {
            mirror_name: name.into(),
            topics: topics
                .iter()
                .map(|(name, partitions)| DescribedMirrorTopic {
                    topic_name: (*name).into(),
                    partitions: partitions.iter().map(partition).collect(),
                })
                .collect(),
            ..DescribedMirror::default()
        }
    }

    #[test]
    fn offsets_win_then_the_later_state() {
        let merged = merge(vec![
            vec![mirror(
                "m",
                &[("b", &[(1, -1, 9), (0, 5, 1)]), ("a", &[(0, -1, 3)])],
            )],
            vec![
                mirror(
                    "m",
                    &[
                        ("a", &[(0, -1, 4)]),
                        ("b", &[(0, -1, 8), (1, 7, 2), (2, -1, 0)]),
                    ],
                ),
                mirror("l", &[]),
            ],
        ]);
        let wanted = [
            mirror("l", &[]),
            mirror(
                "m",
                &[
                    ("a", &[(0, -1, 4)]),
                    ("b", &[(0, 5, 1), (1, 7, 2), (2, -1, 0)]),
                ],
            ),
        ];
        assert_eq!(merged, wanted);
    }

    #[test]
    fn who_knows_a_mirror_is_right_and_a_dead_source_is_said_by_anybody() {
        let unknown = DescribedMirror {
            error_code: ErrorCode::UNKNOWN_CLUSTER_MIRROR,
            ..mirror("m", &[])
        };
        let dead = DescribedMirror {
            source_reachable: false,
            error_message: Some("refused".into()),
            desired_state: 2,
            ..mirror("m", &[])
        };
        let plain = mirror("m", &[]);
        for answers in [
            vec![
                vec![unknown.clone()],
                vec![plain.clone()],
                vec![dead.clone()],
            ],
            vec![vec![dead.clone()], vec![plain], vec![unknown.clone()]],
        ] {
            assert_eq!(merge(answers), std::slice::from_ref(&dead));
        }
        assert_eq!(merge(vec![vec![unknown.clone()]]), [unknown]);
    }
}
