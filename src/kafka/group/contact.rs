//! Contact of a member with its coordinator: heartbeats, also while it joins, and what the coordinator's error codes mean.
//! Must not join, or touch what is held.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::calls::{CallError, Trouble};
use super::{GroupError, GroupMember, until};
use crate::kafka::connection::{Connection, Pending};
use crate::kafka::contact::chain;
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::Request;

/// Heartbeats follow each other at this distance while something moves: members learn by them that the next generation has
/// begun, and until it has, what moves is nobody's.
pub(super) const MOVING_INTERVAL: Duration = Duration::from_millis(250);

/// Failures in a row before an operator is told.
const FAILURES_SAID: u32 = 7;

impl GroupMember {
    /// Shows the coordinator that we live. An error is a reason to join again; a coordinator that cannot be asked is none.
    pub(super) async fn heartbeat(&mut self) -> Result<(), Trouble> {
        self.schedule_beat();
        let beat = self.calls.heartbeat(&self.member_id, self.generation);
        let error = match beat.await {
            Ok((sent, ErrorCode::NONE)) => {
                self.lease.renew(sent);
                self.answered();
                return Ok(());
            }
            Ok((sent, ErrorCode::REBALANCE_IN_PROGRESS)) => {
                self.lease.renew(sent);
                return Err(Trouble::Rejoin("others join or leave"));
            }
            Ok((_, code)) => match self.refused("Heartbeat", code) {
                Trouble::Again(error) => error,
                other => return Err(other),
            },
            Err(error) => match Trouble::from(error) {
                Trouble::Again(error) => error,
                other => return Err(other),
            },
        };
        // Our place is not in doubt, only the coordinator is: the same generation goes on elsewhere.
        self.calls.forget_coordinator();
        self.failed(&error);
        self.pause(self.failures).await;
        self.beat_due = Instant::now();
        Ok(())
    }

    /// The next heartbeat is due an interval from now.
    pub(super) fn schedule_beat(&mut self) {
        let now = Instant::now();
        let moving = self.moving_until.is_some_and(|until| now < until);
        let usual = self.calls.heartbeat_interval();
        let interval = if moving {
            MOVING_INTERVAL.min(usual)
        } else {
            usual
        };
        self.beat_due = now + interval;
    }

    /// Waits for the answer to a call that waits for others, and shows the coordinator meanwhile that we live.
    pub(super) async fn beating<R: Request>(
        &mut self,
        connection: &Connection,
        answer: Pending<R>,
        generation: i32,
    ) -> Result<R::Response, Trouble> {
        let mut answer = pin!(answer);
        loop {
            let known = self.generation >= 0 && self.continuous;
            let due = known.then_some(self.beat_due);
            tokio::select! {
                answer = &mut answer => return answer.map_err(|error| self.lost(error.into())),
                () = until(due) => {}
            }
            self.beat_due = Instant::now() + self.calls.heartbeat_interval();
            let member_id = Arc::clone(&self.member_id);
            let beat = self.calls.heartbeat(&member_id, generation);
            let beat = tokio::select! {
                answer = &mut answer => return answer.map_err(|error| self.lost(error.into())),
                beat = beat => beat,
            };
            match beat {
                Ok((sent, ErrorCode::NONE | ErrorCode::REBALANCE_IN_PROGRESS)) => {
                    self.lease.renew(sent);
                }
                Ok((_, ErrorCode::FENCED_INSTANCE_ID)) => return Err(self.fenced()),
                Ok((_, ErrorCode::UNKNOWN_MEMBER_ID)) => self.disconnected(),
                // The generation is over that we asked with, and our answer on its way; or the coordinator moves, and the
                // answer will say so.
                Ok((_, code)) => debug!(%code, "heartbeat while joining"),
                Err(error) => {
                    // A coordinator that is mute here will not answer there either; and what waits there would hold up
                    // whatever came after it.
                    connection.close();
                    return Err(self.lost(error));
                }
            }
        }
    }

    /// Another may have our work from now on.
    pub(super) fn disconnected(&mut self) {
        self.lease.close();
        self.continuous = false;
        // What was decided in a generation that is long over says nothing about who has what.
        self.leading = None;
        self.shared.tell_unowned(0);
    }

    pub(super) fn fenced(&mut self) -> Trouble {
        self.disconnected();
        Trouble::Fatal(GroupError::Fenced {
            group_id: Arc::clone(&self.options.group_id),
            sidecar_id: Arc::clone(&self.options.identity.sidecar_id),
        })
    }

    /// The coordinator is not where it was, or not to be reached.
    pub(super) fn lost(&mut self, error: CallError) -> Trouble {
        self.calls.forget_coordinator();
        error.into()
    }

    /// What an error code of the coordinator means.
    pub(super) fn refused(&mut self, api: &'static str, code: ErrorCode) -> Trouble {
        match code {
            ErrorCode::FENCED_INSTANCE_ID => self.fenced(),
            ErrorCode::UNKNOWN_MEMBER_ID => {
                self.disconnected();
                self.member_id = "".into();
                Trouble::Rejoin("the group does not know us any more")
            }
            ErrorCode::ILLEGAL_GENERATION => {
                self.disconnected();
                Trouble::Rejoin("the group went on without us")
            }
            ErrorCode::REBALANCE_IN_PROGRESS => Trouble::Rejoin("others join or leave"),
            ErrorCode::INVALID_SESSION_TIMEOUT
            | ErrorCode::INVALID_GROUP_ID
            | ErrorCode::INCONSISTENT_GROUP_PROTOCOL => Trouble::Fatal(GroupError::Refused {
                group_id: Arc::clone(&self.options.group_id),
                api,
                code,
            }),
            code => self.lost(CallError::Refused { api, code }),
        }
    }

    /// Says once that the group cannot be reached, until it can.
    pub(super) fn failed(&mut self, error: &CallError) {
        self.failures = self.failures.saturating_add(1);
        let words = chain(error);
        // A coordinator that moves, a connection that broke or a cluster that is new (its topic of groups is being made) is nothing
        // to speak of if one of the next tries succeeds, within about two seconds.
        if self.failures >= FAILURES_SAID && !self.said {
            self.said = true;
            warn!(group = %self.options.group_id, error = %words, "cannot take part in the group, trying until it can");
        } else {
            debug!(group = %self.options.group_id, failures = self.failures, error = %words, "group call failed");
        }
    }

    pub(super) fn answered(&mut self) {
        self.failures = 0;
        if std::mem::take(&mut self.said) {
            info!(group = %self.options.group_id, "takes part in the group again");
        }
    }

    pub(super) async fn pause(&self, failures: u32) {
        let pause = self.options.backoff.pause(failures, rand::random());
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
}
