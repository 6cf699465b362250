//! The Java side of a Kafka cluster: jars, class archive, storage directory, command line of a node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Where a prepared Kafka version lies (see `tests/kafka/fetch`).
#[derive(Debug, Clone)]
pub struct Installation {
    /// For example `4.4.0`.
    pub version: String,
    directory: PathBuf,
    class_path: String,
}

/// The version the suite runs against: `TRUEMIRROR_KAFKA_VERSION`, else 4.4.0.
pub fn default_version() -> String {
    std::env::var("TRUEMIRROR_KAFKA_VERSION").unwrap_or_else(|_| "4.4.0".into())
}

impl Installation {
    /// Prepares `version` (jars by Maven on the first use) and panics with the way out when that fails.
    pub fn prepare(version: &str) -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let output = Command::new(scripts().join("fetch"))
            .arg(version)
            .output()
            .expect("tests/kafka/fetch runs");
        assert!(
            output.status.success(),
            "real Kafka is part of these tests and is never skipped: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let directory = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        let class_path = std::fs::read_to_string(directory.join("classpath")).unwrap();
        Self {
            version: version.into(),
            directory,
            class_path,
        }
    }

    /// Arguments of `java` for a Kafka node.
    pub fn node_args(&self, properties: &Path, heap_mib: u32) -> Vec<String> {
        let mut args = self.jvm_args(heap_mib);
        args.push(format!(
            "-XX:SharedArchiveFile={}",
            self.directory.join("broker.jsa").display()
        ));
        args.push("kafka.Kafka".into());
        args.push(properties.display().to_string());
        args
    }

    /// Arguments of `java` for a tool class such as `org.apache.kafka.tools.ProducerPerformance`.
    pub fn tool_args(&self, class: &str, tool_args: &[&str]) -> Vec<String> {
        let mut args = self.jvm_args(256);
        args.push(format!(
            "-XX:SharedArchiveFile={}",
            self.directory.join("broker.jsa").display()
        ));
        args.push(class.into());
        args.extend(tool_args.iter().map(ToString::to_string));
        args
    }

    fn jvm_args(&self, heap_mib: u32) -> Vec<String> {
        vec![
            // Two cores are shared by several machines: the first compiler and one collector thread start fastest.
            "-XX:+UseSerialGC".into(),
            "-XX:TieredStopAtLevel=1".into(),
            "-Xshare:auto".into(),
            "-XX:-UsePerfData".into(),
            "-Xms64m".into(),
            format!("-Xmx{heap_mib}m"),
            format!(
                "-Dlog4j.configuration=file:{}",
                scripts().join("log4j.properties").display()
            ),
            "-cp".into(),
            self.class_path.clone(),
        ]
    }

    /// Makes a formatted log directory for one node, without a virtual machine: the template that `fetch` formatted and a
    /// `meta.properties` of its own.
    pub fn format(&self, data: &Path, cluster_id: &str, node_id: i32) {
        copy_tree(&self.directory.join("template"), data);
        let text = format!(
            "version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={}\n",
            random_uuid()
        );
        std::fs::write(data.join("meta.properties"), text).unwrap();
    }
}

/// A random id in Kafka's spelling: 16 bytes in URL base64 without padding, not starting with a dash
/// (`org.apache.kafka.common.Uuid`).
pub fn random_uuid() -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // 22 characters hold 132 bits: the last one carries two bits and four zero bits.
    let mut text: String = (0..21)
        .map(|_| char::from(ALPHABET[rand::random_range(0..62)]))
        .collect();
    text.push(char::from(ALPHABET[rand::random_range(0..4) * 16]));
    text
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kafka")
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
