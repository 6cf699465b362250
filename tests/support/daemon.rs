//! The truemirror daemon as a process: configuration, log, signals, and what its HTTP interface says.

use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{poll_until, process};

/// A running daemon. Dropping it kills it; its directory stays when the test panics.
#[derive(Debug)]
pub struct Daemon {
    directory: Option<TempDir>,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    child: Option<Child>,
    log: Arc<Mutex<Vec<String>>>,
}

/// The configuration of one that shares the work under this name. `more` are further lines of its group.
pub fn member(config: &str, name: &str, more: &str) -> String {
    config.replace(
        "[group]\n",
        &format!("[group]\nmember_id = \"{name}\"\n{more}\n"),
    )
}

/// The configuration of one that stands beside this broker of the destination.
pub fn beside(config: &str, broker_id: i32) -> String {
    config.replacen(
        "[destination]\n",
        &format!("[destination]\nbroker_id = {broker_id}\n"),
        1,
    )
}

/// A line of `[group]`: the shortest session that brokers allow by default (`group.min.session.timeout.ms`).
pub const SHORT_SESSION: &str = "session_timeout = \"6s\"";

/// A `[[mirror]]` table; one more is put behind [`config`].
pub fn another_mirror(name: &str, source: &str, topics: &[&str]) -> String {
    let (source, topics) = (list(source.split(',')), list(topics.iter().copied()));
    format!(
        r#"
[[mirror]]
name = "{name}"
metadata_refresh_interval = "1s"

[mirror.source]
bootstrap_servers = {source}

[mirror.topics]
include = {topics}
"#
    )
}

/// A TOML list of strings.
fn list<'t>(items: impl IntoIterator<Item = &'t str>) -> String {
    let quoted: Vec<String> = items.into_iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", quoted.join(", "))
}

/// The usual configuration: one mirror of `topics` (a TOML list of patterns is made of them), all ports chosen by the
/// kernel, and short intervals. `extra` is TOML that comes behind, for example another
/// table.
pub fn config(source: &str, destination: &str, topics: &[&str], extra: &str) -> String {
    format!(
        r#"[destination]
bootstrap_servers = {destination}

[listener]
bind = "127.0.0.1:0"

[http]
bind = "127.0.0.1:0"

[state]
topic = "{state}"
partitions = 4

[group]
id = "{state}"

{mirror}
[mirror.retry]
initial = "100ms"
max = "1s"

{extra}
"#,
        state = state_topic(topics),
        destination = list(destination.split(',')),
        mirror = another_mirror("test", source, topics),
    )
}

/// The state topic of daemons that mirror these topics: many share a cluster in the tests, and their states must not meet.
pub fn state_topic(topics: &[&str]) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    topics.hash(&mut hasher);
    format!("__mirror_state_{:016x}", hasher.finish())
}

impl Daemon {
    /// Writes `config` to a file and starts the daemon with it. Does not wait: see [`Self::wait_until`].
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// The same with environment variables, for example `RUST_LOG`.
    pub fn start_with(config: &str, environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("truemirror-test-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let file = directory.path().join("truemirror.toml");
        std::fs::write(&file, config).unwrap();
        let mut daemon = Self {
            arguments: vec!["run".into(), "--config".into(), file.display().to_string()],
            directory: Some(directory),
            environment: environment
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect(),
            child: None,
            log: Arc::default(),
        };
        daemon.launch();
        daemon
    }

    /// Starts it again after [`Self::kill`] or [`Self::terminate`], with the same configuration; the log goes on.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        self.launch();
    }

    /// The configuration file, to be changed before [`Self::start_again`].
    pub fn config_file(&self) -> PathBuf {
        self.directory().join("truemirror.toml")
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The log so far, over all starts.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Log lines that contain all of `words`.
    pub fn log_lines_with(&self, words: &[&str]) -> Vec<String> {
        let mut lines = self.log();
        lines.retain(|line| words.iter().all(|word| line.contains(word)));
        lines
    }

    /// Ends it as a power cut would (SIGKILL).
    pub fn kill(&mut self) {
        process::kill_and_reap(&mut self.child.take().expect("the daemon runs"));
    }

    /// Asks it to end (SIGTERM) and waits; panics when it needs longer than `deadline`.
    pub async fn terminate(&mut self, deadline: Duration) -> ExitStatus {
        process::signal(self.pid().expect("the daemon runs"), "TERM");
        self.wait_for_exit(deadline).await
    }

    /// Waits for an end of its own accord.
    pub async fn wait_for_exit(&mut self, deadline: Duration) -> ExitStatus {
        let mut child = self.child.take().expect("the daemon runs");
        let ended = process::wait_for_exit(&mut child, deadline).await;
        process::kill_and_reap(&mut child);
        ended.unwrap_or_else(|| panic!("the daemon did not end within {deadline:?}"))
    }

    /// The address of its HTTP interface, from the log line `http listening` with `addr=`, and waits for that line.
    pub async fn http_addr(&mut self) -> SocketAddr {
        self.addr_of("http listening").await
    }

    /// The address in the `addr=` field of the last log line with `words` since this start; waits for it.
    pub async fn addr_of(&mut self, words: &str) -> SocketAddr {
        poll_until(words, Duration::from_secs(20), async || {
            self.assert_alive();
            let log = self.log();
            let start = log
                .iter()
                .rposition(|line| line.starts_with(START_MARK))
                .unwrap_or(0);
            let field = log[start..]
                .iter()
                .rev()
                .find(|line| line.contains(words))
                .and_then(|line| line.split("addr=").nth(1))
                .ok_or("not logged yet")?;
            let text = field.split_whitespace().next().unwrap_or_default();
            text.trim_matches('"')
                .parse()
                .map_err(|error| format!("{text:?}: {error}"))
        })
        .await
    }

    /// GET of a path: HTTP status and body.
    pub async fn get(&mut self, path: &str) -> Result<(u16, String), String> {
        let address = self.http_addr().await;
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || get(address, &path).map_err(|error| error.to_string()))
            .await
            .unwrap()
    }

