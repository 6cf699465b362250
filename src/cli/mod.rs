//! The command line: what can be said. Must not hold logic that the daemon needs.

pub mod check;
pub mod operate;
pub mod verify;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The exit codes of every command.
pub mod exit {
    /// Done.
    pub const DONE: u8 = 0;
    /// Refused or failed.
    pub const FAILED: u8 = 1;
    /// The command line is wrong (clap's own number).
    pub const USAGE: u8 = 2;
    /// The configuration is wrong (`EX_CONFIG` of sysexits.h).
    pub const BAD_CONFIG: u8 = 78;
}

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "truemirror",
    version,
    about = "Mirrors topics of a Kafka cluster to another with identical offsets, on unmodified brokers",
    after_help = AFTER_HELP,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon until SIGTERM or SIGINT
    ///
    /// Mirrors every topic that the configuration names, until it is told to stop. It may be killed at any moment: the
    /// destination's log is the only progress it keeps. A second signal ends it at once. Its mirrors are taken from the file
    /// again at SIGHUP, and when the file has changed.
    Run(ConfigArgs),
    /// Say what would hinder the mirrors of a configuration, and what to do about it
    ///
    /// Looks at the configuration, connections, cluster ids, API versions, brokers, permissions and topics, and changes
    /// nothing on either side. Exits with 1 if anything would not work.
    Check(CheckArgs),
    /// Compare both clusters record by record, as their consumers see them
    ///
    /// Reads every mirrored topic on both sides, from the first offset to where the logs ended at the start, and says
    /// where they differ first. A destination that is behind is not different. Exits with 0 only if all is equal.
    Verify(verify::VerifyArgs),
    /// Name the mirrors of a running truemirror
    #[command(after_help = LIST_HELP)]
    List(operate::ListArgs),
    /// Show how far every mirrored partition is, and why where it is not
    ///
    /// Asks the process at --server and then all others of the destination, since each knows how far its own partitions are. One
    /// that does not answer is named; its partitions are shown without offsets.
    #[command(after_help = DESCRIBE_HELP)]
    Describe(operate::DescribeArgs),
    /// Mirror topics that are stopped or were never started
    ///
    /// Only topics within include of the mirror's configuration can be started, and only those that no other mirror has. Names are
    /// taken as they are; expressions are looked up among the topics of the source.
    /// A topic that was stopped differs from its source since then: it is FAILED, or deleted and mirrored from the beginning, as
    /// mirror.policy.on_divergence says.
    #[command(after_help = START_HELP)]
    Start(operate::StartArgs),
    /// Let topics stand still, until resumed
    ///
    /// Nothing is copied; the topics stay read-only copies, and their configs held. The reversible one of pause and stop.
    #[command(after_help = PAUSE_HELP)]
    Pause(operate::ChangeArgs),
    /// Mirror paused topics again, from where they stand
    #[command(after_help = RESUME_HELP)]
    Resume(operate::ChangeArgs),
    /// Make ordinary, writable topics of mirrored ones: failover. One-way
    ///
    /// Copies what the source still has if it answers, fences off late appends, and gives the topics their own configs back. It works
    /// with a dead source, too. The mirror cannot take a stopped topic up again where it is; pause is the reversible one. Asks unless
    /// --yes is given; without a terminal to ask at, it refuses.
    #[command(visible_alias = "promote", after_help = STOP_HELP)]
    Stop(operate::StopArgs),
    /// Try FAILED partitions again now, those included that would not be tried again by themselves
    ///
    /// Remove the cause first: truemirror describe --failed names it.
    #[command(after_help = RECOVER_HELP)]
    Recover(operate::ChangeArgs),
    /// Forget a mirror of which every topic is stopped
    ///
    /// Removes what is remembered of it, and no topic. A mirror that is still in the configuration comes back when truemirror is started
    /// again.
    #[command(after_help = DELETE_HELP)]
    Delete(operate::DeleteArgs),
}

/// `check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// What to check.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Which configuration a command works by.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "TRUEMIRROR_CONFIG", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

/// Where the configuration is looked for if nobody says another place.
pub const DEFAULT_CONFIG: &str = "/etc/truemirror/truemirror.toml";

const AFTER_HELP: &str = "\
Examples:
  truemirror check --config truemirror.toml
  truemirror run --config truemirror.toml
  truemirror verify --topics 'orders.*' --last 10000
  RUST_LOG=info,truemirror::kafka=debug truemirror run
  truemirror describe --failed
  truemirror stop --mirror eu-to-us --topics orders --dry-run
  curl http://127.0.0.1:9495/api/v1/status

Exit codes:
  0   done
  1   refused or failed
  2   wrong usage
  78  bad configuration: every fault is listed, one per line, with line and column";

const LIST_HELP: &str = "\
Example:
  truemirror list --server sidecar-1.example.org:9494";

const DESCRIBE_HELP: &str = "\
Examples:
  truemirror describe --mirror eu-to-us --watch
  truemirror describe --failed
  truemirror describe --topics 'orders,payments-.*' --json";

const START_HELP: &str = "\
Example:
  truemirror start --mirror eu-to-us --topics 'orders,payments-.*' --exclude 'payments-test.*' --dry-run";

const PAUSE_HELP: &str = "\
Example:
  truemirror pause --mirror eu-to-us --topics orders";

const RESUME_HELP: &str = "\
Example:
  truemirror resume --mirror eu-to-us --all";

const STOP_HELP: &str = "\
Examples:
  truemirror stop --mirror eu-to-us --topics orders --dry-run     what would happen
  truemirror stop --mirror eu-to-us --topics orders
  truemirror promote --mirror eu-to-us --all --yes                for scripts";

const RECOVER_HELP: &str = "\
Example:
  truemirror recover --mirror eu-to-us --topics orders";

const DELETE_HELP: &str = "\
Example:
  truemirror delete --mirror eu-to-us --dry-run";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_change_needs_topics_or_all_of_them_and_not_both() {
        for (line, fine) in [
            ("truemirror pause --mirror m --topics a,b", true),
            ("truemirror pause -m m --all", true),
            ("truemirror promote -m m -t a --yes", true),
            ("truemirror pause -m m", false),
            ("truemirror pause -m m --all --topics a", false),
            ("truemirror pause --topics a", false),
            ("truemirror pause -m m --topics (", false),
            ("truemirror pause -m m --topics a,", false),
            ("truemirror describe --watch --json", false),
            ("truemirror list --server nowhere", false),
            ("truemirror list --timeout 0s", false),
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert_eq!(parsed.is_ok(), fine, "{line}: {parsed:?}");
        }
    }

    #[test]
    fn the_config_has_a_place_by_default() {
        // The environment variable is not set in tests.
        let cli = Cli::try_parse_from(["truemirror", "run"]).unwrap();
        let Command::Run(args) = cli.command else {
            panic!("not run: {cli:?}");
        };
        assert_eq!(args.config, PathBuf::from(DEFAULT_CONFIG));
    }
}
