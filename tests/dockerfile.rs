//! The Dockerfile without a container engine: what it copies is there, what it runs works, what it starts is what it built.
//! Must not need a network or a broker.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails like the test itself"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// One stage: its base image and its instructions, such as `("COPY", "src ./src")`.
struct Stage {
    base: String,
    name: Option<String>,
    instructions: Vec<(String, String)>,
}

impl Stage {
    fn all(&self, name: &str) -> Vec<&str> {
        let found = self.instructions.iter().filter(|(word, _)| word == name);
        found.map(|(_, rest)| rest.as_str()).collect()
    }

    fn only(&self, name: &str) -> &str {
        let found = self.all(name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0]
    }

    /// Sources and target of every COPY from the build context.
    fn copied(&self) -> Vec<(Vec<&str>, &str)> {
        let plain = self.all("COPY").into_iter();
        let plain = plain.filter(|rest| !rest.starts_with("--from="));
        let split = plain.map(|rest| {
            let mut words: Vec<&str> = rest.split_whitespace().collect();
            let target = words.pop().unwrap();
            (words, target)
        });
        split.collect()
    }
}

fn stages() -> Vec<Stage> {
    let text = text("Dockerfile");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let mut stages: Vec<Stage> = Vec::new();
    for line in joined.lines().filter(|line| !line.trim().is_empty()) {
        let (word, rest) = line.trim().split_once(' ').unwrap();
        if word == "FROM" {
            let (base, name) = match rest.split_once(" AS ") {
                Some((base, name)) => (base, Some(name.to_owned())),
                None => (rest, None),
            };
            stages.push(Stage {
                base: base.to_owned(),
                name,
                instructions: Vec::new(),
            });
        } else {
            let stage = stages.last_mut().unwrap();
            stage
                .instructions
                .push((word.to_owned(), rest.trim().to_owned()));
        }
    }
    assert_eq!(stages.len(), 2);
    stages
}

fn words(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap()
}

/// True if `path` does not reach the build: the last line of .dockerignore that fits decides.
fn is_ignored(path: &str) -> bool {
    let mut ignored = false;
    for line in text(".dockerignore").lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (pattern, verdict) = match line.strip_prefix('!') {
            Some(pattern) => (pattern, false),
            None => (line, true),
        };
        // The two kinds of pattern that the file has.
        assert!(
            pattern == "*" || !pattern.contains(['*', '?', '[']),
            "{line}"
        );
        let fits = pattern == "*" || path == pattern || path.starts_with(&format!("{pattern}/"));
        if fits {
            ignored = verdict;
        }
    }
    ignored
}

fn copy_tree(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy_tree(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

#[test]
fn bases_are_pinned_and_fit_the_toolchain() {
    let [build, image] = &stages()[..] else {
        unreachable!("checked");
    };
    let toolchain = text("rust-toolchain.toml");
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .unwrap()
        .trim_matches('"');
    assert_eq!(build.base, format!("rust:{channel}-bookworm"));
    // Bookworm is Debian 12: the C library of the build is that of the image.
    let version = image.base.strip_prefix("debian:12.").unwrap();
    let minor = version.strip_suffix("-slim").unwrap();
    assert!(minor.parse::<u32>().is_ok(), "{}", image.base);
}

#[test]
fn what_is_copied_is_there_and_nothing_else_is_sent() {
    let mut copied = Vec::new();
    for stage in stages() {
        for (sources, _) in stage.copied() {
            copied.extend(sources.into_iter().map(ToOwned::to_owned));
        }
    }
    for path in &copied {
        assert!(root().join(path).exists(), "{path} does not exist");
        assert!(!is_ignored(path), "{path} is excluded by .dockerignore");
    }
    assert!(!is_ignored("src/wire/batch.rs"));
    for path in ["target", ".git", "tests/run", "README.md"] {
        assert!(is_ignored(path), "{path} is sent and not used");
    }
}

#[test]
fn the_image_starts_what_the_build_made_and_not_as_root() {
    let [build, image] = &stages()[..] else {
        unreachable!("checked");
    };
    let from = format!("--from={} ", build.name.as_ref().unwrap());
    let copies = image.all("COPY");
    let binary = copies.iter().find_map(|rest| rest.strip_prefix(&from));
    let (made, installed) = binary.unwrap().split_once(' ').unwrap();
    let place = build.only("WORKDIR");
    assert_eq!(made, format!("{place}/target/release/truemirror"));
    assert_eq!(words(image.only("ENTRYPOINT")), [installed]);
    assert_eq!(words(image.only("CMD")), ["run"]);

    let user = image.only("USER");
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() == 2 && !ids.contains(&0), "{user}");
}

#[test]
fn the_build_command_works_on_what_is_copied() {
    let stages = stages();
    let build = &stages[0];
    let command = build.only("RUN");
    assert_eq!(command, "cargo build --locked --release --bin truemirror");
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (sources, target) in build.copied() {
        for source in sources {
            let to = directory.path().join(target);
            let to = if target == "./" { to.join(source) } else { to };
            copy_tree(&root().join(source), &to);
        }
    }
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(directory.path()).args(arguments);
        cargo
    };
    if std::env::var("TRUEMIRROR_TEST_SCALE").as_deref() == Ok("full") {
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        let status = cargo(&arguments)
            .env("CARGO_TARGET_DIR", directory.path().join("target"))
            .status();
        assert!(status.unwrap().success());
        let made = directory.path().join("target/release/truemirror");
        let output = Command::new(made).arg("--version").output().unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            concat!("truemirror ", env!("CARGO_PKG_VERSION"), "\n")
        );
        return;
    }
    // The lock file fits the manifest, and the manifest's targets are among what is copied. Only this machine's packages:
    // they are there already.
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let rustc = String::from_utf8(rustc.stdout).unwrap();
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    let output = cargo(&[
        "metadata",
        "--locked",
        "--format-version=1",
        "--filter-platform",
        host.unwrap(),
    ])
    .output()
    .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let own = packages
        .iter()
        .find(|package| package["name"] == "truemirror");
    let targets = own.unwrap()["targets"].as_array().unwrap();
    let is_binary = |target: &serde_json::Value| {
        target["kind"][0] == "bin"
            && target["name"] == "truemirror"
            && Path::new(target["src_path"].as_str().unwrap()).exists()
    };
    assert!(targets.iter().any(is_binary), "{targets:?}");
}

#[test]
fn the_health_check_tells_well_from_ill() {
    let stages = stages();
    let check = stages[1].only("HEALTHCHECK");
    let command = words(check.split_once("CMD ").unwrap().1);
    assert!(command[2].contains("/127.0.0.1/9495 "), "{command:?}");
    assert_eq!(stages[1].only("EXPOSE"), "9495");
    assert!(text("config/truemirror.example.toml").contains("# bind = \"127.0.0.1:9495\""));

    for (answer, healthy) in [
        (Some("HTTP/1.1 200 OK\r\n\r\nok\n"), true),
        (
            Some("HTTP/1.1 503 Service Unavailable\r\n\r\n200 \n"),
            false,
        ),
        (Some(""), false),
        (None, false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = match answer {
            Some(answer) => Some(std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 23];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                request
            })),
            None => {
                drop(listener);
                None
            }
        };
        let script = command[2].replace("9495", &port.to_string());
        let status = Command::new(&command[0])
            .args([&command[1], &script])
            .output()
            .unwrap()
            .status;
        assert_eq!(status.success(), healthy, "{answer:?}");
        if let Some(asked) = asked {
            assert_eq!(&asked.join().unwrap(), b"GET /livez HTTP/1.0\r\n\r\n");
        }
    }
}
