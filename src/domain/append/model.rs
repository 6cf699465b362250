//! The append machine against a model of a broker partition, over many random schedules: the log never differs from the
//! source, or the partition is FAILED. Must not know anything that a real broker would not tell.
//!
//! The model knows: the window of five batches per producer, unknown and expired producers, epochs, control batches without
//! sequence, transient refusals, elections that lose the tail above the high watermark, lost connections, killed processes
//! whose requests arrive late, two writers at once, and a foreign writer.

#![cfg(test)]
#![expect(clippy::as_conversions, reason = "test code over small numbers")]

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::*;

const OURS: ProducerId = ProducerId(1 << 62);
const FOREIGN: ProducerId = ProducerId(-1);
const NOW: i64 = 1_700_000_000_000;
const DAY_MS: i64 = 86_400_000;
/// Ten kinds of weather make 100,000 schedules.
const SCHEDULES_EACH: u64 = 10_000;

/// xorshift64*: small, seeded, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    fn index(&mut self, len: usize) -> usize {
        self.roll(len as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The source's record of this offset.
    Record(i64),
    /// A control batch.
    Filler,
    Foreign,
}

#[derive(Clone, Debug)]
struct LogBatch {
    base: i64,
    content: Vec<Content>,
    producer: ProducerId,
    epoch: i16,
    /// First and last sequence; `None` for control batches.
    sequences: Option<(i32, i32)>,
}

impl LogBatch {
    fn end(&self) -> i64 {
        self.base + self.content.len() as i64
    }
}

#[derive(Clone, Debug)]
struct Entry {
    epoch: i16,
    last: Option<i32>,
    /// Sequence range and base offset of the last five batches.
    window: VecDeque<(i32, i32, i64)>,
}

#[derive(Clone, Debug)]
enum Request {
    Produce {
        span: Span,
        send: Send,
    },
    Fillers {
        epoch: i16,
        left: i64,
        refused: bool,
    },
    /// Applied; the answer waits for the high watermark.
    Replicating {
        until: i64,
        answer: Response,
    },
}

#[derive(Clone, Debug)]
enum Response {
    Produce(i64, Answer),
    Fillers(FillAnswer),
}

#[derive(Debug, Default)]
struct Connection {
    /// The writer that still listens.
    owner: Option<usize>,
    requests: VecDeque<Request>,
    responses: VecDeque<Response>,
}

#[derive(Debug)]
struct Writer {
    machine: AppendMachine,
    todo: Effect,
    connection: usize,
    failed: Option<AppendFailure>,
}

/// What may happen in a schedule.
#[derive(Clone, Copy, Debug)]
struct Weather {
    holes: bool,
    writers: usize,
    old_records: bool,
    foreign: bool,
    poison: bool,
    /// Requests of dead connections may be handled any time later.
    late: bool,
    /// ... also after an election.
    late_after_election: bool,
}

