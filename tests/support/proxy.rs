//! A TCP proxy between clients and the brokers of one cluster. It understands frame headers (length, api key, version,
//! correlation id) and nothing else, and spoils what a test asks for: delay, cut, swallow, replace, answer by itself,
//! fall mute, refuse. It runs on a thread of its own, so any test runtime may use it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::process;

/// Changes an answer: api key, api version, the whole response frame without its length.
pub type Replace = Arc<dyn Fn(i16, i16, &mut Vec<u8>) + Send + Sync>;

/// Answers a request (the whole frame without its length: api key, version, correlation id at bytes 0, 2, 4), by a
/// response frame without its length; `None` lets the broker answer.
pub type Answer = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// What happens to a request or its answer.
#[derive(Clone)]
pub enum Action {
    /// The request reaches the broker later; so do those behind it on that connection.
    DelayRequest(Duration),
    /// The answer comes later; so do those behind it on that connection.
    DelayAnswer(Duration),
    /// The connection is closed and the broker never sees the request.
    CutRequest,
    /// The broker does its work, then the connection is closed in place of the answer.
    CutAnswer,
    /// The answer vanishes, later ones pass.
    SwallowAnswer,
    /// The answer and all behind it on that connection vanish; the connection stays open.
    Stall,
    /// The answer is changed.
    ReplaceAnswer(Replace),
    /// The proxy answers and the broker is not asked.
    AnswerItself(Answer),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::DelayRequest(delay) => return write!(f, "DelayRequest({delay:?})"),
            Self::DelayAnswer(delay) => return write!(f, "DelayAnswer({delay:?})"),
            Self::CutRequest => "CutRequest",
            Self::CutAnswer => "CutAnswer",
            Self::SwallowAnswer => "SwallowAnswer",
            Self::Stall => "Stall",
            Self::ReplaceAnswer(_) => "ReplaceAnswer",
            Self::AnswerItself(_) => "AnswerItself",
        };
        f.write_str(name)
    }
}

/// An action and when it applies: by api key, by broker, so often, so long. The first rule that fits a request wins.
#[derive(Debug, Clone)]
pub struct Rule {
    api_key: Option<i16>,
    broker: Option<i32>,
    skip: u64,
    times: u64,
    until: Option<Instant>,
    action: Action,
}

impl Rule {
    /// For requests of one api key, for ever.
    pub fn on(api_key: i16, action: Action) -> Self {
        Self {
            api_key: Some(api_key),
            ..Self::always(action)
        }
    }

    /// For all requests, for ever.
    pub fn always(action: Action) -> Self {
        Self {
            api_key: None,
            broker: None,
            skip: 0,
            times: u64::MAX,
            until: None,
            action,
        }
    }

    /// Only for the next request that fits.
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Only for so many requests.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Lets so many fitting requests pass before.
    pub fn after(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// Only for so long from now.
    pub fn during(mut self, time: Duration) -> Self {
        self.until = Some(Instant::now() + time);
        self
    }

    /// Only on connections to one broker.
    pub fn broker(mut self, id: i32) -> Self {
        self.broker = Some(id);
        self
    }
}

/// How a broker's port behaves as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Frames pass, subject to the rules.
    Pass,
    /// Connections are accepted and nothing is ever answered; those that are open fall mute too.
    Mute,
    /// Nobody listens; open connections are cut.
    Refuse,
}

/// The proxy of a cluster: one port per broker. Dropping it cuts all.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    ports: BTreeMap<i32, u16>,
}

/// The control of a proxy; clones control the same one.
#[derive(Debug, Clone)]
pub struct ProxyHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    applied: u64,
    requests: HashMap<(i32, i16), u64>,
    versions: HashMap<i16, i16>,
    connections: HashMap<i32, u64>,
    brokers: BTreeMap<i32, Broker>,
}

#[derive(Debug)]
struct Broker {
    upstream: u16,
    mode: Mode,
    /// Cancelled to cut the open connections (and the listener, to look at the mode again), then renewed.
    cut: CancellationToken,
}

