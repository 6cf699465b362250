//! One member of the group that shares the work among the sidecars of a destination: Kafka's classic group protocol with
//! static membership (KIP-345) and cooperative moves (KIP-429). The coordinator of the group is the failure detector, the
//! membership list and the lease. Must not know what the work is, or do any of it.
//!
//! ```text
//! find the coordinator -> JoinGroup (who we are, what we claim) -> SyncGroup (what we are given) -> heartbeats
//!                             ^                                                                        |
//!                             +-- rebalance, given up what others wait for, new work (leader),
//!                                 another configuration -----------------------------------------------+
//! ```
//!
//! - **Joining takes nothing away.** A member works on while it joins, and heartbeats go on over a connection of their own:
//!   a rebalance may last as long as the session of a member that died.
//! - **A move takes two generations.** In the first, its owner loses the partition and nobody gets it; once the owner has
//!   given it up and has joined again, its new owner gets it.
//! - **A restart keeps its place.** The process that joins with the id of another takes its place and its work without a
//!   rebalance; the other one is fenced (FENCED_INSTANCE_ID), if it still lives. So an ordinary stop sends no LeaveGroup.
//!   Until its next heartbeat, at most a third of the session, the other one does not know: two living processes with one
//!   id are an operator's mistake that ends the first of them.
//! - **The leader follows the leaders.** One member computes the assignment ([`crate::domain::assign`]) and joins again
//!   when the work or its leaders have changed so that another one is wanted. If it restarts, the coordinator keeps it the
//!   leader and tells it to leave the assignment alone (KIP-814, Kafka 3.2); by the fingerprint of the work in it, it
//!   knows whether there is news.

mod calls;
mod contact;
mod holdings;
mod leading;
mod lease;
mod options;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::holdings::{GroupHandle, Identity, Membership};
pub use self::lease::{Lease, boot_time};
pub use self::options::{GroupError, GroupOptions, Wanted};

use self::calls::{CallError, Calls, Claim, Trouble};
use self::contact::MOVING_INTERVAL;
use self::holdings::{Holdings, Shared};
use self::leading::{Given, Leading};
use super::cluster::{Cluster, Lane};
use super::connection::Connection;
use super::contact::chain;
use crate::wire::api::groups::{JoinGroupRequest, JoinGroupResponse, SyncGroupRequest};
use crate::wire::consumer_protocol::encode;
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::Request;

/// Tries to leave the group; after that its session has to run out.
const LEAVE_TRIES: u32 = 3;

/// A leader looks at changes of the work at most this often.
const NEWS_SPACING: Duration = Duration::from_secs(1);

/// One member of the group, as a future: see [`GroupMember::run`]. When it is dropped, so is the right to decide.
#[derive(Debug)]
pub struct GroupMember {
    options: GroupOptions,
    calls: Calls,
    wanted: watch::Receiver<Wanted>,
    /// False once nobody can say anything new about the work.
    wanted_open: bool,
    holdings: Holdings,
    shared: Arc<Shared>,
    lease: Lease,
    /// What the coordinator calls this process; empty until it said so.
    member_id: Arc<str>,
    /// The generation of the last assignment; -1 before the first.
    generation: i32,
    /// False if generations may have gone by without us since the last assignment.
    continuous: bool,
    /// Others wait for what is being given up.
    awaited: bool,
    give_up_by: Option<Instant>,
    beat_due: Instant,
    /// Until then the next generation is expected any moment.
    moving_until: Option<Instant>,
    leading: Option<Leading>,
    news_due: Option<Instant>,
    news_looked: Instant,
    failures: u32,
    said: bool,
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.lease.close();
    }
}

impl GroupMember {
    /// A member that has not joined yet, and the handle for those who do its work. `wanted` counts if this member leads.
    pub fn new(
        cluster: Cluster,
        options: GroupOptions,
        wanted: watch::Receiver<Wanted>,
    ) -> (Self, GroupHandle) {
        let (holdings, shared, membership) = Holdings::new();
        shared.set_config_fingerprint(options.identity.config_fingerprint);
        let lease = Lease::new(options.session_timeout);
        let now = Instant::now();
        let handle = GroupHandle {
            shared: Arc::clone(&shared),
            membership,
            lease: lease.clone(),
        };
        let member = Self {
            calls: Calls::new(cluster, &options),
            options,
            wanted,
            wanted_open: true,
            holdings,
            shared,
            lease,
            member_id: "".into(),
            generation: -1,
            continuous: true,
            awaited: false,
            give_up_by: None,
            beat_due: now,
            moving_until: None,
            leading: None,
            news_due: None,
            news_looked: now,
            failures: 0,
            said: false,
        };
        (member, handle)
    }

