//! truemirror mirrors topics of a source Kafka cluster to a destination cluster with identical offsets, from outside, on
//! brokers that nobody had to change. This page is the map of the code; README.md is for people who run it.
//!
//! # The picture
//!
//! ```text
//!            sync: topics there? partitions? configs held?
//!                 |  TopicSet                    ^  "hold this topic"
//!                 v                              |
//! source --Fetch--> fetcher --batches--> mirror (one task) --batches--> appender --Produce--> destination
//! leader            raw bytes            plan, queue, machine           a lane per            leader
//!                   to the last                |   ^                    broker
//!                   stable offset              v   |
//!                                  alignment: both logs compared below the end
//! ```
//!
//! [`app`] builds the parts and owns their lives, and puts the mirrors of a changed file in force. For each mirror there are two
//! tasks: [`sync`] prepares topics and says in a [`domain::desired::TopicSet`] how far each is; [`mirror`] is one event loop that
//! owns all partitions of the mirror. What waits (a fetch, an append, a question) is a future that ends as an event of that loop, so that no partition is ever shared.
//! What a partition does next is decided by a pure state machine, [`domain::append`].
//!
//! # States
//!
//! ```text
//! owner of a partition ──Handle──► actor of its state partition ──append──► __mirror_state (destination, compacted)
//! operator (listener)  ──Handle──►  decide, append, apply, answer                  │
//!                          ▲                                                       ▼
//!                          └────────── read model ◄────────── every sidecar tails all of it
//! ```
//!
//! The *owner* of a partition (`mirror/lifecycle.rs`) decides what its state becomes and does it; the *coordinator* of its key
//! ([`coordinator`]) checks, appends and answers; both may be one process, and the code behind is the same. An operator changes the
//! *desired* state of a topic, which is a record too; owners see it in their read model and act. A state is written before what it
//! stands for is done, except FAILED: a partition stands still first. What concerns a whole topic or mirror (create, hold, restore,
//! pin the source's cluster id) is done by the sidecar that coordinates the mirror's name; the others wait until they see it done.
//! An owner that has compared a partition writes down how far it was adopted: this is how the coordinator learns that the topic is
//! the source's and may be held. One that finds another log than the source's writes down in which topic, by its id, and where: this
//! is how the coordinator learns that it may be deleted and created anew ([`domain::recreate`]).
//!
//! # One primitive: compare-and-append
//!
//! *Append these bytes only if the log is where I think it is.* Each partition has one producer id of ours, the same in every
//! process. Its last sequence (DescribeProducers) and the log end (ListOffsets) are read from the destination's leader; the next
//! batch carries the sequence that follows. The broker refuses one that does not follow (45), and answers one that it has with
//! the old offset. So the destination's log is the only progress there is, and a process may die between any two bytes.
//!
//! The model test in `domain/append/model.rs` (a broker partition with its window of five batches, forgotten producers,
//! elections that lose a tail, late requests of dead processes, two writers) found three faults in the algorithm as it was first
//! written down. Whoever changes the machine should know them:
//!
//! 1. Sequence and end are read under one leader epoch: the sequence of a log whose tail an election then took away fits again
//!    as soon as a late request has grown the tail anew.
//! 2. The first batch after *any* resume goes alone: if a late request slipped in between the two reads, ours may be taken for it,
//!    and a second batch behind ours would land in its place.
//! 3. The sequence of a producer that the broker does not know starts at the offset, not at 0: numbers that begin again would
//!    repeat those of batches from before the broker forgot, and a leader that rebuilds its memory from the log would take the
//!    new batch for the old one.
//!
//! # Sharing work
//!
//! All sidecars of a destination are members of one group there, in Kafka's classic group protocol with static membership:
//! [`kafka::group`] is one member, [`domain::assign`] decides who gets what. Kafka's coordinator is the failure detector, the
//! membership list and the lease. A partition goes to the sidecar beside the broker that leads it, else where least is; it
//! moves only once its owner has given it up.
//!
//! # Six laws
//!
//! 0. **Decide, append, apply, answer.** A pure function ([`domain::shard`]) makes records of a request; state changes only by
//!    records that are in the log; no answer leaves before.
//! 1. **Ask the destination where to resume.** A cursor advances only on an acknowledged append.
//! 2. **The log owns the truth; memory is a cache.** If the outcome of an append is unknown, forget, ask, go on.
//! 3. **Never a guess.** No shift, skip, duplicate or silent reset: what cannot be kept identical puts that one partition into
//!    FAILED, with the offset and the reason in words.
//! 4. **[`domain`] and [`wire`] are pure.** No sockets, tasks, clocks, randomness, globals. Time and randomness are arguments.
//! 5. **Every task has an owner, every queue a bound, every wait a deadline or a cancellation token.**
//!
//! # Who may import whom
//!
//! `tests/tidy.rs` enforces this table.
//!
//! | module | duty | may import |
//! |---|---|---|
//! | `main` | command line, logging, exit code | everything |
//! | [`app`] | builds, starts and stops the parts | everything below |
//! | [`cli`] | what can be said on the command line; one file or directory per command | [`config`], [`domain`], [`kafka`], [`verify`], [`wire`] |
//! | [`http`] | metrics, health, status; changes nothing | [`config`], [`domain`], [`metrics`], [`mirror`], [`wire`] |
//! | [`mirror`] | the data path of one mirror | [`config`], [`coordinator`], [`domain`], [`kafka`], [`metrics`], [`wire`] |
//! | [`sync`] | what lies around the records: topics, partitions, configs | [`config`], [`coordinator`], [`domain`], [`kafka`], [`metrics`], [`wire`] |
//! | [`coordinator`] | the state of mirrors: the state topic, who decides, what it says | [`config`], [`domain`], [`kafka`], [`metrics`], [`wire`] |
//! | [`server`] | the listener for peers and operators; answers are a service's that is handed in | [`config`], [`coordinator`], [`domain`], [`metrics`], [`wire`] |
//! | [`verify`] | compares two clusters as their consumers see them | [`domain`], [`kafka`], [`wire`] |
//! | [`kafka`] | the client: connections, leaders, questions | [`config`], [`domain`], [`metrics`], [`wire`] |
//! | [`wire`] | bytes to values and back | [`domain`] |
//! | [`config`] | TOML to checked values, every default | [`domain`] |
//! | [`metrics`] | every metric in one struct | [`domain`] |
//! | [`domain`] | decisions; std and thiserror only | nothing |
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | source, destination | the cluster copied from, the cluster copied to |
//! | mirror | one source and the topics of it that are copied; a table in the configuration |
//! | cursor | the next offset of a partition that the destination wants |
//! | `_end` offset | exclusive: the next offset; `_start` and `first_` are inclusive |
//! | last stable offset | up to here, exclusive, the source's transactions are decided; nothing beyond is fetched |
//! | lag | offsets from the destination's high watermark to the source's last stable offset |
//! | resume | asking the destination anew where a partition stands |
//! | alignment | comparing both logs below the destination's end, before anything is appended |
//! | lease | the right to decide, two thirds of the session long from the sending of the last request that the group's coordinator answered well |
//! | revoking | work that goes to another member and has not been given up yet: nobody else has it |
//! | hold | setting those configs of a destination topic under which faithful records are neither refused nor changed nor deleted |
//! | lane | one of our connections to a broker, for one purpose |
//! | fetcher | one loop of Fetch requests, for one source broker, one destination broker and one number |
//! | listener | where a process speaks Kafka's protocol itself: the mirror calls of KIP-1279, for operators and other processes |
//! | sidecar, member | one process of truemirror, as the others of the same destination know it |
//! | foreign writer | whoever else writes to a mirrored topic at the destination |
//!
//! # What is not obvious
//!
//! - **An error code does not say that nothing was appended.** `REQUEST_TIMED_OUT` comes for batches that are in the leader's log, a
//!   lost connection says nothing at all. Only the log end counts, after a drain in which requests left behind may arrive.
//! - **A repeated batch is answered with success** and its old offset. A log append time in the answer that is not -1 gives it away,
//!   on a CreateTime topic, which is one reason to hold that config. It must be looked at before the offset is.
//! - **The broker compares sequences, not content**: another batch under the same sequences is taken for a repetition.
//! - **A broker forgets producers by record timestamp**, not by when they last wrote. Old records with one day's expiry are
//!   forgotten at once; so while batches are older than half of `producer.id.expiration.ms`, one is in flight.
//! - **ListOffsets with replica id -2 is answered by followers too.** Any other negative one below it only by the leader: use -3.
//! - **The group's protocol type is "consumer"** with an assignor of our own, since `kafka-consumer-groups.sh` refuses to show others.
//! - **A frozen process adopts the fence's producer epoch** when it resumes; what keeps it from appending behind a stop is the comparison
//!   (the fence is an offset that the source does not have) and the state topic, in that order.
//! - **End offsets alone hide a foreign record.** A writer who put one record where ours belonged leaves the same end; hence
//!   the comparison by content and by producer id.
//! - **Base offset and leader epoch of a batch are outside its checksum**; producer id, epoch, sequence and attributes are under it.
//! - **A batch in the middle of which compaction has removed records** keeps its last offset: `record_count` and `last_offset_delta`
//!   part. A partial batch at the end of a Fetch answer is normal.
//! - **A [`bytes::Bytes`] of ten bytes keeps its whole frame alive.** Names are copied before they are stored, and memory is
//!   accounted by frame.
//! - **A fetcher serves one destination broker only**, so that the frame that it holds is charged to one destination: a slow
//!   one does not stop what goes to the others.
//! - **Metadata may be older than the answer before.** A broker that comes back tells what it last knew; epochs say which is newer.
//! - **Topics that miss in one listing are not deleted topics.** A broker that starts lists fewer; it takes two listings and, where
//!   there are topic ids, another id.
//! - **A coordinator answers nothing on a connection on which a JoinGroup waits**, and that may last as long as the session of
//!   a member that died: heartbeats go over a connection of their own, or the lease would run out meanwhile.
//! - **A static member that did not join in time stays in the group**, and the coordinator repeats its old words to the
//!   leader. So the time to join is twice the session: who does not join has been dropped before it ends.
//! - **The state topic may be deleted under us.** Then memory, a cache otherwise, is all there is: see [`coordinator`]. A batch that is sent by
//!   the topic's name alone (before Kafka 4.0) would land in a new topic of that name, hence appenders that know their topic's id.
//! - **DeleteRecords is refused for a topic that is compacted only**, hence `compact,delete` on held topics.
//! - **A topic that is created anew takes a batch of the old one's**: brokers before 4.1 are told the name only, and accept any sequence
//!   of a producer that they do not know. So every owner says that it stands still before a topic is deleted.
//! - **A socket that is closed with bytes unread is reset**, and a reset takes the last answers with it: the listener shuts down its
//!   half first and reads over what is left.
//! - **Two error numbers of KIP-1279, 134 and 136, mean something else in Kafka 4.4**: `ErrorCode::mirror_name` is for answers to
//!   mirror calls.
//! - **`retention.ms` counts record timestamps**: an old record that is mirrored today would be deleted today, hence the hold.
//!
//! # Decisions
//!
//! The bodies of Kafka's messages are our own declarative codec ([`wire::schema`]), not the crate kafka-protocol: its array decoder
//! lets 138 of 174 messages ask for more than 1 GiB with a few bytes, and no release fixes it. It is the oracle of the tests:
//! both must write the same bytes. Record batches are never decoded on the data path.
//!
//! rskafka is not the client: as released it has no deadlines, loops without end after a leader has moved, and knows neither raw
//! batches nor idempotence nor topic configs.
//!
//! The group's protocol type is "consumer", with an assignor "truemirror": `kafka-consumer-groups --describe` refuses groups of
//! any other type ("is not a consumer group"), and with the consumers' envelopes it shows which sidecar has which partition.
//! What is ours alone (addresses, broker ids, fingerprints) travels in their user data.
//!
//! What each dependency is for, and what else was looked at:
//!
//! | crate | what for | what else |
//! |---|---|---|
//! | bytes | one buffer from socket to socket | `Vec`: a copy at every step |
//! | bytesize, humantime | sizes and durations as text in the configuration | numbers with units in key names |
//! | clap | the command line | lexopt: help by hand |
//! | comfy-table | tables of `check` and `verify` | tabled: more derive than needed |
//! | crc32c | checksums of batches, in hardware, 30 GB/s | crc-fast: twice that, for what is never the bottleneck; crc: 0.6 GB/s |
//! | flate2, lz4_flex, snap, zstd | reading records where `verify` and alignment compare them, always through a bound | lz4: C; ruzstd: a seventh of the speed |
//! | futures | `FuturesUnordered` as the event loop's list of waits | tokio's JoinSet: a task for each question |
//! | http-body-util, hyper, hyper-util | four paths over HTTP/1.1 | axum: 16 crates more for four paths |
//! | indicatif | progress of `verify` | own escape sequences |
//! | mimalloc | allocator that reserves lazily | the system's: slower here; jemalloc: ten times the build |
//! | prometheus | metrics, without protobuf | prometheus-client: no process metrics; metrics: a facade with a global |
//! | rand | jitter | fastrand: the same |
//! | regex | names of topics | globset: less than what people write for Kafka |
//! | rustix | CLOCK_BOOTTIME, without unsafe code of ours | nix: more of libc; libc: unsafe; boot-time: one author, unsafe |
//! | serde, serde_json, toml | configuration, status, `--json` | basic-toml: no places in errors |
//! | strsim | "did you mean" for unknown keys | nothing: less help |
//! | thiserror | error enums | by hand; anyhow: no enums to choose by |
//! | tokio, tokio-util | sockets, tasks, time, cancellation | async-std and smol: fewer eyes |
//! | tracing, tracing-subscriber | logs as text or JSON | log: no fields |
//! | dev: kafka-protocol | oracle of the codec, and the fake broker | – |
//! | dev: proptest | any bytes, any schedule | quickcheck: weaker shrinking |
//! | dev: rdkafka | independent client of the checker | rskafka: no zstd, no null headers |
//! | dev: serde-saphyr | the alert rules are YAML | serde_yaml_ng: C translated to unsafe Rust, no release since 2024 |
//! | dev: socket2, tempfile | listeners that do not answer; directories | – |

pub mod app;
pub mod cli;
pub mod config;
pub mod coordinator;
pub mod domain;
pub mod http;
pub mod kafka;
pub mod metrics;
pub mod mirror;
pub mod server;
pub mod sync;
pub mod verify;
pub mod wire;
