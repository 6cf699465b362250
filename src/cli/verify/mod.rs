//! `truemirror verify`: compares what consumers of both clusters see. Must not compare anything itself, and not change
//! anything.

mod json;
mod text;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval};

use super::ConfigArgs;
use crate::config::{Config, Connection, HostPort, Mirror, NamePatterns};
use crate::kafka::cluster::{Cluster, ClusterError, ClusterOptions, Side, Topics};
use crate::kafka::connect::BadAddress;
use crate::verify::{Progress, ProgressView, VerifyError, VerifyOptions, VerifyReport, verify};

/// How often a progress bar moves.
const BAR_INTERVAL: Duration = Duration::from_millis(200);

/// How often progress is said where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// What `verify` takes.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Only this mirror of the configuration
    #[arg(long, short, value_name = "NAME")]
    pub mirror: Option<String>,
    /// Only topics whose whole name matches; can be repeated
    #[arg(long, short, value_name = "REGEX", value_parser = one_pattern)]
    pub topics: Vec<String>,
    /// Only the last N offsets that both sides have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub last: Option<i64>,
    /// One JSON document on standard output instead of a table
    #[arg(long)]
    pub json: bool,
}

fn one_pattern(text: &str) -> Result<String, String> {
    NamePatterns::default().push(text).map(|()| text.to_owned())
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyCommandError {
    /// The configuration does not have the mirror.
    #[error("the configuration has no mirror {name:?}, only {}", .known.join(", "))]
    UnknownMirror {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// An address that is none; the configuration has checked them.
    #[error("bad bootstrap server")]
    Address(#[from] BadAddress),
    /// A cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The source is not the one that the configuration wants.
    #[error("mirror {mirror}: the source is cluster {found}, the configuration wants {wanted}")]
    AnotherSource {
        /// The mirror.
        mirror: String,
        /// The cluster's id.
        found: String,
        /// The configured id.
        wanted: String,
    },
    /// Nothing would be compared.
    #[error("mirror {mirror}: source and destination are the same cluster, {id}")]
    SameCluster {
        /// The mirror.
        mirror: String,
        /// The id of both.
        id: String,
    },
    /// Not one topic matches, so that nothing is proven.
    #[error("mirror {mirror}: no topic of either cluster matches")]
    NoTopics {
        /// The mirror.
        mirror: String,
    },
    /// The comparison as a whole failed.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The result cannot be written.
    #[error("cannot write the result")]
    Output(#[source] io::Error),
}

/// The result for one mirror.
#[derive(Debug)]
struct Verified<'a> {
    mirror: &'a str,
    report: VerifyReport,
}

/// Compares the mirrors and prints the result on standard output, progress on standard error. True if all is equal.
///
/// # Errors
/// See [`VerifyCommandError`].
pub async fn run(config: &Config, args: &VerifyArgs) -> Result<bool, VerifyCommandError> {
    let mirrors: Vec<&Mirror> = config
        .mirrors
        .iter()
        .filter(|mirror| args.mirror.as_ref().is_none_or(|name| *name == mirror.name))
        .collect();
    if let (Some(name), true) = (&args.mirror, mirrors.is_empty()) {
        return Err(VerifyCommandError::UnknownMirror {
            name: name.clone(),
            known: config.mirrors.iter().map(|m| m.name.clone()).collect(),
        });
    }
    let destination = cluster(
        Side::Destination,
        &config.destination.bootstrap_servers,
        &config.destination.connection,
    )?;
    let mut all = Vec::new();
    for mirror in mirrors {
        let report = verify_mirror(mirror, &destination, &config.destination.connection, args);
        all.push(Verified {
            mirror: &mirror.name,
            report: report.await?,
        });
    }
    destination.close().await;
    let shown = if args.json {
        json::encode(&all).map_err(|error| VerifyCommandError::Output(error.into()))?
    } else {
        all.iter().map(text::table).collect::<String>().into_bytes()
    };
    io::stdout()
        .write_all(&shown)
        .map_err(VerifyCommandError::Output)?;
    Ok(all.iter().all(|verified| verified.report.is_equal()))
}

async fn verify_mirror(
    mirror: &Mirror,
    destination: &Cluster,
    connection: &Connection,
    args: &VerifyArgs,
) -> Result<VerifyReport, VerifyCommandError> {
    let source = cluster(Side::Source, &mirror.source.bootstrap_servers, connection)?;
    check_clusters(mirror, &source, destination).await?;
    let mut narrowed = NamePatterns::default();
    for pattern in &args.topics {
        // Checked by clap already.
        narrowed.push(pattern).ok();
    }
    let all = args.topics.is_empty();
    let filter = &mirror.topics.filter;
    let wanted = move |name: &str| filter.matches(name) && (all || narrowed.matches(name));
    let options = VerifyOptions {
        last: args.last,
        request_timeout: connection.request_timeout,
        ..VerifyOptions::default()
    };
    let progress = Arc::new(Progress::default());
    let work = verify(&source, destination, &wanted, &options, &progress);
    let report = with_progress(&mirror.name, &progress, work).await?;
    source.close().await;
    if report.partitions.is_empty()
        && report.missing_topics.is_empty()
        && report.only_at_destination.is_empty()
    {
        return Err(VerifyCommandError::NoTopics {
            mirror: mirror.name.clone(),
        });
    }
    Ok(report)
}

fn cluster(
    side: Side,
    servers: &[HostPort],
    connection: &Connection,
) -> Result<Cluster, BadAddress> {
    let servers = servers.iter().map(ToString::to_string).collect();
    Cluster::new(ClusterOptions {
        client_id: connection.client_id.clone(),
        connect_timeout: connection.connect_timeout,
        request_timeout: connection.request_timeout,
        socket_buffer_bytes: Some(connection.socket_buffer_bytes),
        ..ClusterOptions::new(side, servers)
    })
}

/// Both answer, and they are who they should be.
async fn check_clusters(
    mirror: &Mirror,
    source: &Cluster,
    destination: &Cluster,
) -> Result<(), VerifyCommandError> {
    let nothing = || Topics::Named(Vec::new());
    tokio::try_join!(source.refresh(nothing()), destination.refresh(nothing()))?;
    let found = source.cluster_id();
    if let (Some(wanted), Some(found)) = (&mirror.source.cluster_id, &found)
        && **found != **wanted
    {
        return Err(VerifyCommandError::AnotherSource {
            mirror: mirror.name.clone(),
            found: found.to_string(),
            wanted: wanted.clone(),
        });
    }
    if let Some(id) = found
        && destination.cluster_id().as_ref() == Some(&id)
    {
        return Err(VerifyCommandError::SameCluster {
            mirror: mirror.name.clone(),
            id: id.to_string(),
        });
    }
    Ok(())
}

/// Does the work and says how far it is.
async fn with_progress<T>(mirror: &str, progress: &Progress, work: impl Future<Output = T>) -> T {
    let terminal = io::stderr().is_terminal();
    let mut ticks = interval(if terminal {
        BAR_INTERVAL
    } else {
        LINE_INTERVAL
    });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick comes at once, when there is nothing to say yet.
    ticks.tick().await;
    let bar = terminal.then(|| bar(mirror));
    let mut work = Box::pin(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => {
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                return done;
            }
            _ = ticks.tick() => {
                let view = progress.view();
                if let Some(bar) = &bar {
                    bar.set_length(view.offsets);
                    bar.set_position(view.offsets_done);
                    bar.set_message(short(&view));
                } else {
                    // Nobody to tell is no reason to stop.
                    writeln!(io::stderr(), "mirror {mirror}: {}", line(&view)).ok();
                }
            }
        }
    }
}

fn bar(mirror: &str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_prefix(mirror.to_owned());
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {percent}% {msg}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn short(view: &ProgressView) -> String {
    format!(
        "{} records, {} of {} partitions",
        HumanCount(view.records),
        HumanCount(view.partitions_done),
        HumanCount(view.partitions)
    )
}

fn line(view: &ProgressView) -> String {
    if view.partitions == 0 {
        return "reading where the logs end".to_owned();
    }
    format!(
        "verified {} of {} offsets, {} records, {} of {} partitions done",
        HumanCount(view.offsets_done),
        HumanCount(view.offsets),
        HumanCount(view.records),
        HumanCount(view.partitions_done),
        HumanCount(view.partitions)
    )
}