struct World {
    dice: Dice,
    weather: Weather,
    /// `true` where the source has a record.
    source: Vec<bool>,
    /// Ends of the source's batches and holes.
    cuts: Vec<i64>,
    poison: Option<i64>,
    log: Vec<LogBatch>,
    high_watermark: i64,
    leader_epoch: i32,
    producers: HashMap<ProducerId, Entry>,
    connections: Vec<Connection>,
    writers: Vec<Writer>,
    foreign_at: Option<i64>,
    /// The log has grown since it was last looked at.
    grown: bool,
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (mut source, mut cuts) = (Vec::new(), Vec::new());
        for _ in 0..dice.roll(14) + 3 {
            let record = !(weather.holes && dice.chance(35));
            let len = dice.roll(if record { 6 } else { 4 }) + 1;
            source.extend(std::iter::repeat_n(record, len as usize));
            cuts.push(source.len() as i64);
        }
        let poison = weather.poison.then(|| dice.index(source.len()) as i64);
        let mut world = Self {
            dice,
            weather,
            source,
            cuts,
            poison,
            log: Vec::new(),
            high_watermark: 0,
            leader_epoch: 0,
            producers: HashMap::new(),
            connections: Vec::new(),
            writers: Vec::new(),
            foreign_at: None,
            grown: false,
        };
        for index in 0..weather.writers {
            let writer = world.born(index);
            world.writers.push(writer);
        }
        world
    }

    fn born(&mut self, index: usize) -> Writer {
        let mut machine = AppendMachine::new(AppendConfig {
            max_in_flight: 1 + self.dice.index(5),
            producer_expiration: Duration::from_millis(DAY_MS as u64),
            max_batch_bytes: 1000,
            ..AppendConfig::new(OURS)
        });
        let todo = machine.start();
        Writer {
            machine,
            todo,
            connection: self.connect(index),
            failed: None,
        }
    }

    fn connect(&mut self, owner: usize) -> usize {
        self.connections.push(Connection {
            owner: Some(owner),
            ..Connection::default()
        });
        self.connections.len() - 1
    }

    fn end(&self) -> i64 {
        self.log.last().map_or(0, LogBatch::end)
    }

    fn source_end(&self) -> i64 {
        self.source.len() as i64
    }

    fn expected(&self, offset: i64) -> Option<Content> {
        let record = *self.source.get(usize::try_from(offset).ok()?)?;
        Some(if record {
            Content::Record(offset)
        } else {
            Content::Filler
        })
    }

    /// First offset at which the log is not what the source says.
    fn first_difference(&self) -> Option<i64> {
        self.log
            .iter()
            .flat_map(|batch| {
                batch
                    .content
                    .iter()
                    .enumerate()
                    .map(|(i, content)| (batch.base + i as i64, *content))
            })
            .find(|(offset, content)| self.expected(*offset) != Some(*content))
            .map(|(offset, _)| offset)
    }

    // ---- the broker

    fn push(
        &mut self,
        content: Vec<Content>,
        producer: ProducerId,
        epoch: i16,
        sequences: Option<(i32, i32)>,
    ) -> i64 {
        let base = self.end();
        let batch = LogBatch {
            base,
            content,
            producer,
            epoch,
            sequences,
        };
        if producer != FOREIGN {
            Self::remember(&mut self.producers, &batch);
        }
        self.log.push(batch);
        self.grown = true;
        base
    }

    fn remember(producers: &mut HashMap<ProducerId, Entry>, batch: &LogBatch) {
        let entry = producers.entry(batch.producer).or_insert(Entry {
            epoch: -1,
            last: None,
            window: VecDeque::new(),
        });
        if entry.epoch != batch.epoch {
            *entry = Entry {
                epoch: batch.epoch,
                last: None,
                window: VecDeque::new(),
            };
        }
        if let Some((first, last)) = batch.sequences {
            entry.last = Some(last);
            entry.window.push_back((first, last, batch.base));
            if entry.window.len() > 5 {
                entry.window.pop_front();
            }
        }
    }

    /// `UnifiedLog.append` for a client's batch, `ProducerAppendInfo.checkSequence` and the duplicate window included.
    fn produce(&mut self, span: Span, send: Send) -> Answer {
        let (first, count) = (send.base_sequence.0, span.count());
        let last = send.base_sequence.plus(count - 1).0;
        let epoch = send.producer_epoch.0;
        if self
            .poison
            .is_some_and(|at| span.first_offset <= at && at < span.end_offset)
        {
            return Answer::Refused(87);
        }
        if self.dice.chance(4) {
            return Answer::Transient(19);
        }
        if let Some(entry) = self.producers.get(&OURS) {
            if entry.epoch == epoch
                && let Some(old) = entry
                    .window
                    .iter()
                    .find(|(f, l, _)| (*f, *l) == (first, last))
            {
                return Answer::Appended {
                    base_offset: old.2,
                    repeated: true,
                };
            }
            if epoch < entry.epoch {
                return Answer::Transient(47);
            }
            let follows = match entry.last {
                _ if epoch > entry.epoch => first == 0,
                None => first == 0,
                Some(last) => first == Sequence(last).plus(1).0,
            };
            if !follows {
                return Answer::Transient(45);
            }
        }
        let content = (span.first_offset..span.end_offset)
            .map(Content::Record)
            .collect();
        let base_offset = self.push(content, OURS, epoch, Some((first, last)));
        Answer::Appended {
            base_offset,
            repeated: false,
        }
    }

    fn handle_request(&mut self, at: usize) {
        let Some(request) = self.connections[at].requests.pop_front() else {
            return;
        };
        match request {
            Request::Produce { span, send } => {
                let answer = self.produce(span, send);
                let response = Response::Produce(span.first_offset, answer);
                if send.acks_all && matches!(answer, Answer::Appended { .. }) {
                    let until = self.end();
                    self.connections[at]
                        .requests
                        .push_front(Request::Replicating {
                            until,
                            answer: response,
                        });
                } else {
                    self.connections[at].responses.push_back(response);
                }
            }
            Request::Fillers {
                epoch,
                left,
                refused,
            } => {
                // One marker at a time: other connections get in between.
                let entry_epoch = self.producers.get(&OURS).map_or(-1, |entry| entry.epoch);
                let refused = refused || epoch < entry_epoch || self.dice.chance(2);
                if !refused {
                    self.push(vec![Content::Filler], OURS, epoch, None);
                }
                if left > 1 {
                    self.connections[at].requests.push_front(Request::Fillers {
                        epoch,
                        left: left - 1,
                        refused,
                    });
                    return;
                }
                let answer = if refused {
                    FillAnswer::Error(47)
                } else {
                    FillAnswer::Written
                };
                let until = if refused { 0 } else { self.end() };
                let answer = Response::Fillers(answer);
                self.connections[at]
                    .requests
                    .push_front(Request::Replicating { until, answer });
            }
            Request::Replicating { until, answer } if self.high_watermark >= until => {
                self.connections[at].responses.push_back(answer);
            }
            Request::Replicating { until, answer } => {
                if self.dice.chance(10) {
                    let answer = match answer {
                        Response::Produce(offset, _) => {
                            Response::Produce(offset, Answer::Transient(7))
                        }
                        Response::Fillers(_) => Response::Fillers(FillAnswer::Error(7)),
                    };
                    self.connections[at].responses.push_back(answer);
                } else {
                    self.connections[at]
                        .requests
                        .push_front(Request::Replicating { until, answer });
                }
            }
        }
    }

    fn replicate(&mut self) {
        let ends: Vec<i64> = self
            .log
            .iter()
            .map(LogBatch::end)
            .filter(|end| *end > self.high_watermark)
            .collect();
        if !ends.is_empty() {
            self.high_watermark = ends[self.dice.index(ends.len())];
        }
    }

    fn election(&mut self) {
        self.leader_epoch += 1;
        let floor = self.high_watermark;
        let kept: Vec<usize> = (0..=self.log.len())
            .filter(|n| n.checked_sub(1).map_or(0, |last| self.log[last].end()) >= floor)
            .collect();
        let keep = kept[self.dice.index(kept.len())];
        self.log.truncate(keep);
        self.producers.clear();
        for batch in &self.log {
            if batch.producer != FOREIGN {
                Self::remember(&mut self.producers, batch);
            }
        }
        for at in 0..self.connections.len() {
            self.connections[at]
                .requests
                .retain(|r| !matches!(r, Request::Replicating { .. }));
            self.lose_connection(at, self.weather.late_after_election);
        }
    }

    // ---- connections and processes

    /// The owner hears "lost" for all that is out; what the broker has not handled yet may still come.
    fn lose_connection(&mut self, at: usize, late: bool) {
        self.connections[at].responses.clear();
        if !(late && self.dice.chance(60)) {
            let kept = if late {
                self.dice.index(self.connections[at].requests.len() + 1)
            } else {
                0
            };
            self.connections[at].requests.truncate(kept);
        }
        let Some(owner) = self.connections[at].owner.take() else {
            return;
        };
        self.writers[owner].connection = self.connect(owner);
        let out: Vec<i64> = self.writers[owner]
            .machine
            .in_flight
            .iter()
            .map(|sent| sent.span.first_offset)
            .collect();
        for first_offset in out {
            let effect = self.writers[owner]
                .machine
                .answered(first_offset, Answer::Lost);
            self.take_effect(owner, effect);
        }
        let effect = self.writers[owner].machine.filled(FillAnswer::Lost);
        self.take_effect(owner, effect);
        let effect = self.writers[owner].machine.leader_moved();
        self.take_effect(owner, effect);
    }

    fn kill(&mut self, writer: usize) {
        let at = self.writers[writer].connection;
        self.connections[at].owner = None;
        self.connections[at].responses.clear();
        if !self.weather.late {
            self.connections[at].requests.clear();
        }
        let failed = self.writers[writer].failed.take();
        if failed
            .as_ref()
            .is_none_or(|failure| !failure.is_permanent())
        {
            self.writers[writer] = self.born(writer);
        } else {
            self.writers[writer].failed = failed;
        }
    }

    fn take_effect(&mut self, writer: usize, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Fail(failure) => {
                self.writers[writer].failed = Some(failure);
                self.writers[writer].todo = Effect::None;
            }
            other => self.writers[writer].todo = other,
        }
    }

    /// Carries out what the machine asked for.
    fn carry_out(&mut self, writer: usize) {
        let todo = std::mem::replace(&mut self.writers[writer].todo, Effect::None);
        let hiccup = self.dice.chance(3);
        let machine = &mut self.writers[writer].machine;
        let effect = match todo {
            Effect::ReadProducer | Effect::ReadEnd if hiccup => machine.read_failed(),
            Effect::ReadProducer => {
                let entry = self.producers.get(&OURS).map(|entry| ProducerEntry {
                    epoch: ProducerEpoch(entry.epoch),
                    last_sequence: entry.last.map(Sequence),
                });
                machine.producer_read(entry)
            }
            Effect::ReadEnd => {
                let log_end_offset = self.log.last().map_or(0, LogBatch::end);
                machine.end_read(EndRead {
                    leader_epoch: LeaderEpoch(self.leader_epoch),
                    log_end_offset,
                    high_watermark: self.high_watermark,
                })
            }
            Effect::Wait { id, .. } => machine.waited(id),
            Effect::Compare { .. } if hiccup => machine.compared(Comparison::Unavailable),
            Effect::Compare { log_end_offset } => {
                let comparison = match self.first_difference() {
                    Some(offset) if offset < log_end_offset => {
                        Comparison::Differs(format!("differs at {offset}"))
                    }
                    _ => Comparison::Equal,
                };
                self.writers[writer].machine.compared(comparison)
            }
            Effect::SendFillers {
                producer_epoch,
                count,
            } => {
                let at = self.writers[writer].connection;
                self.connections[at].requests.push_back(Request::Fillers {
                    epoch: producer_epoch.0,
                    left: count,
                    refused: false,
                });
                Effect::None
            }
            Effect::None | Effect::Ready { .. } | Effect::Acknowledged { .. } | Effect::Fail(_) => {
                Effect::None
            }
        };
        self.take_effect(writer, effect);
    }

    /// Offers the next batch or hole at the cursor.
    fn offer(&mut self, writer: usize) {
        let Some(cursor) = self.writers[writer].machine.cursor() else {
            return;
        };
        if cursor >= self.source_end() {
            return;
        }
        let end = *self
            .cuts
            .iter()
            .find(|cut| **cut > cursor)
            .expect("a cut behind every offset");
        if self.expected(cursor) == Some(Content::Filler) {
            let effect = self.writers[writer].machine.fill(end);
            return self.take_effect(writer, effect);
        }
        let end = if self.dice.chance(20) {
            cursor + 1 + self.dice.roll((end - cursor) as u64) as i64
        } else {
            end
        };
        let age = if self.weather.old_records {
            DAY_MS
        } else {
            1000
        };
        let span = Span {
            first_offset: cursor,
            end_offset: end,
            max_timestamp: NOW - age,
            size_bytes: 100,
        };
        if !self.writers[writer].machine.admits(&span, NOW) {
            return;
        }
        match self.writers[writer].machine.append(&span, NOW) {
            Ok(send) => {
                let at = self.writers[writer].connection;
                self.connections[at]
                    .requests
                    .push_back(Request::Produce { span, send });
            }
            Err(effect) => self.take_effect(writer, effect),
        }
    }

    fn deliver_answer(&mut self, writer: usize) {
        let at = self.writers[writer].connection;
        let Some(response) = self.connections[at].responses.pop_front() else {
            return;
        };
        let effect = match response {
            Response::Produce(first_offset, answer) => {
                self.writers[writer].machine.answered(first_offset, answer)
            }
            Response::Fillers(answer) => self.writers[writer].machine.filled(answer),
        };
        self.take_effect(writer, effect);
    }

    fn step(&mut self, faults: bool) {
        let writer = self.dice.index(self.writers.len());
        let connection = self.dice.index(self.connections.len());
        match self.dice.roll(100) {
            0..=24 => self.carry_out(writer),
            25..=49 => self.offer(writer),
            50..=64 => self.handle_request(connection),
            65..=79 => self.handle_request(self.writers[writer].connection),
            80..=89 => self.deliver_answer(writer),
            90..=93 => self.replicate(),
            94 if faults => {
                self.lose_connection(self.writers[writer].connection, self.weather.late)
            }
            95 if faults => self.kill(writer),
            96 if faults => self.election(),
            97 if faults && self.weather.old_records => {
                self.producers.clear();
            }
            98 if faults && self.weather.foreign && self.foreign_at.is_none() => {
                self.foreign_at = Some(self.push(vec![Content::Foreign], FOREIGN, -1, None));
            }
            _ => {}
        }
    }

    fn settled(&self) -> bool {
        self.writers.iter().all(|writer| {
            writer.failed.is_some()
                || (writer.machine.cursor() == Some(self.source_end())
                    && writer.machine.in_flight() == 0)
        })
    }

    fn failure_of(&self, writer: usize) -> Option<&AppendFailure> {
        self.writers[writer].failed.as_ref()
    }
}

