//! The binary: command line, configuration, logging, exit code. Must not hold anything else.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Runtime;
use tracing::error;
use tracing_subscriber::EnvFilter;
use truemirror::app;
use truemirror::cli::operate::{self, OperateError};
use truemirror::cli::verify::{self as comparing, VerifyArgs};
use truemirror::cli::{CheckArgs, Cli, Command, ConfigArgs, check as checking, exit};
use truemirror::config::{Config, Log, LogFormat};
use truemirror::kafka::contact::chain;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
        Command::Verify(args) => verify(&args),
        Command::List(args) => operate(operate::list(&args)),
        Command::Describe(args) => operate(operate::describe(&args)),
        Command::Start(args) => operate(operate::start(&args)),
        Command::Pause(args) => operate(operate::pause(&args)),
        Command::Resume(args) => operate(operate::resume(&args)),
        Command::Stop(args) => operate(operate::stop(&args)),
        Command::Recover(args) => operate(operate::recover(&args)),
        Command::Delete(args) => operate(operate::delete(&args)),
    };
    ExitCode::from(done.unwrap_or_else(|code| code))
}

fn run(args: &ConfigArgs) -> Result<u8, u8> {
    let (config, runtime) = prepare(args, None)?;
    let running = app::run(config, &args.config);
    runtime.block_on(running).map_err(|reason| {
        error!(error = %chain(&reason), "ended");
        if reason.is_bad_config() {
            exit::BAD_CONFIG
        } else {
            exit::FAILED
        }
    })?;
    Ok(exit::DONE)
}

fn check(args: &CheckArgs) -> Result<u8, u8> {
    let (config, runtime) = prepare(&args.config, Some("error"))?;
    let report = runtime.block_on(checking::check(&config));
    let text = if args.json {
        serde_json::to_string_pretty(&report).unwrap_or_else(|error| error.to_string())
    } else {
        report.to_string()
    };
    // Whoever closed standard output does not want to read it; the exit code still says it.
    writeln!(io::stdout(), "{text}").ok();
    Ok(if report.failed() {
        exit::FAILED
    } else {
        exit::DONE
    })
}

fn verify(args: &VerifyArgs) -> Result<u8, u8> {
    let (config, runtime) = prepare(&args.config, Some("warn"))?;
    match runtime.block_on(comparing::run(&config, args)) {
        Ok(true) => Ok(exit::DONE),
        Ok(false) => Ok(exit::FAILED),
        Err(reason) => Err(failed(chain(&reason))),
    }
}

/// A command that asks a running truemirror. It needs no configuration; what it logs is an error, or what RUST_LOG names.
fn operate(command: impl Future<Output = Result<bool, OperateError>>) -> Result<u8, u8> {
    let log = Log {
        level: "error".to_owned(),
        format: LogFormat::Text,
    };
    start_logging(&log).map_err(failed)?;
    match runtime()?.block_on(command) {
        Ok(true) => Ok(exit::DONE),
        Ok(false) => Err(exit::FAILED),
        Err(reason) => {
            let code = failed(&reason);
            Err(if reason.is_usage() { exit::USAGE } else { code })
        }
    }
}

/// The checked configuration and a runtime, with logging set up. The configured log level is the daemon's: whoever waits
/// for a table wants to read only what is wrong, and names another level.
fn prepare(args: &ConfigArgs, level: Option<&str>) -> Result<(Config, Runtime), u8> {
    let config = Config::load(&args.config).map_err(bad_config)?;
    let mut log = config.log.clone();
    if let Some(level) = level {
        log.level = level.to_owned();
    }
    start_logging(&log).map_err(bad_config)?;
    Ok((config, runtime()?))
}

fn runtime() -> Result<Runtime, u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| failed(format_args!("cannot start the runtime: {error}")))
}

/// Where standard error is closed nobody can be told; the exit code still says it.
fn failed(reason: impl Display) -> u8 {
    writeln!(io::stderr(), "{reason}").ok();
    exit::FAILED
}

fn bad_config(reason: impl Display) -> u8 {
    failed(reason);
    exit::BAD_CONFIG
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
