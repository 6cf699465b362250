//! Pairs of clusters that the tests of a binary use one after the other, because each of them spoils the proxy or stops
//! brokers: starting clusters costs more than waiting for a turn.

use std::sync::OnceLock;

use tokio::sync::{Mutex, MutexGuard};

use super::kafka::{ClusterOptions, KafkaCluster};

/// Two clusters, and whose turn it is.
#[derive(Debug)]
pub struct Pair {
    source: KafkaCluster,
    destination: KafkaCluster,
    turn: Mutex<()>,
}

/// A test's turn with a pair.
#[derive(Debug)]
pub struct Turn {
    /// Where records come from.
    pub source: &'static KafkaCluster,
    /// Where they go.
    pub destination: &'static KafkaCluster,
    _turn: MutexGuard<'static, ()>,
}

/// Starts the pair at the first call and waits for a turn. All nodes run and no rule of a proxy is left then.
pub async fn take_turn(
    pair: &'static OnceLock<Pair>,
    source: ClusterOptions,
    destination: ClusterOptions,
) -> Turn {
    let start = move || {
        // A runtime of its own: the one of the test that comes first ends with that test.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (source, destination) = runtime.block_on(async {
            tokio::join!(
                KafkaCluster::start(source),
                KafkaCluster::start(destination)
            )
        });
        Pair {
            source,
            destination,
            turn: Mutex::new(()),
        }
    };
    let pair = tokio::task::spawn_blocking(move || pair.get_or_init(start))
        .await
        .expect("the pair starts");
    let turn = pair.turn.lock().await;
    for cluster in [&pair.source, &pair.destination] {
        for id in cluster.broker_ids() {
            if cluster.pid(id).is_none() {
                cluster.start_again(id);
            }
        }
        cluster.wait_ready().await;
        if cluster.is_proxied() {
            cluster.proxy().clear();
        }
    }
    Turn {
        source: &pair.source,
        destination: &pair.destination,
        _turn: turn,
    }
}
