//! A trial: one way to queue, in one setting, for a time.

use std::sync::Arc;

use benches::contender::{
    Acknowledged, BlindSets, Classic, Contender, Grouped, Members, Naive, Popped, RATED, Site,
};
use benches::figures::Figures;
use benches::load::{Load, Sample};
use benches::meter::Metered;
use benches::process::{Part as _, play_in_children};
use benches::stage::{Stage, runtime};
use keyspace::{Store, Subspace};
use serde::{Deserialize, Serialize};

/// The ways to queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    BlindSets,
    Naive,
    Classic,
    Popped,
    Acknowledged,
    /// Items of 100, 1,000 or 100,000 groups without a limit, popped or acknowledged.
    HundredGroups,
    ThousandGroups,
    ThousandGroupsOfWeight8,
    ManyGroups,
    ThousandGroupsAcknowledged,
    /// Items of 100 groups, of which 10 of each may be held.
    Limited,
    /// Items of 1,000 groups with a rate that keeps none waiting, popped.
    Rated,
    /// Items of one group, one after another.
    Ordered,
    /// Members of a batch, popped or acknowledged.
    Members,
    MembersAcknowledged,
}

impl Way {
    pub(crate) const WITHOUT_GROUPS: [Self; 5] = [
        Self::BlindSets,
        Self::Naive,
        Self::Classic,
        Self::Popped,
        Self::Acknowledged,
    ];

    /// What the others are measured by.
    pub(crate) const YARDSTICKS: [Self; 3] = [Self::BlindSets, Self::Naive, Self::Classic];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BlindSets => "blind sets",
            Self::Naive => "naive",
            Self::Classic => "classic",
            Self::Popped => "hc-dequeue",
            Self::Acknowledged => "hc-dequeue, acknowledged",
            Self::HundredGroups => "100 groups",
            Self::ThousandGroups => "1,000 groups",
            Self::ThousandGroupsOfWeight8 => "1,000 groups with a weight of 8",
            Self::ManyGroups => "100,000 groups",
            Self::ThousandGroupsAcknowledged => "1,000 groups, acknowledged",
            Self::Limited => "100 groups with a limit of 10, acknowledged",
            Self::Rated => "1,000 groups with a rate",
            Self::Ordered => "one ordered group, acknowledged",
            Self::Members => "members of a batch",
            Self::MembersAcknowledged => "members of a batch, acknowledged",
        }
    }

    /// Bears a load with a contender of this kind. `meet` is called, and may wait for other
    /// processes, when all is prepared.
    fn bear(self, load: &Load, site: &Site, meet: impl FnOnce()) -> Sample {
        match self {
            Self::BlindSets => bear::<BlindSets>(load, site, meet),
            Self::Naive => bear::<Naive>(load, site, meet),
            Self::Classic => bear::<Classic>(load, site, meet),
            Self::Popped => bear::<Popped>(load, site, meet),
            Self::Acknowledged => bear::<Acknowledged>(load, site, meet),
            Self::HundredGroups => bear::<Grouped<false, 100, 0, 1>>(load, site, meet),
            Self::ThousandGroups => bear::<Grouped<false, 1_000, 0, 1>>(load, site, meet),
            Self::ManyGroups => bear::<Grouped<false, 100_000, 0, 1>>(load, site, meet),
            Self::ThousandGroupsOfWeight8 => bear::<Grouped<false, 1_000, 0, 8>>(load, site, meet),
            Self::ThousandGroupsAcknowledged => {
                bear::<Grouped<true, 1_000, 0, 1>>(load, site, meet)
            }
            Self::Limited => bear::<Grouped<true, 100, 10, 1>>(load, site, meet),
            Self::Rated => bear::<Grouped<false, 1_000, RATED, 1>>(load, site, meet),
            Self::Ordered => bear::<Grouped<true, 1, 1, 1>>(load, site, meet),
            Self::Members => bear::<Members<false>>(load, site, meet),
            Self::MembersAcknowledged => bear::<Members<true>>(load, site, meet),
        }
    }
}

/// The runtime ends with the load, and with it whatever the contender left running.
fn bear<C: Contender<Site = Site>>(load: &Load, site: &Site, meet: impl FnOnce()) -> Sample {
    let runtime = runtime();
    let sessions: Vec<Arc<C>> = runtime.block_on(load.prepare(site));
    meet();
    runtime.block_on(load.run(&sessions, || site.db.reading()))
}

/// The consumers and the queue of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) processes: usize,
    /// What each process does.
    pub(crate) load: Load,
}

impl Setting {
    pub(crate) fn sessions(&self) -> usize {
        self.processes * self.load.sessions
    }

    pub(crate) fn consumers(&self) -> usize {
        self.sessions() * self.load.consumers_per_session
    }

    pub(crate) fn backlog(&self) -> u64 {
        self.processes as u64 * self.load.backlog
    }

    /// Measures a way to queue: in this process, or in child processes.
    pub(crate) fn measure(&self, way: Way, stage: &Stage) -> Figures {
        let sample = stage.on_a_clean_place(|place| {
            let part = Part {
                way,
                load: self.load,
                place: place.bytes().to_vec(),
            };
            match self.processes {
                1 => part.play(stage.db().clone(), || {}),
                processes => play_in_children(&part, processes, stage.url()),
            }
        });
        sample.into()
    }
}

/// What one process does in a trial.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    way: Way,
    load: Load,
    /// The prefix under which all processes of the trial meet.
    place: Vec<u8>,
}

impl benches::process::Part for Part {
    fn play(&self, db: Store, meet: impl FnOnce()) -> Sample {
        let site = Site {
            db: Metered::new(db),
            root: Subspace::from_bytes(self.place.clone()),
        };
        self.way.bear(&self.load, &site, meet)
    }
}
