//! Child processes that never outlive the test process, loopback ports, and what /proc says of a process.
//! Processes are ended by their own id only.

use std::collections::HashSet;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

type Order = (Command, SyncSender<std::io::Result<Child>>);

/// Starts `program args` so that it is killed when the test process ends in whatever way.
///
/// The kernel sends the death signal when the *thread* that spawned ends, and test threads end early: so one thread
/// that lives as long as the process spawns for all.
pub fn spawn(
    program: &str,
    args: &[String],
    stdout: Stdio,
    stderr: Stdio,
    env: &[(String, String)],
) -> Child {
    static SPAWNER: OnceLock<SyncSender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = sync_channel::<Order>(16);
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    let _asker_gone = answer.send(command.spawn());
                }
            })
            .unwrap();
        orders
    });
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", program])
        .args(args)
        .envs(env.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr);
    let (answer, outcome) = sync_channel(1);
    spawner.send((command, answer)).unwrap();
    outcome.recv().unwrap().unwrap_or_else(|error| {
        panic!("cannot start setpriv (Debian package util-linux) for {program}: {error}")
    })
}

/// Starts `program args` with both outputs appended to `log`.
pub fn spawn_logged(program: &str, args: &[String], log: &Path) -> Child {
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .unwrap_or_else(|error| panic!("{}: {error}", log.display()));
    let err = out.try_clone().unwrap();
    spawn(program, args, out.into(), err.into(), &[])
}

/// Sends a signal by name ("TERM", "STOP", "CONT") to one process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status()
        .expect("the kill command (Debian package procps)");
    assert!(status.success(), "kill -s {name} {pid}: {status}");
}

/// Waits for the end of a child; `None` when `deadline` passes first.
pub async fn wait_for_exit(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills and reaps a child; harmless when it has ended already.
pub fn kill_and_reap(child: &mut Child) {
    let _ended_already = child.kill();
    let _reaped_already = child.wait();
}

/// An exit status in words, with the signal if there was one.
pub fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown end".into(),
    }
}

/// A loopback port that nobody listens on now. It lies below the range from which the kernel takes ports for outgoing
/// connections, so a broker that is down does not lose its port to a client; never handed out twice by one process.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut taken = TAKEN.lock().unwrap();
    let taken = taken.get_or_insert_default();
    for _ in 0..10_000 {
        let port = rand::random_range(12_000..32_000);
        if !taken.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.insert(port);
            return port;
        }
    }
    panic!("no free loopback port between 12000 and 32000");
}

/// Resident memory of a process in bytes, `None` when it is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// User and system time a process has used, `None` when it is gone. Linux counts in hundredths of a second.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces: the fields start behind its closing bracket, utime is the 12th of them.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Open file descriptors of a process, `None` when it is gone.
pub fn open_files(pid: u32) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}