impl Proxy {
    /// Starts listening for brokers, given by id and loopback port.
    pub fn start(upstreams: BTreeMap<i32, u16>) -> Self {
        let brokers = upstreams.iter().map(|(id, upstream)| {
            let broker = Broker {
                upstream: *upstream,
                mode: Mode::Pass,
                cut: CancellationToken::new(),
            };
            (*id, broker)
        });
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                rules: Vec::new(),
                applied: 0,
                requests: HashMap::new(),
                versions: HashMap::new(),
                connections: HashMap::new(),
                brokers: brokers.collect(),
            }),
            stop: CancellationToken::new(),
        });
        let ports: BTreeMap<i32, u16> = upstreams
            .keys()
            .map(|id| (*id, process::free_port()))
            .collect();
        let (ready, wait) = std::sync::mpsc::sync_channel(1);
        let for_thread = (Arc::clone(&shared), ports.clone());
        std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                let (shared, ports) = for_thread;
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let mut tasks = JoinSet::new();
                    for (id, port) in ports {
                        let listener = listen(port).await;
                        tasks.spawn(accept(Arc::clone(&shared), id, port, listener));
                    }
                    ready.send(()).unwrap();
                    shared.stop.cancelled().await;
                });
            })
            .unwrap();
        wait.recv().expect("the proxy listens");
        Self { shared, ports }
    }

    /// The port that clients of a broker use.
    pub fn port(&self, broker: i32) -> u16 {
        self.ports[&broker]
    }

    /// A control of this proxy.
    pub fn handle(&self) -> ProxyHandle {
        ProxyHandle {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl ProxyHandle {
    /// Adds a rule behind the others.
    pub fn add(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules; what they hold back (a stall) stays held back.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// How often rules have been applied since the start.
    pub fn applied(&self) -> u64 {
        self.state().applied
    }

    /// Adds a rule and waits until it has met a request: a long poll that is out already is not subject to it.
    pub async fn add_and_meet(&self, rule: Rule) {
        let before = self.applied();
        self.add(rule);
        super::poll_until(
            "the rule meets a request",
            Duration::from_secs(60),
            async || {
                let met = self.applied() > before;
                met.then_some(()).ok_or_else(|| "not yet".into())
            },
        )
        .await;
    }

    /// Sets how a broker's port behaves.
    pub fn set_mode(&self, broker: i32, mode: Mode) {
        let mut state = self.state();
        let broker = state
            .brokers
            .get_mut(&broker)
            .expect("a broker of this cluster");
        broker.mode = mode;
        if mode != Mode::Mute {
            // Also ends the muteness of connections that were accepted mute: their clients must connect again.
            std::mem::take(&mut broker.cut).cancel();
        }
    }

    /// The same for all brokers.
    pub fn set_mode_of_all(&self, mode: Mode) {
        let ids: Vec<i32> = self.state().brokers.keys().copied().collect();
        for id in ids {
            self.set_mode(id, mode);
        }
    }

    /// Closes all open connections to a broker, `None`: to all brokers.
    pub fn cut_connections(&self, broker: Option<i32>) {
        for (id, each) in &mut self.state().brokers {
            if broker.is_none_or(|wanted| wanted == *id) {
                std::mem::take(&mut each.cut).cancel();
            }
        }
    }

    /// Where the broker listens from now on.
    pub fn set_upstream(&self, broker: i32, port: u16) {
        self.state().brokers.get_mut(&broker).unwrap().upstream = port;
    }

    /// Requests of an api key that came in since the last reset, over all brokers.
    pub fn requests(&self, api_key: i16) -> u64 {
        let state = self.state();
        let counts = state
            .requests
            .iter()
            .filter(|((_, key), _)| *key == api_key);
        counts.map(|(_, count)| count).sum()
    }

    /// All counts since the last reset, by broker and api key.
    pub fn all_requests(&self) -> BTreeMap<(i32, i16), u64> {
        self.state().requests.clone().into_iter().collect()
    }

    /// The version of the last request of an api key.
    pub fn last_version(&self, api_key: i16) -> Option<i16> {
        self.state().versions.get(&api_key).copied()
    }

    /// Connections accepted since the last reset, over all brokers.
    pub fn connections(&self) -> u64 {
        self.state().connections.values().sum()
    }

    /// Sets all counts to 0.
    pub fn reset_counts(&self) {
        let mut state = self.state();
        state.requests.clear();
        state.connections.clear();
    }

    /// Requests per second of an api key over a time from now.
    pub async fn rate(&self, api_key: i16, over: Duration) -> f64 {
        let before = self.requests(api_key);
        let begin = Instant::now();
        tokio::time::sleep(over).await;
        let more = self.requests(api_key).saturating_sub(before);
        more as f64 / begin.elapsed().as_secs_f64()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn mode(&self, broker: i32) -> Mode {
        self.state().brokers[&broker].mode
    }

    /// Counts a request and finds the action for it, if there is one.
    fn take_action(&self, broker: i32, api_key: i16, version: i16) -> Option<Action> {
        let mut state = self.state();
        *state.requests.entry((broker, api_key)).or_default() += 1;
        state.versions.insert(api_key, version);
        let now = Instant::now();
        let fits = |rule: &&mut Rule| {
            rule.api_key.is_none_or(|key| key == api_key)
                && rule.broker.is_none_or(|id| id == broker)
                && rule.until.is_none_or(|until| now < until)
                && rule.times > 0
        };
        let rule = state.rules.iter_mut().find(fits)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        let action = rule.action.clone();
        state.applied += 1;
        Some(action)
    }
}

/// A request that waits for its answer.
struct Pending {
    correlation_id: i32,
    api_key: i16,
    version: i16,
    action: Option<Action>,
    /// The answer the proxy gives itself, held until the requests before it are answered.
    ready: Option<Vec<u8>>,
}

type Queue = Arc<Mutex<VecDeque<Pending>>>;

async fn listen(port: u16) -> TcpListener {
    // The port was free when it was handed out and is ours since; a moment of refusal in between is no reason to fail.
    TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port)))
        .await
        .unwrap_or_else(|error| panic!("proxy port {port}: {error}"))
}

async fn accept(shared: Arc<Shared>, broker: i32, port: u16, first: TcpListener) {
    let mut connections = JoinSet::new();
    let mut listener = Some(first);
    loop {
        let (mode, cut) = {
            let state = shared.state();
            let broker = &state.brokers[&broker];
            (broker.mode, broker.cut.clone())
        };
        if mode == Mode::Refuse {
            listener = None;
            cut.cancelled().await;
            continue;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => listen(port).await,
        };
        let open = listener.insert(open);
        tokio::select! {
            () = cut.cancelled() => {}
            Some(_ended) = connections.join_next() => {}
            accepted = open.accept() => {
                if let Ok((client, _)) = accepted {
                    *shared.state().connections.entry(broker).or_default() += 1;
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        tokio::select! {
                            () = cut.cancelled() => {}
                            () = serve(shared, broker, client) => {}
                        }
                    });
                }
            }
        }
    }
}

