//! The binary: command line, configuration, logging, exit code. Must not hold anything else.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::process::ExitCode;

use clap::Parser;
use tracing::error;
use tracing_subscriber::EnvFilter;
use truemirror::cli::{CheckArgs, Cli, Command, ConfigArgs, exit};
use truemirror::config::{Config, Log, LogFormat};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
    }
}

fn run(args: &ConfigArgs) -> ExitCode {
    let config = match prepare(args) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| Ok(runtime.block_on(truemirror::app::run(config))?));
    match outcome {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(reason) => {
            error!(error = format!("{reason:#}"), "ended");
            ExitCode::from(exit::FAILED)
        }
    }
}

fn check(args: &CheckArgs) -> ExitCode {
    let config = match Config::load(&args.config.config) {
        Ok(config) => config,
        Err(reason) => return bad_config(reason),
    };
    // The table says what there is to say.
    let log = Log {
        level: "error".to_owned(),
        format: config.log.format,
    };
    if let Err(reason) = start_logging(&log) {
        return bad_config(reason);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let report = match runtime {
        Ok(runtime) => runtime.block_on(truemirror::cli::check::check(&config)),
        Err(reason) => {
            error!(error = %reason, "ended");
            return ExitCode::from(exit::FAILED);
        }
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report).unwrap_or_else(|error| error.to_string())
    } else {
        report.to_string()
    };
    // Whoever closed standard output does not want to read it; the exit code still says it.
    writeln!(io::stdout(), "{text}").ok();
    ExitCode::from(if report.failed() {
        exit::FAILED
    } else {
        exit::DONE
    })
}

/// The checked configuration, with logging set up by it.
fn prepare(args: &ConfigArgs) -> Result<Config, ExitCode> {
    let config = Config::load(&args.config).map_err(bad_config)?;
    start_logging(&config.log).map_err(bad_config)?;
    Ok(config)
}

fn bad_config(reason: impl Display) -> ExitCode {
    // Where standard error is closed nobody can be told; the exit code still says it.
    writeln!(io::stderr(), "{reason}").ok();
    ExitCode::from(exit::BAD_CONFIG)
}

fn start_logging(log: &Log) -> Result<(), String> {
    let directives = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let filter =
        EnvFilter::try_new(directives.as_ref().unwrap_or(&log.level)).map_err(|error| {
            format!(
                "RUST_LOG: found {:?}: {error}",
                directives.unwrap_or_default()
            )
        })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match log.format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

fn log_panic(info: &panic::PanicHookInfo<'_>) {
    let message = info.payload_as_str().unwrap_or("of an unknown kind");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        error!(message = "panic", panic = message, place, %backtrace);
    } else {
        error!(message = "panic", panic = message, place);
    }
}
