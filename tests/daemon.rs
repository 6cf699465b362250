//! The process from outside: how it starts, shows itself, stops and says what is wrong. Must not need a broker.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails like the test itself"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

struct Daemon {
    child: Child,
    lines: BufReader<ChildStderr>,
    _config: tempfile::NamedTempFile,
}

impl Daemon {
    fn start(http: &str, log: &str) -> Self {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        // Ports nobody listens on: neither cluster is reachable.
        write!(
            config,
            "[destination]\nbootstrap_servers = [\"127.0.0.1:1\"]\n[listener]\nbind = \"127.0.0.1:0\"\n[http]\n{http}\n[log]\n{log}\n[[mirror]]\nname = \"m\"\n\
             [mirror.source]\nbootstrap_servers = [\"127.0.0.1:2\"]\n[mirror.topics]\ninclude = [\"t\"]\n"
        )
        .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_truemirror"))
            .args(["run", "--config"])
            .arg(config.path())
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            lines,
            _config: config,
        }
    }

    /// Reads the log up to a line with `part` in it; ends with the process.
    fn line(&mut self, part: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line).unwrap();
            assert!(length > 0, "{part:?} was never logged:\n{seen}");
            if line.contains(part) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    fn addr(&mut self) -> String {
        let line = self.line("http listening");
        let (_, rest) = line.split_once("addr=").unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn it_shows_itself_and_ends_clean_on_either_signal() {
    for name in ["TERM", "INT"] {
        let mut daemon = Daemon::start("bind = \"127.0.0.1:0\"", "");
        let addr = daemon.addr();
        assert!(get(&addr, "/livez").starts_with("HTTP/1.1 200 "));
        let metrics = get(&addr, "/metrics");
        for part in [
            "truemirror_memory_limit_bytes 50331648\n",
            "process_resident_memory_bytes",
        ] {
            assert!(metrics.contains(part), "{part} in {metrics}");
        }
        let status = get(&addr, "/api/v1/status");
        assert!(
            status.contains("\"name\": \"m\"") && status.contains("127.0.0.1:2"),
            "{status}"
        );
        daemon.signal(name);
        daemon.line("stopped");
        assert_eq!(daemon.child.wait().unwrap().code(), Some(0), "SIG{name}");
    }
}

#[test]
fn a_port_in_use_is_said_and_exits_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let mut daemon = Daemon::start(&format!("bind = \"{addr}\""), "");
    let line = daemon.line("ERROR");
    assert!(
        line.contains(&addr.to_string()) && line.contains("http.bind") && line.contains("in use"),
        "{line}"
    );
    assert_eq!(daemon.child.wait().unwrap().code(), Some(1));
}

#[test]
fn json_logs_are_one_object_per_line() {
    let mut daemon = Daemon::start("bind = \"127.0.0.1:0\"", "format = \"json\"");
    let line = daemon.line("http listening");
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(json["message"], "http listening");
    assert!(
        json["addr"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{line}"
    );
}

#[test]
fn the_command_line_explains_itself() {
    for (args, code, parts) in [
        (
            vec!["--help"],
            0,
            vec!["run", "Exit codes:", "78", "Examples:"],
        ),
        (
            vec!["run", "--help"],
            0,
            vec![
                "--config <FILE>",
                "TRUEMIRROR_CONFIG",
                "/etc/truemirror/truemirror.toml",
            ],
        ),
        (
            vec!["--version"],
            0,
            vec![concat!("truemirror ", env!("CARGO_PKG_VERSION"))],
        ),
        (vec![], 2, vec!["Usage: truemirror"]),
        (vec!["runn"], 2, vec!["similar", "run"]),
        (vec!["run", "--confg", "x"], 2, vec!["--config"]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_truemirror"))
            .args(&args)
            .output()
            .unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{args:?}: {part} in {text}");
        }
    }
}
