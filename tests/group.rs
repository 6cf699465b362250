//! One member of the group against a coordinator that says what a test wants. Must not need a real broker.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests stop the test like tests do"
)]

#[cfg(test)]
mod support;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::join_all;
use support::fake_broker::{Asked, FakeBroker, Reply, answer_metadata, metadata};
use support::poll_until;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use truemirror::domain::assign::Work;
use truemirror::domain::types::{BrokerId, TopicPartition};
use truemirror::kafka::cluster::{Cluster, ClusterOptions, Side};
use truemirror::kafka::group::{GroupError, GroupHandle, GroupMember, GroupOptions, Identity};
use truemirror::wire::api::groups::{
    Coordinator, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember,
    LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use truemirror::wire::consumer_protocol::{ConsumerProtocolSubscription, decode};
use truemirror::wire::error_code::ErrorCode;
use truemirror::wire::schema::Request;

const SOON: Duration = Duration::from_secs(60);
/// Long enough for a machine that has other things to do.
const SESSION: Duration = Duration::from_secs(3);

/// What the next request of an API meets.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Code(ErrorCode),
    Silence,
    Cut,
}

/// A coordinator of a group of one.
#[derive(Default)]
struct Fake {
    address: Option<SocketAddr>,
    generation: i32,
    fates: BTreeMap<i16, VecDeque<Fate>>,
    asked: Vec<(&'static str, Instant)>,
    /// Member id, claims and generation of each JoinGroup.
    joins: Vec<(String, usize, i32)>,
    /// While true, a JoinGroup is not answered and heartbeats are told of a rebalance.
    rebalancing: bool,
    mute: bool,
}

impl Fake {
    fn met<R: Request>(&mut self, asked: &Asked) -> Option<Result<(), Fate>> {
        if !asked.is::<R>() {
            return None;
        }
        self.asked.push((R::NAME, Instant::now()));
        let fate = self
            .fates
            .get_mut(&R::API_KEY)
            .and_then(VecDeque::pop_front);
        let mute = self.mute.then_some(Fate::Silence);
        Some(fate.or(mute).map_or(Ok(()), Err))
    }

    fn answer(&mut self, asked: &Asked) -> Option<Reply> {
        let at = self.address?;
        if let Some(reply) = answer_metadata(asked, &metadata("c", &[(1, at)], "t", &[1])) {
            return Some(reply);
        }
        let code = |fate: Result<(), Fate>| match fate {
            Ok(()) => Ok(ErrorCode::NONE),
            Err(Fate::Code(code)) => Ok(code),
            Err(Fate::Silence) => Err(Reply::Silence),
            Err(Fate::Cut) => Err(Reply::Close),
        };
        macro_rules! met {
            ($api:ty) => {
                self.met::<$api>(asked).map(code)
            };
        }
        if let Some(fate) = met!(FindCoordinatorRequest) {
            return Some(fate.map_or_else(
                |reply| reply,
                |error_code| {
                    let found = Coordinator {
                        node_id: BrokerId(1),
                        host: at.ip().to_string().into(),
                        port: at.port().into(),
                        error_code,
                        ..Default::default()
                    };
                    asked.answer::<FindCoordinatorRequest>(&FindCoordinatorResponse {
                        coordinators: vec![found],
                        ..Default::default()
                    })
                },
            ));
        }
        if let Some(fate) = met!(JoinGroupRequest) {
            let request: JoinGroupRequest = asked.body();
            let said: ConsumerProtocolSubscription =
                decode(request.protocols[0].metadata.clone()).unwrap();
            let claims = said.owned_partitions.iter().map(|t| t.partitions.len());
            let join = (
                request.member_id.to_string(),
                claims.sum(),
                said.generation_id,
            );
            self.joins.push(join);
            if self.rebalancing {
                return Some(Reply::Silence);
            }
            return Some(fate.map_or_else(
                |reply| reply,
                |error_code| {
                    if error_code.is_none() {
                        self.generation += 1;
                    }
                    asked.answer::<JoinGroupRequest>(&JoinGroupResponse {
                        error_code,
                        generation_id: self.generation,
                        leader: "m-1".into(),
                        member_id: "m-1".into(),
                        members: vec![JoinGroupResponseMember {
                            member_id: "m-1".into(),
                            group_instance_id: request.group_instance_id,
                            metadata: request.protocols[0].metadata.clone(),
                        }],
                        ..Default::default()
                    })
                },
            ));
        }
        if let Some(fate) = met!(SyncGroupRequest) {
            let request: SyncGroupRequest = asked.body();
            return Some(fate.map_or_else(
                |reply| reply,
                |error_code| {
                    asked.answer::<SyncGroupRequest>(&SyncGroupResponse {
                        error_code,
                        assignment: request.assignments[0].assignment.clone(),
                        ..Default::default()
                    })
                },
            ));
        }
        if let Some(fate) = met!(HeartbeatRequest) {
            let busy = self.rebalancing.then_some(ErrorCode::REBALANCE_IN_PROGRESS);
            return Some(fate.map_or_else(
                |reply| reply,
                |error_code| {
                    asked.answer::<HeartbeatRequest>(&HeartbeatResponse {
                        error_code: busy.unwrap_or(error_code),
                        ..Default::default()
                    })
                },
            ));
        }
        let fate = met!(LeaveGroupRequest)?;
        let request: LeaveGroupRequest = asked.body();
        assert_eq!(request.members[0].group_instance_id.as_deref(), Some("me"));
        Some(fate.map_or_else(
            |reply| reply,
            |error_code| {
                asked.answer::<LeaveGroupRequest>(&LeaveGroupResponse {
                    error_code,
                    ..Default::default()
                })
            },
        ))
    }

