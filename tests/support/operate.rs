//! The operator's commands against a running daemon, as processes of their own.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use super::daemon::Daemon;
use super::poll_until;

/// Runs a command of an operator against the daemon.
pub async fn operate(daemon: &mut Daemon, arguments: &[&str]) -> Output {
    let server = daemon.addr_of("listener ready").await.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_truemirror"));
    command.args(arguments).args(["--server", &server]);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// The same, and it must be done. What it printed.
pub async fn done(daemon: &mut Daemon, arguments: &[&str]) -> String {
    let output = operate(daemon, arguments).await;
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {out}\n{err}");
    out
}

/// The same, and it must be refused with these words.
pub async fn refused(daemon: &mut Daemon, arguments: &[&str], words: &str) {
    let output = operate(daemon, arguments).await;
    let all = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {all}");
    assert!(all.contains(words), "{arguments:?}: {all}");
}

/// Deletes mirror "test", once the topics that were stopped have their own configs back: until then it is refused.
pub async fn delete_when_restored(daemon: &mut Daemon) {
    poll_until("it is deleted", Duration::from_secs(60), async || {
        let output = operate(daemon, &["delete", "--mirror", "test"]).await;
        let words = text(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(()),
            Some(1) if words.contains("CLUSTER_MIRROR_NOT_EMPTY") => Err(words),
            code => panic!("{code:?}: {words}"),
        }
    })
    .await;
}

/// What `describe --json` says of the partitions of mirror "test".
pub async fn described(daemon: &mut Daemon) -> Vec<Value> {
    let shown = done(daemon, &["describe", "--mirror", "test", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown.as_array().unwrap().clone()
}

/// What a process printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