/// Runs one schedule; true if it ended in a failure that its weather allows.
fn run(seed: u64, weather: Weather) -> bool {
    let mut world = World::new(seed, weather);
    let says = |world: &World, what: &str| {
        format!(
            "seed {seed}: {what}\n{weather:?}\nsource {:?}\nlog {:?}\nwriters {:?}",
            world.source, world.log, world.writers
        )
    };
    // A filler that arrives between the last look and the fence can overfill a hole; it is found, not prevented.
    let overfill_possible = weather.holes && weather.late;
    for step in 0..600 {
        world.step(true);
        if std::mem::take(&mut world.grown) && !weather.foreign && !overfill_possible {
            assert_eq!(
                world.first_difference(),
                None,
                "{}",
                says(&world, &format!("wrong log after step {step}"))
            );
        }
    }
    for _ in 0..40_000 {
        if world.settled() {
            break;
        }
        world.step(false);
    }
    assert!(world.settled(), "{}", says(&world, "no end"));
    if let Some(poison) = world.poison {
        assert!(
            world.end() <= poison,
            "{}",
            says(&world, "log goes beyond a refused batch")
        );
    }
    // A last look by a new process: it finds what the running one could not see.
    while world
        .connections
        .iter()
        .any(|connection| !connection.requests.is_empty())
    {
        world.replicate();
        for at in 0..world.connections.len() {
            world.handle_request(at);
        }
    }
    world.high_watermark = world.end();
    for writer in 0..world.writers.len() {
        world.kill(writer);
    }
    for _ in 0..40_000 {
        if world.settled() {
            break;
        }
        world.step(false);
    }
    assert!(
        world.settled(),
        "{}",
        says(&world, "no end after the last look")
    );
    let difference = world.first_difference();
    for writer in 0..world.writers.len() {
        match world.failure_of(writer) {
            None => {
                assert_eq!(
                    difference,
                    None,
                    "{}",
                    says(&world, "a wrong log that nobody noticed")
                );
                assert_eq!(
                    world.end(),
                    world.source_end(),
                    "{}",
                    says(&world, "not everything arrived")
                );
            }
            Some(AppendFailure::Refused { offset, code: 87 }) => {
                let poison = world.poison.expect("only a poisoned batch is refused");
                assert!(
                    *offset <= poison,
                    "{}",
                    says(&world, "another batch was refused")
                );
            }
            Some(_) => {
                let legitimate =
                    world.foreign_at.is_some() || (overfill_possible && difference.is_some());
                assert!(legitimate, "{}", says(&world, "FAILED without a reason"));
            }
        }
    }
    if let Some(at) = world.foreign_at
        && world.log.iter().any(|batch| batch.producer == FOREIGN)
    {
        assert!(
            world.writers.iter().all(|w| w.failed.is_some()),
            "{}",
            says(&world, "a foreign record unnoticed")
        );
        let displaced = world.log.iter().filter(|batch| batch.base > at).count();
        assert!(
            displaced <= 5 * weather.writers,
            "{}",
            says(&world, "went on behind a foreign record")
        );
    }
    world.writers.iter().any(|writer| writer.failed.is_some())
}

