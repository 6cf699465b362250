//! Commands that change what is wanted of topics: what is asked, and how the outcome is told. Must not decide what is allowed:
//! that is the server's.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;

use super::members::{find, gather};
use super::server::{OperateError, Server, ServerArgs};
use super::show::unanswered;
use super::topics::{Selection, resolve};
use super::words::refusal;
use crate::domain::state::PartitionState::{self, Failed, Paused, Pausing, Stopped, Stopping};
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::{
    DeleteClusterMirrorRequest, MirrorTopicName, MirrorTopicResult, PauseMirrorTopicsRequest,
    RecoverMirrorTopicsRequest, ResumeMirrorTopicsRequest, StartMirrorTopic,
    StartMirrorTopicsRequest, StopMirrorTopicsRequest,
};

/// What may be asked of topics that are mirrored already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Pause,
    Resume,
    Stop,
    Recover,
}

impl Change {
    /// True if a topic whose partitions have these states has something to do.
    fn useful(self, states: &[PartitionState]) -> bool {
        let any = |wanted: &[PartitionState]| states.iter().any(|state| wanted.contains(state));
        let any_but = |not: &[PartitionState]| states.iter().any(|state| !not.contains(state));
        match self {
            Self::Pause => any_but(&[Pausing, Paused, Stopping, Stopped]),
            Self::Resume => any(&[Pausing, Paused]),
            Self::Stop => any_but(&[Stopping, Stopped]),
            Self::Recover => any(&[Failed]),
        }
    }

    /// What a topic does from now on.
    const fn doing(self) -> &'static str {
        match self {
            Self::Pause => "pausing",
            Self::Resume => "resuming",
            Self::Stop => "stopping",
            Self::Recover => "tried again",
        }
    }

    /// What to wait for.
    const fn then(self) -> &'static str {
        match self {
            Self::Stop => "; writable as soon as truemirror describe shows STOPPED",
            Self::Pause | Self::Resume | Self::Recover => "",
        }
    }

    /// What would become of it.
    const fn would(self) -> &'static str {
        match self {
            Self::Pause => "would be paused",
            Self::Resume => "would be resumed",
            Self::Stop => "would be stopped",
            Self::Recover => "would be tried again",
        }
    }
}

/// What the server says became of topics.
struct Outcome {
    code: ErrorCode,
    message: Option<Arc<str>>,
    topics: Vec<MirrorTopicResult>,
}

macro_rules! outcome {
    ($server:expr, $request:expr) => {{
        let answer = $server.call(&$request).await?;
        Outcome {
            code: answer.error_code,
            message: answer.error_message,
            topics: answer.topics,
        }
    }};
}

/// Where the lines of an outcome go.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) server: &'a ServerArgs,
    pub(super) mirror: &'a str,
    pub(super) dry_run: bool,
}

