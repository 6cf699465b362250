//! `truemirror check`: whether a configuration would work, as a table of what was looked at, what was found and what to
//! do. Must not change anything on either side, and not need the daemon.

mod clusters;
mod group;
mod permissions;
mod report;
mod state;
mod topics;

use std::sync::Arc;

use self::clusters::{Reached, destination_needs, reach, source_needs};
pub use self::report::{CheckReport, Row, Verdict};
use crate::config::{Config, Mirror};
use crate::kafka::admin::describe_broker_configs;
use crate::kafka::cluster::Side;
use crate::kafka::contact::chain;

/// Looks at everything that the daemon will need. Takes at most a few times `connect_timeout` and `request_timeout` per
/// cluster, whoever does not answer.
pub async fn check(config: &Config) -> CheckReport {
    let mut report = CheckReport::default();
    let mirrors = config.mirrors.len();
    report.ok("configuration", "all", format!("mirrors: {mirrors}"));
    let connection = &config.destination.connection;
    let servers = &config.destination.bootstrap_servers;
    let destination = reach(
        Side::Destination,
        "destination",
        servers,
        connection,
        &destination_needs(),
        &mut report,
    )
    .await;
    if let Some(destination) = &destination {
        broker_configs(config, destination, &mut report).await;
        state::topic(&config.state, destination, &mut report).await;
        state::markers(destination, &mut report).await;
        group::group(&config.group, destination, &mut report).await;
    }
    for mirror in &config.mirrors {
        let source = reach(
            Side::Source,
            &mirror.name,
            &mirror.source.bootstrap_servers,
            connection,
            &source_needs(),
            &mut report,
        )
        .await;
        if let Some(source) = &source {
            identity(mirror, source, destination.as_ref(), &mut report);
        }
        if let (Some(source), Some(destination)) = (&source, &destination) {
            topics::check(mirror, source, destination, &mut report).await;
        }
        if let Some(source) = source {
            source.cluster.close().await;
        }
    }
    if let Some(destination) = destination {
        destination.cluster.close().await;
    }
    report
}

/// Whether the source is the cluster that it should be, and not the destination.
fn identity(
    mirror: &Mirror,
    source: &Reached,
    destination: Option<&Reached>,
    report: &mut CheckReport,
) {
    const CHECK: &str = "cluster id";
    let id_of = |reached: &Reached| reached.metadata.cluster_id.clone();
    let Some(found) = id_of(source) else {
        return report.warn(
            CHECK,
            &mirror.name,
            "the source gives no cluster id",
            "nothing: only a mix-up of clusters cannot be noticed",
        );
    };
    let text = |id: &Arc<str>| id.to_string();
    if destination.and_then(id_of).is_some_and(|id| id == found) {
        return report.fail(
            CHECK,
            &mirror.name,
            format!("source and destination are the same cluster, {found}"),
            "correct bootstrap_servers of the source or of the destination",
        );
    }
    match &mirror.source.cluster_id {
        Some(wanted) if **wanted != *found => report.fail(
            CHECK,
            &mirror.name,
            format!("source is {found}, mirror.source.cluster_id is {wanted}"),
            "correct mirror.source.bootstrap_servers or mirror.source.cluster_id",
        ),
        _ => report.ok(CHECK, &mirror.name, text(&found)),
    }
}

/// What the destination's brokers say of themselves: how long they remember producers, since what is in flight may be no
/// older, and for how long they let members of a group be silent.
async fn broker_configs(config: &Config, destination: &Reached, report: &mut CheckReport) {
    const CHECK: &str = "producer.id.expiration.ms";
    let Some((broker, connection)) = destination.brokers.first() else {
        return;
    };
    let timeout = destination.timeout;
    match describe_broker_configs(connection, *broker, timeout).await {
        Ok(configs) => {
            let value = configs
                .get(CHECK)
                .and_then(|entry| entry.value.clone())
                .unwrap_or_else(|| "86400000".into());
            report.ok(CHECK, "destination", value.to_string());
            group::session(&config.group, *broker, &configs, report);
        }
        Err(error) => report.warn(
            CHECK,
            "destination",
            chain(&error).to_string(),
            format!(
                "{}; without it, Kafka's default of one day is assumed, and group.session_timeout is not compared with the brokers' limits",
                permissions::grant(&destination.server, &["DescribeConfigs"], &["--cluster"])
            ),
        ),
    }
}
