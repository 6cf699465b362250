//! The command line: what can be said. Must not hold logic that the daemon needs.

pub mod check;
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
    /// destination's log is the only progress it keeps. A second signal ends it at once.
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
  curl http://127.0.0.1:9495/api/v1/status

Exit codes:
  0   done
  1   refused or failed
  2   wrong usage
  78  bad configuration: every fault is listed, one per line, with line and column";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
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