    fn count(&self, api: &str) -> usize {
        self.asked.iter().filter(|(name, _)| *name == api).count()
    }
}

/// A member of that group.
struct Member {
    fake: Arc<Mutex<Fake>>,
    handle: GroupHandle,
    stop: CancellationToken,
    running: JoinSet<Result<(), GroupError>>,
    _broker: FakeBroker,
    _wanted: watch::Sender<Option<Arc<[Work]>>>,
}

impl Member {
    async fn start(fates: &[(i16, Fate)]) -> Self {
        let fake = Arc::new(Mutex::new(Fake::default()));
        for (api, fate) in fates {
            fake.lock()
                .unwrap()
                .fates
                .entry(*api)
                .or_default()
                .push_back(*fate);
        }
        let answering = Arc::clone(&fake);
        let broker = FakeBroker::start(Box::new(move |asked| {
            answering.lock().unwrap().answer(asked)
        }))
        .await;
        fake.lock().unwrap().address = Some(broker.address);
        let mut options = ClusterOptions::new(Side::Destination, vec![broker.address.to_string()]);
        options.request_timeout = Duration::from_secs(1);
        let cluster = Cluster::new(options).unwrap();
        let identity = Identity {
            sidecar_id: "me".into(),
            broker_id: None,
            advertised: "me:1".parse().unwrap(),
            version: "1".into(),
            config_fingerprint: 1,
        };
        let mut options = GroupOptions::new("g", identity);
        options.session_timeout = SESSION;
        let piece = |n| Work {
            partition: TopicPartition::new("t", n),
            leader: None,
        };
        let wanted = watch::Sender::new(Some((0..3).map(piece).collect()));
        let (member, handle) = GroupMember::new(cluster, options, wanted.subscribe());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let mut running = JoinSet::new();
        running.spawn(async move { member.run(&stopped).await });
        Self {
            fake,
            handle,
            stop,
            running,
            _broker: broker,
            _wanted: wanted,
        }
    }

    fn fake(&self) -> MutexGuard<'_, Fake> {
        self.fake.lock().unwrap()
    }