impl Order<'_> {
    /// Asks for `change`; true if nothing was refused.
    pub(super) async fn change(
        &self,
        change: Change,
        selection: &Selection,
        consent: bool,
    ) -> Result<bool, OperateError> {
        let asked = change == Change::Stop && !self.dry_run && !consent;
        if asked && !io::stdin().is_terminal() {
            return Err(OperateError::NoConsent);
        }
        let Some(topics) = self.resolve(change, selection).await? else {
            return Ok(true);
        };
        if asked {
            self.ask(&topics)?;
        }
        let server = Server::connect(&self.server.server, self.server.timeout).await?;
        let mirror_name = Arc::from(self.mirror);
        let name = |name: Arc<str>| MirrorTopicName { topic_name: name };
        let topics = topics.into_iter().map(name).collect();
        let dry_run = self.dry_run;
        let outcome = match change {
            Change::Pause => outcome!(
                server,
                PauseMirrorTopicsRequest {
                    mirror_name,
                    topics,
                    state_validation_offset: -1,
                    dry_run,
                }
            ),
            Change::Resume => outcome!(
                server,
                ResumeMirrorTopicsRequest {
                    mirror_name,
                    topics,
                    state_validation_offset: -1,
                    dry_run,
                }
            ),
            Change::Stop => outcome!(
                server,
                StopMirrorTopicsRequest {
                    mirror_name,
                    topics,
                    state_validation_offset: -1,
                    patterns: Vec::new(),
                    dry_run,
                }
            ),
            Change::Recover => outcome!(
                server,
                RecoverMirrorTopicsRequest {
                    mirror_name,
                    topics,
                    dry_run,
                }
            ),
        };
        self.tell(outcome, change.doing(), change.would(), change.then())
    }

    /// The topics to name, or `None` if there is nothing to do, which is said.
    async fn resolve(
        &self,
        change: Change,
        selection: &Selection,
    ) -> Result<Option<Vec<Arc<str>>>, OperateError> {
        if !selection.has_patterns() {
            return Ok(Some(resolve(selection, None, |_| true).topics));
        }
        let gathered = gather(self.server, Some(self.mirror)).await?;
        for silent in &gathered.silent {
            say(&mut io::stderr(), &unanswered(silent))?;
        }
        let mirror = find(&gathered, self.mirror)?;
        let resolved = resolve(selection, Some(mirror), |states| change.useful(states));
        if !resolved.topics.is_empty() {
            return Ok(Some(resolved.topics));
        }
        if resolved.left_out.is_empty() {
            return Err(OperateError::NoTopic {
                mirror: self.mirror.to_owned(),
                patterns: selection.texts(),
            });
        }
        let left_out = resolved.left_out.len();
        let line = format!(
            "mirror {}: nothing to do: {} found, none {}",
            self.mirror,
            topics_of(left_out),
            change.would()
        );
        say(&mut io::stdout(), &line)?;
        Ok(None)
    }

    /// One word must be typed: a return key that is still pressed is no consent.
    fn ask(&self, topics: &[Arc<str>]) -> Result<(), OperateError> {
        let names: Vec<&str> = topics.iter().map(|name| &**name).collect();
        let question = format!(
            "Stopping is one-way: these topics become ordinary, writable ones; mirrored again, they begin from nothing.\n\
             (truemirror pause can be undone.)\n\n  mirror  {}\n  topics  {}\n\nType yes to stop them: ",
            self.mirror,
            names.join(", ")
        );
        let mut stderr = io::stderr();
        let asked = stderr
            .write_all(question.as_bytes())
            .and_then(|()| stderr.flush());
        asked.map_err(OperateError::Output)?;
        let mut answer = String::new();
        io::stdin()
            .lock()
            .read_line(&mut answer)
            .map_err(|_| OperateError::NoConsent)?;
        if answer.trim().eq_ignore_ascii_case("yes") {
            Ok(())
        } else {
            Err(OperateError::Declined)
        }
    }

    /// Asks for topics to be mirrored; true if nothing was refused. Patterns are the server's to look up: only it knows the topics of
    /// the source.
    pub(super) async fn start(
        &self,
        selection: &Selection,
        exclude: &[String],
    ) -> Result<bool, OperateError> {
        let server = Server::connect(&self.server.server, self.server.timeout).await?;
        let topic = |name: &Arc<str>| StartMirrorTopic {
            topic_name: Arc::clone(name),
            ..StartMirrorTopic::default()
        };
        let request = StartMirrorTopicsRequest {
            mirror_name: Arc::from(self.mirror),
            topics: selection.names.iter().map(topic).collect(),
            state_validation_offset: -1,
            include_patterns: selection.patterns.texts().map(Arc::from).collect(),
            exclude_patterns: exclude
                .iter()
                .map(|text| Arc::from(text.as_str()))
                .collect(),
            dry_run: self.dry_run,
        };
        let outcome = outcome!(server, request);
        if outcome.code.is_none() && outcome.topics.is_empty() {
            return Err(OperateError::NoTopic {
                mirror: self.mirror.to_owned(),
                patterns: selection.texts(),
            });
        }
        self.tell(outcome, "starting", "would be started", "")
    }

    /// Asks for the mirror to be forgotten.
    pub(super) async fn delete(&self) -> Result<bool, OperateError> {
        let server = Server::connect(&self.server.server, self.server.timeout).await?;
        let request = DeleteClusterMirrorRequest {
            mirror_name: Arc::from(self.mirror),
            state_validation_offset: -1,
            dry_run: self.dry_run,
        };
        let answer = server.call(&request).await?;
        let what = format!("mirror {}", self.mirror);
        let done = if self.dry_run {
            "would be deleted"
        } else {
            "deleted"
        };
        match answer.error_code.ok() {
            Ok(()) => say(&mut io::stdout(), &format!("{what}: {done}")).map(|()| true),
            Err(code) => Err(OperateError::Refused {
                what,
                code,
                message: answer.error_message,
            }),
        }
    }

    /// One line for each topic, and one that counts; true if nothing was refused.
    fn tell(
        &self,
        outcome: Outcome,
        doing: &str,
        would: &str,
        then: &str,
    ) -> Result<bool, OperateError> {
        let what = format!("mirror {}", self.mirror);
        let of_topic = outcome
            .topics
            .iter()
            .any(|topic| topic.error_code == outcome.code);
        if !outcome.code.is_none() && !of_topic {
            return Err(OperateError::Refused {
                what,
                code: outcome.code,
                message: outcome.message,
            });
        }
        let done = if self.dry_run { would } else { doing };
        let mut stdout = io::stdout();
        let mut refused = 0_usize;
        for topic in &outcome.topics {
            let line = if topic.error_code.is_none() {
                format!("{}: {done}", topic.name)
            } else {
                refused = refused.saturating_add(1);
                let words = refusal(topic.error_code, topic.error_message.as_deref());
                format!("{}: REFUSED: {words}", topic.name)
            };
            say(&mut stdout, &line)?;
        }
        let good = outcome.topics.len().saturating_sub(refused);
        let mut line = format!("{what}: {} {done}", topics_of(good));
        if refused > 0 {
            line.push_str(&format!(", {refused} refused"));
        }
        if self.dry_run {
            line.push_str(" (dry run, nothing was changed)");
        } else if good > 0 {
            line.push_str(then);
        }
        say(&mut stdout, &line)?;
        Ok(refused == 0)
    }
}

fn topics_of(count: usize) -> String {
    format!("{count} topic{}", if count == 1 { "" } else { "s" })
}

fn say(to: &mut impl Write, line: &str) -> Result<(), OperateError> {
    writeln!(to, "{line}").map_err(OperateError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::state::PartitionState::{LogTruncation, Mirroring};

    #[test]
    fn a_pattern_means_topics_with_something_to_do() {
        for (change, states, wanted) in [
            (Change::Pause, vec![Mirroring, Paused], true),
            (Change::Pause, vec![Failed], true),
            (Change::Pause, vec![Paused, Pausing], false),
            (Change::Pause, vec![Stopped], false),
            (Change::Resume, vec![Mirroring, Paused], true),
            (Change::Resume, vec![Mirroring], false),
            (Change::Stop, vec![LogTruncation, Stopped], true),
            (Change::Stop, vec![Stopping, Stopped], false),
            (Change::Recover, vec![Mirroring, Failed], true),
            (Change::Recover, vec![Mirroring], false),
        ] {
            assert_eq!(change.useful(&states), wanted, "{change:?} {states:?}");
        }
    }
}
