//! The operator's commands: they look at mirrors and change what is wanted of them, over the listener of a running truemirror.
//! Must not need a configuration, and not decide what is allowed.

mod change;
mod json;
mod members;
mod server;
mod show;
mod topics;
mod words;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use tokio::time::sleep;

use self::change::{Change, Order};
use self::members::{find, gather};
use self::server::Server;
pub use self::server::{OperateError, ServerArgs};
pub use self::topics::TopicArgs;
use self::topics::{Selection, name_or_pattern};
use crate::config::NamePatterns;
use crate::wire::mirror_rpc::ListClusterMirrorsRequest;

/// How often `describe --watch` looks.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// What `list` takes.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Who is asked.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What `describe` takes.
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// Who is asked.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Only this mirror
    #[arg(long, short, value_name = "NAME")]
    pub mirror: Option<String>,
    /// Only these topics: names or regular expressions for whole names, separated by commas; can be repeated
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', value_parser = name_or_pattern)]
    pub topics: Vec<String>,
    /// Only FAILED partitions, with what is to be known of them
    #[arg(long)]
    pub failed: bool,
    /// Look again every two seconds, until interrupted
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Which mirror is changed, and whether really.
#[derive(Debug, Args)]
pub struct MirrorArgs {
    /// Who is asked.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The mirror
    #[arg(long, short, value_name = "NAME")]
    pub mirror: String,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What `pause`, `resume` and `recover` take.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Of which mirror.
    #[command(flatten)]
    pub of: MirrorArgs,
    /// Which topics.
    #[command(flatten)]
    pub topics: TopicArgs,
}

/// What `start` takes.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// What is started.
    #[command(flatten)]
    pub change: ChangeArgs,
    /// Regular expressions for whole names that are left out, separated by commas; can be repeated
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_pattern)]
    pub exclude: Vec<String>,
}

fn one_pattern(text: &str) -> Result<String, String> {
    NamePatterns::default().push(text).map(|()| text.to_owned())
}

/// What `stop` takes.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// What is stopped.
    #[command(flatten)]
    pub change: ChangeArgs,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// What `delete` takes.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Which mirror.
    #[command(flatten)]
    pub of: MirrorArgs,
}

/// Prints the mirrors.
///
/// # Errors
/// See [`OperateError`].
pub async fn list(args: &ListArgs) -> Result<bool, OperateError> {
    let server = Server::connect(&args.server.server, args.server.timeout).await?;
    let request = ListClusterMirrorsRequest {
        include_topic_names: args.json,
    };
    let mut answer = server.call(&request).await?;
    answer
        .error_code
        .ok()
        .map_err(|code| OperateError::Refused {
            what: "list".to_owned(),
            code,
            message: answer.error_message.clone(),
        })?;
    answer
        .mirrors
        .sort_by(|one, other| one.mirror_name.cmp(&other.mirror_name));
    let shown = if args.json {
        json::mirrors(&answer.mirrors).map_err(|error| OperateError::Output(error.into()))?
    } else {
        show::listed(&answer.mirrors).into_bytes()
    };
    print(&shown)?;
    Ok(true)
}

/// Prints how far the partitions are, once or again and again.
///
/// # Errors
/// See [`OperateError`].
pub async fn describe(args: &DescribeArgs) -> Result<bool, OperateError> {
    if !args.watch {
        let shown = picture(args).await?;
        return print(&shown).map(|()| true);
    }
    let clear = io::stdout().is_terminal();
    // One for all turns: an interrupt between two of them would be nobody's.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let mut shown = if clear {
            // Cursor home, and everything behind it erased (ECMA-48).
            b"\x1b[H\x1b[2J".to_vec()
        } else {
            Vec::new()
        };
        let looked = tokio::select! {
            looked = picture(args) => looked,
            _ = &mut interrupted => return Ok(true),
        };
        match looked {
            Ok(picture) => shown.extend(picture),
            // It may come back, and whoever watches wants to see that.
            Err(error) => shown.extend(format!("{error}\n").into_bytes()),
        }
        shown.push(b'\n');
        print(&shown)?;
        tokio::select! {
            () = sleep(WATCH_INTERVAL) => {}
            _ = &mut interrupted => return Ok(true),
        }
    }
}

async fn picture(args: &DescribeArgs) -> Result<Vec<u8>, OperateError> {
    let gathered = gather(&args.server, args.mirror.as_deref()).await?;
    if let Some(mirror) = &args.mirror {
        find(&gathered, mirror)?;
    }
    let selection = Selection::new(&args.topics, args.topics.is_empty());
    let rows = show::rows(&gathered, args.failed, |topic| selection.means(topic));
    if args.json {
        for silent in &gathered.silent {
            // Standard output is for a program.
            writeln!(io::stderr(), "{}", show::unanswered(silent)).ok();
        }
        return json::partitions(&rows).map_err(|error| OperateError::Output(error.into()));
    }
    let shown = if args.failed {
        show::failed(&gathered, &rows)
    } else {
        show::described(&gathered, &rows)
    };
    Ok(shown.into_bytes())
}

fn print(bytes: &[u8]) -> Result<(), OperateError> {
    let mut stdout = io::stdout();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(OperateError::Output)
}

impl MirrorArgs {
    fn order(&self) -> Order<'_> {
        Order {
            server: &self.server,
            mirror: &self.mirror,
            dry_run: self.dry_run,
        }
    }
}

impl ChangeArgs {
    fn selection(&self) -> Selection {
        Selection::new(&self.topics.topics, self.topics.all)
    }

    async fn ask(&self, change: Change, consent: bool) -> Result<bool, OperateError> {
        let selection = self.selection();
        self.of.order().change(change, &selection, consent).await
    }
}

/// Wants topics to be mirrored. True if nothing was refused.
///
/// # Errors
/// See [`OperateError`].
pub async fn start(args: &StartArgs) -> Result<bool, OperateError> {
    let selection = args.change.selection();
    args.change
        .of
        .order()
        .start(&selection, &args.exclude)
        .await
}

/// Wants topics to stand still. True if nothing was refused.
///
/// # Errors
/// See [`OperateError`].
pub async fn pause(args: &ChangeArgs) -> Result<bool, OperateError> {
    args.ask(Change::Pause, true).await
}

/// Wants paused topics to be mirrored again. True if nothing was refused.
///
/// # Errors
/// See [`OperateError`].
pub async fn resume(args: &ChangeArgs) -> Result<bool, OperateError> {
    args.ask(Change::Resume, true).await
}

/// Wants topics to become ordinary ones, after having asked. True if nothing was refused.
///
/// # Errors
/// See [`OperateError`].
pub async fn stop(args: &StopArgs) -> Result<bool, OperateError> {
    args.change.ask(Change::Stop, args.yes).await
}

/// Wants FAILED partitions to be tried again. True if nothing was refused.
///
/// # Errors
/// See [`OperateError`].
pub async fn recover(args: &ChangeArgs) -> Result<bool, OperateError> {
    args.ask(Change::Recover, true).await
}

/// Wants a mirror to be forgotten. True if it is.
///
/// # Errors
/// See [`OperateError`].
pub async fn delete(args: &DeleteArgs) -> Result<bool, OperateError> {
    args.of.order().delete().await
}