    async fn until(&self, what: &str, right: impl Fn(&Fake, &GroupHandle) -> bool + Send + Sync) {
        poll_until(what, SOON, async || {
            let fake = self.fake();
            let refusal = || format!("{:?} {:?} {:?}", fake.asked, fake.joins, self.handle);
            right(&fake, &self.handle).then_some(()).ok_or_else(refusal)
        })
        .await;
    }

    async fn settled(&self, generation: i32) {
        self.until("three partitions and the right to decide", |_, handle| {
            let membership = handle.membership();
            let now = membership.borrow();
            now.generation == generation && now.mirror.len() == 3 && handle.lease().may_decide()
        })
        .await;
    }
}

const FIND: i16 = FindCoordinatorRequest::API_KEY;
const JOIN: i16 = JoinGroupRequest::API_KEY;
const SYNC: i16 = SyncGroupRequest::API_KEY;
const LEAVE: i16 = LeaveGroupRequest::API_KEY;
const BEAT: i16 = HeartbeatRequest::API_KEY;

#[tokio::test]
async fn a_member_comes_in_through_every_obstacle() {
    let cases = [
        (
            "a coordinator that is not elected",
            FIND,
            Fate::Code(ErrorCode::COORDINATOR_NOT_AVAILABLE),
            1,
        ),
        ("no answer to the question for it", FIND, Fate::Silence, 1),
        (
            "a coordinator that loads",
            JOIN,
            Fate::Code(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            1,
        ),
        (
            "one that is it no more",
            JOIN,
            Fate::Code(ErrorCode::NOT_COORDINATOR),
            1,
        ),
        (
            "one that wants the id repeated",
            JOIN,
            Fate::Code(ErrorCode::MEMBER_ID_REQUIRED),
            1,
        ),
        ("a connection that breaks", JOIN, Fate::Cut, 1),
        (
            "missing rights, until they are granted",
            JOIN,
            Fate::Code(ErrorCode::GROUP_AUTHORIZATION_FAILED),
            1,
        ),
        (
            "a rebalance in between",
            SYNC,
            Fate::Code(ErrorCode::REBALANCE_IN_PROGRESS),
            2,
        ),
        ("a lost SyncGroup", SYNC, Fate::Cut, 2),
    ];
    let case = |(what, api, fate, generation)| async move {
        let member = Member::start(&[(api, fate)]).await;
        member.settled(generation).await;
        let fake = member.fake();
        let again = &fake.joins[fake.joins.len() - 1];
        let repeats = fake.joins.len() > 1 && !matches!(fate, Fate::Cut if api == JOIN);
        let known = repeats
            && !matches!(fate, Fate::Code(code) if api == JOIN && code != ErrorCode::MEMBER_ID_REQUIRED);
        assert_eq!(
            again.0,
            if known { "m-1" } else { "" },
            "{what}: {:?}",
            fake.joins
        );
    };
    join_all(cases.map(case)).await;
}

#[tokio::test]
async fn heartbeats_keep_the_pace_and_their_answers_lead_back_into_the_group() {
    // What a heartbeat is told, and how the member joins again: with which member id, whether it could decide throughout.
    let cases = [
        (
            Fate::Code(ErrorCode::REBALANCE_IN_PROGRESS),
            Some("m-1"),
            true,
        ),
        (
            Fate::Code(ErrorCode::ILLEGAL_GENERATION),
            Some("m-1"),
            false,
        ),
        (Fate::Code(ErrorCode::UNKNOWN_MEMBER_ID), Some(""), false),
        (Fate::Code(ErrorCode::NOT_COORDINATOR), None, true),
        (
            Fate::Code(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            None,
            true,
        ),
        (Fate::Code(ErrorCode::COORDINATOR_NOT_AVAILABLE), None, true),
        (Fate::Cut, None, true),
    ];
    let case = |(fate, member_id, keeps_right): (Fate, Option<&'static str>, bool)| async move {
        // Without the right, it is long enough without an answer for that to be seen.
        let mut fates = vec![(BEAT, fate), (JOIN, Fate::Code(ErrorCode::NONE))];
        fates.extend((!keeps_right).then_some((JOIN, Fate::Silence)));
        let member = Member::start(&fates).await;
        let mut rights = JoinSet::new();
        member.settled(1).await;
        let lease = member.handle.lease().clone();
        rights.spawn(async move {
            while lease.may_decide() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        member
            .until("four heartbeats", |fake, _| fake.count("Heartbeat") >= 4)
            .await;
        member
            .settled(if member_id.is_some() { 2 } else { 1 })
            .await;
        let fake = member.fake();
        match member_id {
            Some(id) => {
                let silence = usize::from(!keeps_right);
                assert_eq!(fake.joins.len(), 2 + silence, "{:?}", fake.joins);
                assert_eq!(
                    fake.joins[1],
                    (id.into(), 3, 1),
                    "with its claims, as of generation 1"
                );
            }
            None => {
                assert_eq!(fake.joins.len(), 1, "{:?}", fake.joins);
                assert!(fake.count("FindCoordinator") >= 2, "{:?}", fake.asked);
            }
        }
        assert_eq!(rights.try_join_next().is_none(), keeps_right, "{fate:?}");
        let beats = fake.asked.iter().filter(|(api, _)| *api == "Heartbeat");
        let beats: Vec<_> = beats.map(|(_, at)| *at).collect();
        let pace = beats[3] - beats[2];
        let slack = Duration::from_millis(20);
        assert!(
            pace > SESSION / 3 - slack && pace < SESSION * 2 / 3,
            "{pace:?}"
        );
    };
    join_all(cases.map(case)).await;
}

#[tokio::test]
async fn who_waits_for_others_to_join_keeps_its_right_and_gives_up_a_mute_coordinator() {
    let member = Member::start(&[]).await;
    member.settled(1).await;
    member.fake().rebalancing = true;
    member
        .until("it joins", |fake, _| fake.joins.len() == 2)
        .await;
    let begin = Instant::now();
    // Far longer than the right lasts without a word.
    member
        .until("heartbeats while it waits", |fake, handle| {
            assert!(handle.lease().may_decide());
            assert_eq!(fake.joins.len(), 2, "it waits");
            assert_eq!(handle.membership().borrow().mirror.len(), 3);
            begin.elapsed() > SESSION * 3 / 2
        })
        .await;
    member.fake().mute = true;
    member
        .until("the right runs out", |_, handle| {
            !handle.lease().may_decide()
        })
        .await;
    assert_eq!(
        member.handle.membership().borrow().mirror.len(),
        3,
        "copying goes on"
    );
    {
        let mut fake = member.fake();
        fake.mute = false;
        fake.rebalancing = false;
    }
    member.settled(2).await;
    let fake = member.fake();
    let last = &fake.joins[fake.joins.len() - 1];
    assert_eq!(*last, ("m-1".into(), 3, 1));
}

#[tokio::test]
async fn an_ordinary_stop_keeps_the_place_and_leaving_takes_it_out() {
    for leaves in [false, true] {
        let moves = Fate::Code(ErrorCode::NOT_COORDINATOR);
        let mut member = Member::start(&[(LEAVE, moves)]).await;
        member.settled(1).await;
        if leaves {
            member.handle.leave_on_stop();
        }
        member.stop.cancel();
        if leaves {
            member
                .until("all is to be given up", |_, handle| {
                    handle.membership().borrow().revoking.len() == 3
                })
                .await;
            assert_eq!(
                member.fake().count("LeaveGroup"),
                0,
                "not before it is given up"
            );
            let now = Arc::clone(&member.handle.membership().borrow());
            assert!(now.revoking.iter().all(|tp| member.handle.may_decide(tp)));
            member.handle.given_up(now.round, &now.revoking);
        }
        member.running.join_next().await.unwrap().unwrap().unwrap();
        let tries = if leaves { 2 } else { 0 };
        assert_eq!(member.fake().count("LeaveGroup"), tries);
        assert!(!member.handle.lease().may_decide());
    }
}
