//! What the endpoint shows of the process: readiness, status, and the gauges that are set when somebody looks. Must not
//! change anything but gauges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Config, HostPort};
use crate::coordinator::{Handle, MirrorWork, ReadModel};
use crate::domain::desired::TopicSet;
use crate::domain::status::{GroupStatus, MemberStatus, MirrorStatus, RecordedMirror, Status};
use crate::domain::types::BrokerId;
use crate::http;
use crate::kafka::cluster::Cluster;
use crate::kafka::contact::{Contact, ContactView};
use crate::kafka::group::{GroupHandle, Identity, Membership, boot_time};
use crate::metrics::Metrics;
use crate::mirror::report::cluster_status;
use crate::server::ConfiguredMirror;

/// What the endpoint shows of one mirror.
#[derive(Clone)]
pub(super) struct MirrorView {
    pub(super) topics: watch::Receiver<Arc<TopicSet>>,
    pub(super) status: watch::Receiver<Arc<MirrorStatus>>,
    pub(super) configured: ConfiguredMirror,
    pub(super) source_contact: Arc<Contact>,
    pub(super) destination_contact: Arc<Contact>,
    pub(super) destination: Cluster,
}

impl MirrorView {
    pub(super) fn work(&self) -> MirrorWork {
        MirrorWork {
            topics: self.topics.clone(),
            destination: self.destination.clone(),
        }
    }
}

/// Everything that is looked at. Cheap to clone.
#[derive(Clone)]
pub(super) struct View {
    pub(super) mirrors: watch::Receiver<Arc<[MirrorView]>>,
    /// This process as it began: its configuration may be another one now.
    pub(super) this: Identity,
    pub(super) group: GroupHandle,
    pub(super) states: Handle,
    /// How many partitions the state topic is to have.
    pub(super) state_partitions: i32,
}

impl View {
    fn mirrors(&self) -> Arc<[MirrorView]> {
        Arc::clone(&self.mirrors.borrow())
    }

    /// This process, as the others know it.
    fn this(&self) -> Identity {
        Identity {
            config_fingerprint: self.group.config_fingerprint(),
            ..self.this.clone()
        }
    }

    /// Whether the process can work.
    pub(super) fn readiness(&self) -> http::ReadinessSource {
        let view = self.clone();
        Arc::new(move || {
            let destination = destination_view(&view.mirrors());
            let missing = (!destination.reachable).then(|| match destination.error {
                Some(error) => format!("the destination cluster cannot be reached: {error}"),
                None => "the destination cluster has not answered yet".to_owned(),
            });
            let mut missing: Vec<String> = missing.into_iter().collect();
            if !view.states.is_ready() {
                missing.push("the state topic is not loaded yet".to_owned());
            }
            http::Readiness { missing }
        })
    }

    /// Sets the gauges of what changes by itself.
    pub(super) fn refresh(&self, metrics: &Metrics) -> http::MetricsRefresh {
        let (metrics, view) = (metrics.clone(), self.clone());
        let started = Instant::now();
        Arc::new(move || {
            let age = started.elapsed();
            let seconds = |view: ContactView| view.since_last_answer.unwrap_or(age).as_secs_f64();
            metrics
                .destination_last_contact_seconds
                .set(seconds(destination_view(&view.mirrors())));
            for mirror in view.mirrors().iter() {
                let labels = [&*mirror.configured.name];
                metrics
                    .source_last_contact_seconds
                    .with_label_values(&labels)
                    .set(seconds(mirror.source_contact.view()));
            }
            let now = Arc::clone(&view.group.membership().borrow());
            let contact = view.group.lease().last_contact();
            let contact = contact.map_or(age, |at| boot_time().saturating_sub(at));
            show_group(&metrics, &now, &view.this(), &view.brokers(), contact);
            metrics
                .unowned_partitions
                .set(whole(view.group.unowned_partitions()));
            metrics.show_state_partitions(
                usize::try_from(view.state_partitions).unwrap_or(0),
                view.states.ready_partitions(),
            );
            metrics.state_keys.set(whole(view.states.model().keys()));
        })
    }

    /// The destination's brokers, as the first mirror that knows them does.
    fn brokers(&self) -> BTreeSet<BrokerId> {
        let mirrors = self.mirrors();
        let mut known = mirrors.iter().map(|mirror| {
            let leaders = mirror.destination.leaders();
            leaders.brokers.keys().copied().collect::<BTreeSet<_>>()
        });
        known
            .find(|brokers| !brokers.is_empty())
            .unwrap_or_default()
    }

    /// The status as it is when somebody asks.
    pub(super) fn status(
        &self,
        started_at_seconds: Option<u64>,
        config: &Config,
    ) -> http::StatusSource {
        let servers: Vec<String> = config
            .destination
            .bootstrap_servers
            .iter()
            .map(HostPort::to_string)
            .collect();
        let (view, group_id) = (self.clone(), config.group.id.clone());
        Arc::new(move || {
            let mirrors = &view.mirrors();
            let now = Arc::clone(&view.group.membership().borrow());
            let may_decide = view.group.lease().may_decide();
            let names = mirrors.iter().map(|mirror| &*mirror.configured.name);
            Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started_at_seconds,
                sidecar: view.this.sidecar_id.to_string(),
                group: group_status(&group_id, &now, &view.this(), may_decide),
                destination: cluster_status(
                    servers.clone(),
                    mirrors
                        .iter()
                        .find_map(|mirror| mirror.destination.cluster_id()),
                    destination_view(mirrors),
                ),
                recorded: recorded(view.states.model(), names),
                mirrors: mirrors
                    .iter()
                    .map(|mirror| MirrorStatus::clone(&mirror.status.borrow()))
                    .collect(),
            }
        })
    }
}