/// Carries one connection until one side closes it or a rule cuts it.
async fn serve(shared: Arc<Shared>, broker: i32, client: TcpStream) {
    if shared.mode(broker) == Mode::Mute {
        std::future::pending::<()>().await;
    }
    let upstream = SocketAddr::from(([127, 0, 0, 1], shared.state().brokers[&broker].upstream));
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let queue: Queue = Arc::default();
    let (answers, outbox) = mpsc::channel(64);
    // The first of the three that ends (None: cut or closed) ends the connection; dropping the others closes both sides.
    tokio::select! {
        _ = requests(&shared, broker, &queue, from_client, to_server, answers.clone()) => {}
        _ = responses(&shared, broker, &queue, from_server, answers) => {}
        _ = write_answers(to_client, outbox) => {}
    }
}

async fn requests(
    shared: &Shared,
    broker: i32,
    queue: &Queue,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    answers: mpsc::Sender<Vec<u8>>,
) -> Option<()> {
    loop {
        let frame = read_frame(&mut from).await?;
        if shared.mode(broker) == Mode::Mute {
            continue;
        }
        let api_key = i16::from_be_bytes(frame.get(0..2)?.try_into().ok()?);
        let version = i16::from_be_bytes(frame.get(2..4)?.try_into().ok()?);
        let correlation_id = i32::from_be_bytes(frame.get(4..8)?.try_into().ok()?);
        let action = shared.take_action(broker, api_key, version);
        let mut pending = Pending {
            correlation_id,
            api_key,
            version,
            action: None,
            ready: None,
        };
        match action {
            Some(Action::CutRequest) => return None,
            Some(Action::DelayRequest(delay)) => tokio::time::sleep(delay).await,
            Some(Action::AnswerItself(answer)) => {
                pending.ready = answer(&frame);
                if pending.ready.is_some() {
                    queue.lock().ok()?.push_back(pending);
                    send_ready(queue, &answers).await?;
                    continue;
                }
            }
            later => pending.action = later,
        }
        queue.lock().ok()?.push_back(pending);
        write_frame(&mut to, &frame).await?;
    }
}