/// Runs this weather's share of the schedules.
fn schedules(name: &str, weather: Weather) {
    let first: u64 = option_env!("TRUEMIRROR_SEED")
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let failed = (first..first + SCHEDULES_EACH)
        .filter(|seed| run(*seed, weather))
        .count();
    println!(
        "{name}: {SCHEDULES_EACH} schedules from seed {first}, {failed} ended FAILED with a reason"
    );
}

const CALM: Weather = Weather {
    holes: false,
    writers: 1,
    old_records: false,
    foreign: false,
    poison: false,
    late: true,
    late_after_election: true,
};

/// Nothing of a dead connection is handled after the drain.
const PUNCTUAL: Weather = Weather {
    late: false,
    late_after_election: false,
    ..CALM
};

#[test]
fn one_writer() {
    schedules("one writer", CALM);
}

#[test]
fn two_writers() {
    schedules("two writers", Weather { writers: 2, ..CALM });
}

#[test]
fn three_writers() {
    schedules("three writers", Weather { writers: 3, ..CALM });
}

#[test]
fn a_refused_batch() {
    schedules(
        "a refused batch",
        Weather {
            poison: true,
            ..CALM
        },
    );
}

#[test]
fn two_writers_and_a_refused_batch() {
    schedules(
        "two writers and a refused batch",
        Weather {
            poison: true,
            writers: 2,
            ..CALM
        },
    );
}

#[test]
fn a_foreign_writer() {
    schedules(
        "a foreign writer",
        Weather {
            foreign: true,
            ..CALM
        },
    );
}

#[test]
fn holes() {
    schedules(
        "holes",
        Weather {
            holes: true,
            ..PUNCTUAL
        },
    );
}

#[test]
fn holes_and_late_requests() {
    schedules(
        "holes and late requests",
        Weather {
            holes: true,
            late_after_election: false,
            ..CALM
        },
    );
}

#[test]
fn old_records() {
    schedules(
        "old records",
        Weather {
            old_records: true,
            ..PUNCTUAL
        },
    );
}

#[test]
fn old_records_and_holes() {
    schedules(
        "old records and holes",
        Weather {
            old_records: true,
            holes: true,
            ..PUNCTUAL
        },
    );
}