/// The destination counts as reachable if any mirror reaches it.
fn destination_view(mirrors: &[MirrorView]) -> ContactView {
    let mut views: Vec<ContactView> = mirrors
        .iter()
        .map(|mirror| mirror.destination_contact.view())
        .collect();
    views.sort_by_key(|view| {
        (
            !view.reachable,
            view.since_last_answer.is_none(),
            view.since_last_answer,
        )
    });
    views.into_iter().next().unwrap_or_default()
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Sets the gauges of what this process knows of the group.
fn show_group(
    metrics: &Metrics,
    now: &Membership,
    this: &Identity,
    brokers: &BTreeSet<BrokerId>,
    contact: Duration,
) {
    metrics.group_members.set(whole(now.members.len()));
    metrics.group_generation.set(i64::from(now.generation));
    metrics.group_contact_seconds.set(contact.as_secs_f64());
    let differs = |member: &&Identity| member.config_fingerprint != this.config_fingerprint;
    let different = now.members.iter().filter(differs).count();
    metrics.config_differs.set(whole(different));
    let alone = without_sidecar(brokers, &now.members);
    metrics.brokers_without_sidecar.set(whole(alone));
}

/// How many brokers no member stands beside; none where members do not say where they stand.
fn without_sidecar(brokers: &BTreeSet<BrokerId>, members: &[Identity]) -> usize {
    let beside: BTreeSet<BrokerId> = members.iter().filter_map(|one| one.broker_id).collect();
    if beside.is_empty() {
        return 0;
    }
    brokers.difference(&beside).count()
}

fn group_status(id: &str, now: &Membership, this: &Identity, may_decide: bool) -> GroupStatus {
    let members = now.members.iter().map(|one| MemberStatus {
        sidecar: one.sidecar_id.to_string(),
        broker_id: one.broker_id,
        address: one.advertised.to_string(),
        version: one.version.to_string(),
        config_differs: one.config_fingerprint != this.config_fingerprint,
    });
    GroupStatus {
        id: id.to_owned(),
        generation: now.generation,
        members: members.collect(),
        may_decide,
    }
}

/// What the state topic says of these mirrors; those that it says nothing of are left out.
fn recorded<'n>(
    model: &ReadModel,
    names: impl Iterator<Item = &'n str>,
) -> BTreeMap<String, RecordedMirror> {
    let known = model.mirrors();
    let of = |name: &str| {
        let mirror = known.get(name);
        let topics = model.topics(&Arc::from(name));
        (mirror.is_some() || !topics.is_empty()).then(|| RecordedMirror {
            deleting: mirror.is_some_and(|mirror| mirror.deleting),
            topics: topics
                .into_iter()
                .map(|(topic, value)| (topic, value.desired))
                .collect(),
        })
    };
    names
        .filter_map(|name| Some((name.to_owned(), of(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn member(id: &str, broker_id: Option<i32>, config_fingerprint: u64) -> Identity {
        Identity {
            sidecar_id: id.into(),
            broker_id: broker_id.map(BrokerId),
            advertised: "h:9".parse().unwrap(),
            version: "1".into(),
            config_fingerprint,
        }
    }

    fn group(members: Vec<Identity>) -> Membership {
        Membership {
            generation: 7,
            members,
            ..Membership::default()
        }
    }

    #[test]
    fn brokers_without_a_sidecar_count_only_where_sidecars_say_where_they_stand() {
        let brokers = BTreeSet::from([1, 2, 3].map(BrokerId));
        for (members, wanted) in [
            (vec![], 0),
            (vec![None, None], 0),
            (vec![Some(1)], 2),
            (vec![Some(1), None], 2),
            (vec![Some(1), Some(2), Some(2), Some(3)], 0),
            (vec![Some(9)], 3),
        ] {
            let all: Vec<_> = members.iter().map(|at| member("m", *at, 0)).collect();
            assert_eq!(without_sidecar(&brokers, &all), wanted, "{members:?}");
        }
        assert_eq!(
            without_sidecar(&BTreeSet::new(), &[member("m", Some(1), 0)]),
            0
        );
    }

    #[test]
    fn the_group_is_shown_as_this_process_knows_it() {
        let metrics = Metrics::new("0").unwrap();
        let this = member("a", Some(1), 5);
        let other = member("b", None, 6);
        let now = group(vec![this.clone(), other]);
        let brokers = BTreeSet::from([BrokerId(1), BrokerId(2)]);
        show_group(
            &metrics,
            &now,
            &this,
            &brokers,
            Duration::from_millis(1_500),
        );
        let text = TextEncoder::new()
            .encode_to_string(&metrics.registry().gather())
            .unwrap();
        for line in [
            "truemirror_group_members 2\n",
            "truemirror_group_generation 7\n",
            "truemirror_group_contact_seconds 1.5\n",
            "truemirror_config_differs 1\n",
            "truemirror_brokers_without_sidecar 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let shown = group_status("g", &now, &this, true);
        assert_eq!((shown.generation, shown.may_decide), (7, true));
        let differ: Vec<_> = shown.members.iter().map(|m| m.config_differs).collect();
        assert_eq!(differ, [false, true]);
        assert_eq!(shown.members[0].address, "h:9");
    }
}