async fn responses(
    shared: &Shared,
    broker: i32,
    queue: &Queue,
    mut from: OwnedReadHalf,
    answers: mpsc::Sender<Vec<u8>>,
) -> Option<()> {
    let mut stalled = false;
    loop {
        let mut frame = read_frame(&mut from).await?;
        if stalled || shared.mode(broker) == Mode::Mute {
            continue;
        }
        let correlation_id = i32::from_be_bytes(frame.get(0..4)?.try_into().ok()?);
        // Requests before it that have no answer yet never get one (Produce with acks=0).
        let pending = {
            let mut queue = queue.lock().ok()?;
            let at = queue
                .iter()
                .position(|p| p.correlation_id == correlation_id)?;
            queue.drain(..=at).next_back()?
        };
        match pending.action {
            Some(Action::DelayAnswer(delay)) => {
                tokio::time::sleep(delay).await;
                answers.send(frame).await.ok()?;
            }
            Some(Action::CutAnswer) => return None,
            Some(Action::SwallowAnswer) => {}
            Some(Action::Stall) => stalled = true,
            Some(Action::ReplaceAnswer(replace)) => {
                replace(pending.api_key, pending.version, &mut frame);
                answers.send(frame).await.ok()?;
            }
            Some(Action::DelayRequest(_) | Action::CutRequest | Action::AnswerItself(_)) | None => {
                answers.send(frame).await.ok()?;
            }
        }
        send_ready(queue, &answers).await?;
    }
}

/// Sends the answers of our own that nothing waits before.
async fn send_ready(queue: &Queue, answers: &mpsc::Sender<Vec<u8>>) -> Option<()> {
    loop {
        let ready = {
            let mut queue = queue.lock().ok()?;
            match queue.front() {
                Some(front) if front.ready.is_some() => queue.pop_front()?.ready?,
                _ => return Some(()),
            }
        };
        answers.send(ready).await.ok()?;
    }
}

async fn write_answers(mut to: OwnedWriteHalf, mut outbox: mpsc::Receiver<Vec<u8>>) -> Option<()> {
    loop {
        let frame = outbox.recv().await?;
        write_frame(&mut to, &frame).await?;
    }
}

async fn read_frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let length = from.read_i32().await.ok()?;
    let length = usize::try_from(length).ok().filter(|l| *l <= 256 << 20)?;
    let mut frame = vec![0; length];
    from.read_exact(&mut frame).await.ok()?;
    Some(frame)
}

async fn write_frame(to: &mut OwnedWriteHalf, frame: &[u8]) -> Option<()> {
    let length = i32::try_from(frame.len()).ok()?;
    to.write_i32(length).await.ok()?;
    to.write_all(frame).await.ok()
}
