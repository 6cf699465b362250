//! The binary: command line, configuration, logging, exit code. Must not hold anything else.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::process::ExitCode;

use clap::Parser;
use tracing::error;
use tracing_subscriber::EnvFilter;
use truemirror::app::AppError;
use truemirror::cli::verify::{self, VerifyArgs};
use truemirror::cli::{Cli, Command, ConfigArgs, exit};
use truemirror::config::{Config, Log, LogFormat};
use truemirror::kafka::contact::chain;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Verify(args) => compare(&args),
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
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(truemirror::app::run(config)),
        Err(source) => Err(AppError::Runtime(source)),
    };
    match outcome {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(reason) => {
            error!(error = %chain(&reason), "ended");
            ExitCode::from(if reason.is_bad_config() {
                exit::BAD_CONFIG
            } else {
                exit::FAILED
            })
        }
    }
}

fn compare(args: &VerifyArgs) -> ExitCode {
    // The configured log is the daemon's: whoever waits for a table wants to read only what is wrong.
    let quiet = Log {
        level: "warn".to_owned(),
        format: LogFormat::Text,
    };
    let config = Config::load(&args.config.config).map_err(bad_config);
    let config = config.and_then(|config| {
        start_logging(&quiet).map_err(bad_config)?;
        Ok(config)
    });
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime
            .block_on(verify::run(&config, args))
            .map_err(|reason| chain(&reason).to_string()),
        Err(reason) => Err(format!("cannot start the runtime: {reason}")),
    };
    match outcome {
        Ok(true) => ExitCode::from(exit::DONE),
        Ok(false) => ExitCode::from(exit::FAILED),
        Err(reason) => {
            writeln!(io::stderr(), "{reason}").ok();
            ExitCode::from(exit::FAILED)
        }
    }
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