    /// What `/api/v1/status` says.
    pub async fn status(&mut self) -> Result<Value, String> {
        let (code, body) = self.get("/api/v1/status").await?;
        if code != 200 {
            return Err(format!("HTTP {code}: {body}"));
        }
        serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))
    }

    /// The text of `/metrics`.
    pub async fn metrics(&mut self) -> Result<String, String> {
        match self.get("/metrics").await? {
            (200, body) => Ok(body),
            (code, body) => Err(format!("HTTP {code}: {body}")),
        }
    }

    /// The value of one series: the name and all given labels fit. Panics when none or several fit.
    pub async fn metric(&mut self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.metrics().await.unwrap();
        let found = series(&text, name, labels);
        match found.as_slice() {
            [value] => *value,
            _ => panic!("{} series {name} {labels:?} in:\n{text}", found.len()),
        }
    }

    /// The sum of all series that fit, 0 when there are none.
    pub async fn metric_sum(&mut self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.metrics().await.unwrap();
        series(&text, name, labels).iter().sum()
    }

    /// Asks for the status every 50 ms until `fits` is true of it, and returns it.
    pub async fn wait_until(
        &mut self,
        what: &str,
        deadline: Duration,
        fits: impl Fn(&Value) -> bool,
    ) -> Value {
        poll_until(what, deadline, async || {
            let status = self.status().await?;
            if fits(&status) {
                Ok(status)
            } else {
                Err(status.to_string())
            }
        })
        .await
    }

    fn directory(&self) -> &Path {
        self.directory.as_ref().expect("taken by drop only").path()
    }

    /// Panics with the end of the log when it has ended by itself.
    fn assert_alive(&mut self) {
        let Some(child) = &mut self.child else {
            panic!("the daemon does not run");
        };
        if let Some(status) = child.try_wait().unwrap() {
            let log = self.log();
            panic!(
                "the daemon ended with {}:\n{}",
                process::describe_exit(status),
                log[log.len().saturating_sub(30)..].join("\n")
            );
        }
    }

    fn launch(&mut self) {
        self.log
            .lock()
            .unwrap()
            .push(format!("{START_MARK} {:?}", self.arguments));
        let mut child = process::spawn(
            env!("CARGO_BIN_EXE_truemirror"),
            &self.arguments,
            Stdio::piped(),
            Stdio::piped(),
            &self.environment,
        );
        let file = self.directory().join("truemirror.log");
        self.follow(child.stdout.take().unwrap(), &file);
        self.follow(child.stderr.take().unwrap(), &file);
        self.child = Some(child);
    }

    /// Copies an output to the file and to memory, on a thread that ends with the daemon.
    fn follow(&self, output: impl Read + Send + 'static, file: &Path) {
        let log = Arc::clone(&self.log);
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
        std::thread::Builder::new()
            .name("daemon log".into())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _memory_has_it = writeln!(file, "{line}");
                    log.lock().unwrap().push(line);
                }
            })
            .unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::kill_and_reap(&mut child);
        }
        if std::thread::panicking() {
            let kept = self.directory.take().map(TempDir::keep);
            let log = self.log.lock().unwrap_or_else(|error| error.into_inner());
            eprintln!(
                "daemon: configuration and log kept in {kept:?}; its last lines:\n{}",
                log[log.len().saturating_sub(40)..].join("\n")
            );
        }
    }
}

/// The signal that ended a process, if one did.
pub fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Values of the series of a Prometheus text that have this name and all these labels.
pub fn series(text: &str, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    let fits = |line: &&str| {
        let own_name = line.split(['{', ' ']).next();
        own_name == Some(name)
            && labels
                .iter()
                .all(|(key, value)| has_label(line, key, value))
    };
    text.lines()
        .filter(fits)
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect()
}

fn has_label(line: &str, key: &str, value: &str) -> bool {
    let label = format!("{key}=\"{value}\"");
    line.match_indices(&label).any(|(at, _)| {
        line[..at]
            .chars()
            .next_back()
            .is_some_and(|before| matches!(before, '{' | ','))
    })
}

/// HTTP/1.0, so that the answer is neither chunked nor kept alive.
fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let wait = Duration::from_secs(5);
    let mut connection = TcpStream::connect_timeout(&address, wait)?;
    connection.set_read_timeout(Some(wait))?;
    connection.set_write_timeout(Some(wait))?;
    write!(
        connection,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| std::io::Error::other(format!("not HTTP: {answer:?}")))?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| std::io::Error::other(format!("no status: {head:?}")))?;
    Ok((code, body.into()))
}

const START_MARK: &str = "---- start";