    /// Takes part until `stop`, then keeps its place for the next process with this id, or leaves, see
    /// [`GroupHandle::leave_on_stop`]. Before it returns, nobody may decide any more.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub async fn run(mut self, stop: &CancellationToken) -> Result<(), GroupError> {
        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            error = self.serve() => Err(error),
        };
        match &ended {
            Ok(()) if self.shared.leaves() => self.leave().await,
            Ok(()) => {}
            Err(_) => {
                // What was ours may be another's.
                self.lease.close();
                self.holdings.assigned(Default::default(), false);
                self.holdings.publish(|membership| membership.leads = false);
            }
        }
        ended
    }

    async fn serve(&mut self) -> GroupError {
        let mut reason = "started";
        loop {
            let trouble = match self.one_generation(reason).await {
                Ok(next) => Trouble::Rejoin(next),
                Err(trouble) => trouble,
            };
            match trouble {
                Trouble::Fatal(error) => return error,
                Trouble::Rejoin(next) => {
                    debug!(group = %self.options.group_id, reason = next, "joining the group again");
                    reason = next;
                    // The first time at once.
                    self.failures = self.failures.saturating_add(1);
                    self.pause(self.failures.saturating_sub(1)).await;
                }
                Trouble::Again(error) => {
                    self.failed(&error);
                    self.pause(self.failures).await;
                }
            }
        }
    }

    /// Joins, takes what is given, and stays until there is a reason to join again.
    async fn one_generation(&mut self, reason: &str) -> Result<&'static str, Trouble> {
        let (connection, joined) = self.join(reason).await?;
        self.sync(&connection, joined).await?;
        self.stay().await
    }

    async fn join(&mut self, reason: &str) -> Result<(Connection, JoinGroupResponse), Trouble> {
        loop {
            let connection = self.reach(Lane::Group).await?;
            let claim = Claim {
                owned: &self.holdings.claims(),
                generation: self.generation,
                user_data: encode(&self.options.identity.to_data()).map_err(CallError::from)?,
                reason,
            };
            let sent = boot_time();
            let pending = self.calls.join(&connection, &self.member_id, claim)?;
            let answer = self.beating(&connection, pending, self.generation).await?;
            match answer.error_code {
                ErrorCode::NONE => {
                    self.lease.renew(sent);
                    self.member_id = Arc::clone(&answer.member_id);
                    return Ok((connection, answer));
                }
                // A coordinator that wants to know that we live before it remembers us (KIP-394).
                ErrorCode::MEMBER_ID_REQUIRED if self.member_id != answer.member_id => {
                    self.member_id = answer.member_id;
                }
                code => return Err(self.refused(JoinGroupRequest::NAME, code)),
            }
        }
    }

    async fn sync(
        &mut self,
        connection: &Connection,
        joined: JoinGroupResponse,
    ) -> Result<(), Trouble> {
        let generation = joined.generation_id;
        let leads = joined.leader == joined.member_id;
        let mut assignments = Vec::new();
        let mut leading = None;
        if leads && !joined.skip_assignment {
            self.wait_for_work().await;
            let wanted = self.wanted.borrow_and_update().clone();
            let before = self.leading.as_ref();
            let (decided, found) = leading::lead(generation, &joined.members, &wanted, before)
                .map_err(CallError::from)?;
            assignments = found;
            leading = Some(decided);
        }
        // As good as a heartbeat.
        self.beat_due = Instant::now() + self.calls.heartbeat_interval();
        let sent = boot_time();
        let pending = self
            .calls
            .sync(connection, &self.member_id, generation, assignments);
        let answer = self.beating(connection, pending, generation).await?;
        if let Err(code) = answer.error_code.ok() {
            return Err(self.refused(SyncGroupRequest::NAME, code));
        }
        let given = Given::read(answer.assignment).map_err(CallError::from)?;
        let inherited = || Leading::inherited(given.work_fingerprint);
        self.leading = leads.then(|| leading.unwrap_or_else(inherited));
        self.count_unowned();
        self.news_due = leads.then(|| self.news_looked + NEWS_SPACING);
        // In this order: who may decide, may do so about what is told by then.
        self.take(generation, given);
        self.lease.open(sent);
        Ok(())
    }

    /// A process that has just begun may lead before it knows what there is to do. The others work on meanwhile, but what it had
    /// itself before its restart would be nobody's until the next generation.
    async fn wait_for_work(&mut self) {
        if self.wanted_open {
            let known = self.wanted.wait_for(Option::is_some);
            // Whatever comes of it, what is known then is gone by.
            timeout(self.calls.work_patience(), known).await.ok();
        }
    }

    /// Takes an assignment over, and tells it.
    fn take(&mut self, generation: i32, given: Given) {
        let leads = self.leading.is_some();
        let us = &self.options.identity;
        let known_as = given.members.iter().find(|m| m.sidecar_id == us.sidecar_id);
        // The place that a restarted process takes may be known by another address, say: the others are to hear.
        let outdated = self.generation < 0 && known_as.is_some_and(|known| known != us);
        self.holdings.assigned(given.partitions, self.continuous);
        self.awaited = given.awaited || outdated;
        // Whoever gives up has so long for it, and joins then.
        let soon = self.options.give_up_timeout + MOVING_INTERVAL * 4;
        let moving = given.moving.then(|| Instant::now() + soon);
        self.moving_until = moving;
        if moving.is_some() {
            self.schedule_beat();
        }
        self.generation = generation;
        self.continuous = true;
        let giving_up = self.holdings.is_giving_up();
        let by = self.give_up_by.filter(|_| giving_up);
        self.give_up_by =
            by.or_else(|| giving_up.then(|| Instant::now() + self.options.give_up_timeout));
        self.holdings.publish(|membership| {
            membership.generation = generation;
            membership.leads = leads;
            membership.members = given.members;
        });
        self.answered();
        info!(
            group = %self.options.group_id,
            generation,
            leads,
            held = self.holdings.held(),
            giving_up,
            "work assigned"
        );
    }

    /// Sends heartbeats until there is a reason to join again.
    async fn stay(&mut self) -> Result<&'static str, Trouble> {
        loop {
            if !self.holdings.is_giving_up() {
                if self.give_up_by.take().is_some() {
                    self.holdings.publish(|_| {});
                }
                if self.awaited {
                    return Ok("others wait for our word");
                }
            }
            let news_due = self.news_due.filter(|_| self.leading.is_some());
            tokio::select! {
                () = sleep_until(self.beat_due) => self.heartbeat().await?,
                () = self.shared.given_up.notified() => {}
                () = self.shared.reconfigured.notified() => {
                    self.options.identity.config_fingerprint = self.shared.config_fingerprint();
                    return Ok("the configuration has changed");
                }
                () = until(self.give_up_by) => self.force(),
                () = until(news_due) => {
                    if self.has_news() {
                        return Ok("the work or its leaders have changed");
                    }
                }
                changed = self.wanted.changed(), if self.wanted_open => {
                    self.wanted_open = changed.is_ok();
                    self.news_due = Some(self.news_looked + NEWS_SPACING);
                }
            }
        }
    }

    /// Gives up all work, for which there is the usual time, and takes its place out of the group.
    async fn leave(&mut self) {
        self.holdings.assigned(Default::default(), true);
        self.holdings.publish(|membership| membership.leads = false);
        let by = Instant::now() + self.options.give_up_timeout;
        while self.holdings.is_giving_up() && Instant::now() < by {
            tokio::select! {
                () = sleep_until(self.beat_due) => {
                    self.beat_due = Instant::now() + self.calls.heartbeat_interval();
                    let beat = self.calls.heartbeat(&self.member_id, self.generation);
                    if let Ok((sent, ErrorCode::NONE | ErrorCode::REBALANCE_IN_PROGRESS)) = beat.await {
                        self.lease.renew(sent);
                    }
                }
                () = self.shared.given_up.notified() => {}
                () = sleep_until(by) => self.force(),
            }
        }
        self.lease.close();
        self.holdings.publish(|_| {});
        let after = self.calls.short();
        let mut last = String::new();
        for attempt in 1..=LEAVE_TRIES {
            last = match timeout(after, self.calls.leave(&self.member_id)).await {
                Ok(Ok(())) => {
                    info!(group = %self.options.group_id, "left the group");
                    return;
                }
                Ok(Err(error)) => chain(&error).to_string(),
                Err(_) => format!("no answer within {after:?}"),
            };
            self.calls.forget_coordinator();
            self.pause(attempt).await;
        }
        info!(group = %self.options.group_id, error = %last, "did not leave the group, the session will run out");
    }

    async fn reach(&mut self, lane: Lane) -> Result<Connection, Trouble> {
        let connection = self.calls.connection(lane).await;
        connection.map_err(|error| self.lost(error))
    }

    /// Says how much work nobody has, if this member is to know.
    fn count_unowned(&self) {
        let wanted = self.wanted.borrow();
        let unowned = match (&self.leading, &*wanted) {
            (Some(leading), Some(work)) => leading.unowned(work),
            _ => 0,
        };
        self.shared.tell_unowned(unowned);
    }

    fn has_news(&mut self) -> bool {
        self.news_due = None;
        self.news_looked = Instant::now();
        self.count_unowned();
        let wanted = self.wanted.borrow_and_update().clone();
        let (Some(leading), Some(work)) = (&mut self.leading, wanted) else {
            return false;
        };
        leading.wants_another(&work)
    }

    fn force(&mut self) {
        let forced = self.holdings.force();
        if let Some(example) = forced.first() {
            warn!(
                partitions = forced.len(),
                example = %example,
                after = ?self.options.give_up_timeout,
                "work that goes to another member was not given up in time, it goes all the same"
            );
        }
    }
}

/// Waits until then; for ever without a time.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
