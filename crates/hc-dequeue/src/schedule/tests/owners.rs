//! Random programs of several owners and an operator, on a store whose commits may be in doubt. Each program runs
//! against a store and against a model in lockstep.

use std::collections::BTreeMap;
use std::sync::Arc;

use conformance::chaos::{Chaos, Faults};
use conformance::scale;
use conformance::stores::TestStore;
use microqueue::keyspace::{Environment, Store, Transaction};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;

conformance::on_every_store!(
    schedules_follow_the_programs_of_several_owners,
    each_planted_bug_is_caught,
);

const OWNERS: [&str; 3] = ["billing", "shop", "stock"];
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// How many steps a program has.
const STEPS: usize = 60;

/// A rule of owners that is broken, in the transaction of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A set also removes a schedule of another owner.
    RemovesOfOther,
    /// A set also removes a schedule without an owner.
    RemovesOfNone,
    /// A set takes a schedule of another owner over.
    TakesOver,
    /// A set leaves what the owner no longer names.
    LeavesRemoved,
    /// A set gives schedules that stay a new next time.
    Restarts,
    /// A new schedule is not in the index by owner.
    NotIndexed,
    /// A plan stages what it plans.
    PlanStages,
    /// `schedule` takes the owner away.
    ScheduleDisowns,
}

const BUGS: [Bug; 8] = [
    Bug::RemovesOfOther,
    Bug::RemovesOfNone,
    Bug::TakesOver,
    Bug::LeavesRemoved,
    Bug::Restarts,
    Bug::NotIndexed,
    Bug::PlanStages,
    Bug::ScheduleDisowns,
];

/// A schedule in the model: it fires once an hour, at its minute.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    owner: Option<&'static str>,
    minute: u64,
    value: String,
    /// Both in minutes since the begin of the program, which is a full hour.
    next: u64,
    last: Option<u64>,
}

/// A schedule that is given: its name, minute and value.
type Wanted = (&'static str, u64, String);

#[derive(Debug, Clone)]
enum Op {
    Set(&'static str, Vec<Wanted>),
    Plan(&'static str, Vec<Wanted>),
    Schedule(Wanted),
    Unschedule(&'static str),
    SetOwner(&'static str, Option<&'static str>),
    Fire(u64),
}

/// What an operation has returned.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// The names that were added, changed and removed, and those that stay.
    Changes([Vec<String>; 4]),
    /// A schedule of the name belongs to another owner, or to none.
    Refused(String, Option<String>),
    Scheduled(Scheduled),
    Was(bool),
    Fired(usize),
}

#[derive(Debug, Clone, Default)]
struct Model {
    minute: u64,
    schedules: BTreeMap<&'static str, Known>,
}

/// Returns the first minute after another one at which a schedule fires.
fn after(now: u64, minute: u64) -> u64 {
    let hour = (now + 60 - minute) / 60;
    hour * 60 + minute
}

impl Model {
    /// Stores a schedule, and returns what was there.
    fn put(
        &mut self,
        owner: Option<&'static str>,
        (name, minute, value): &Wanted,
    ) -> Option<Known> {
        let old = self.schedules.get(name).cloned();
        let same = old.as_ref().filter(|old| old.minute == *minute);
        let new = Known {
            owner,
            minute: *minute,
            value: value.clone(),
            next: same.map_or_else(|| after(self.minute, *minute), |same| same.next),
            last: old.as_ref().and_then(|old| old.last),
        };
        self.schedules.insert(name, new);
        old
    }

    fn set(&mut self, owner: &'static str, wanted: &[Wanted]) -> Said {
        let mut sorted: Vec<_> = wanted.iter().collect();
        sorted.sort();
        for (name, ..) in &sorted {
            if let Some(known) = self.schedules.get(name)
                && known.owner != Some(owner)
            {
                let of = known.owner.map(str::to_owned);
                return Said::Refused((*name).to_owned(), of);
            }
        }
        let mut changes = [const { Vec::new() }; 4];
        for one in &sorted {
            let old = self.put(Some(owner), one);
            let kind = match old {
                None => 0,
                Some(old) if old == self.schedules[one.0] => 3,
                Some(_) => 1,
            };
            changes[kind].push(one.0.to_owned());
        }
        self.schedules.retain(|name, known| {
            let is_removed = known.owner == Some(owner) && !wanted.iter().any(|one| one.0 == *name);
            if is_removed {
                changes[2].push((*name).to_owned());
            }
            !is_removed
        });
        Said::Changes(changes)
    }

    fn step(&mut self, op: &Op) -> Said {
        match op {
            Op::Set(owner, wanted) => self.set(owner, wanted),
            Op::Plan(owner, wanted) => self.clone().set(owner, wanted),
            Op::Schedule(one) => {
                let owner = self.schedules.get(one.0).and_then(|known| known.owner);
                Said::Scheduled(match self.put(owner, one) {
                    None => Scheduled::Created,
                    Some(old) if old == self.schedules[one.0] => Scheduled::Unchanged,
                    Some(_) => Scheduled::Changed,
                })
            }
            Op::Unschedule(name) => Said::Was(self.schedules.remove(name).is_some()),
            Op::SetOwner(name, owner) => Said::Was(match self.schedules.get_mut(name) {
                Some(known) => {
                    known.owner = *owner;
                    true
                }
                None => false,
            }),
            Op::Fire(minutes) => {
                self.minute += minutes;
                let mut fired = 0;
                for known in self.schedules.values_mut() {
                    if known.next <= self.minute {
                        fired += 1;
                        known.next = after(self.minute, known.minute);
                        known.last = Some(known.next - 60);
                    }
                }
                Said::Fired(fired)
            }
        }
    }
}

fn random_op(rng: &mut StdRng) -> Op {
    let owner = *OWNERS.choose(rng).unwrap();
    let name = *NAMES.choose(rng).unwrap();
    // Often the same as before.
    let mut wanted = |name| {
        let value = ["one", "other"][rng.random_range(0..2)];
        (name, rng.random_range(0..2) * 20, value.to_owned())
    };
    let one = wanted(name);
    let list = NAMES.map(&mut wanted);
    let mut list = list.to_vec();
    let few = rng.random_range(0..3);
    list.retain(|_| rng.random_range(0..4) < few);
    match rng.random_range(0..16) {
        0..7 => Op::Set(owner, list),
        7..9 => Op::Plan(owner, list),
        9 | 10 => Op::Schedule(one),
        11 => Op::Unschedule(name),
        12 | 13 => Op::SetOwner(name, [None, Some(owner)][rng.random_range(0..2)]),
        _ => Op::Fire(rng.random_range(0..50)),
    }
}

type OwnersWorld = ScheduleWorld<Chaos<Store>>;

impl OwnersWorld {
    async fn step(&self, op: &Op, bug: Option<Bug>) -> Result<Said> {
        let queue = &self.queue;
        Ok(match op {
            Op::Set(owner, wanted) => self.set_wanted(owner, wanted, true, bug).await?,
            Op::Plan(owner, wanted) => {
                let stages = bug == Some(Bug::PlanStages);
                self.set_wanted(owner, wanted, stages, None).await?
            }
            Op::Schedule((name, minute, value)) => {
                let schedule = &Schedule::new(format!("{minute} * * * *"));
                let put = async |tr| {
                    let scheduled = queue.schedule(&tr, name, schedule, value).await?;
                    if bug == Some(Bug::ScheduleDisowns) {
                        queue.set_schedule_owner(&tr, name, None).await?;
                    }
                    Ok::<_, Error>(scheduled)
                };
                Said::Scheduled(self.runner.run(put).await?)
            }
            Op::Unschedule(name) => {
                let remove = async |tr| queue.unschedule(&tr, name).await;
                Said::Was(self.runner.run(remove).await?)
            }
            Op::SetOwner(name, owner) => {
                let set = async |tr| queue.set_schedule_owner(&tr, name, *owner).await;
                Said::Was(self.runner.run(set).await?)
            }
            Op::Fire(minutes) => {
                self.pass(MINUTE * u32::try_from(*minutes).unwrap());
                Said::Fired(self.fire().await)
            }
        })
    }

    async fn set_wanted(
        &self,
        owner: &'static str,
        wanted: &[Wanted],
        stages: bool,
        bug: Option<Bug>,
    ) -> Result<Said> {
        let schedule = |minute| Schedule::new(format!("{minute} * * * *"));
        let list: Vec<_> = wanted
            .iter()
            .map(|(name, minute, value)| (*name, schedule(minute), value.clone()))
            .collect();
        let queue = &self.queue;
        let list = &list;
        let set = async |tr| {
            if bug == Some(Bug::TakesOver) {
                for (name, ..) in list {
                    queue.set_schedule_owner(&tr, name, Some(owner)).await?;
                }
            }
            let before = queue.schedules(&tr, None, NAMES.len()).await?;
            let changes = if stages {
                queue.set_schedules(&tr, owner, list).await
            } else {
                queue.plan_schedules(&tr, owner, list).await
            };
            let changes = match changes {
                Ok(changes) => changes,
                Err(Error::OtherOwner { name, owner }) => return Ok(Said::Refused(name, owner)),
                Err(error) => return Err(error),
            };
            if let Some(bug) = bug {
                plant(&tr, queue, owner, bug, &before, &changes).await?;
            }
            let changed = changes.changed.into_iter().map(|changed| changed.name);
            let added = changes.added;
            let removed = changes.removed;
            let kinds = [added, changed.collect(), removed, changes.unchanged];
            Ok(Said::Changes(kinds))
        };
        self.runner.run(set).await
    }

    /// Returns the schedules as the model knows them.
    async fn known(&self) -> BTreeMap<&'static str, Known> {
        let begin = utc(NOON);
        let minute = |time: SystemTime| time.duration_since(begin).unwrap().as_secs() / 60;
        let known = self.list().await.into_iter().map(|listed| {
            let entry = listed.entry.unwrap();
            let cron = entry.schedule.cron().split(' ').next();
            let owner = |owner: &str| *OWNERS.iter().find(|one| **one == owner).unwrap();
            let known = Known {
                owner: entry.owner.as_deref().map(owner),
                minute: cron.unwrap().parse().unwrap(),
                value: entry.payload.unwrap(),
                next: minute(entry.next.unwrap()),
                last: entry.last.map(minute),
            };
            (
                *NAMES.iter().find(|name| **name == listed.name).unwrap(),
                known,
            )
        });
        known.collect()
    }
}

/// Stages what a bug does after a set, in its transaction.
async fn plant(
    tr: &impl Transaction,
    queue: &Queue,
    owner: &str,
    bug: Bug,
    before: &[ListedSchedule<String>],
    changes: &ScheduleChanges<String>,
) -> Result<()> {
    let keys = &queue.keys;
    for ListedSchedule { name, entry } in before {
        let entry = entry.as_ref().unwrap();
        let of = entry.owner.as_deref();
        let is_removed = match bug {
            Bug::RemovesOfOther => of.is_some_and(|of| of != owner),
            Bug::RemovesOfNone => of.is_none(),
            _ => false,
        };
        if is_removed {
            queue.unschedule(tr, name).await?;
        }
        let value = entry.payload.as_ref().unwrap();
        if bug == Bug::LeavesRemoved && changes.removed.contains(name) {
            let _ = queue.schedule(tr, name, &entry.schedule, value).await?;
            queue.set_schedule_owner(tr, name, Some(owner)).await?;
        }
        if bug == Bug::Restarts && changes.unchanged.contains(name) {
            queue.unschedule(tr, name).await?;
            let _ = queue.schedule(tr, name, &entry.schedule, value).await?;
            queue.set_schedule_owner(tr, name, Some(owner)).await?;
        }
    }
    if bug == Bug::NotIndexed {
        for name in &changes.added {
            tr.clear(&keys.schedules_of(owner).pack(&name));
        }
    }
    Ok(())
}

/// Runs the program of a seed. Returns how many commits were in doubt or failed, or what differs from the model.
async fn run(store: &TestStore, seed: u64, bug: Option<Bug>) -> Result<usize, String> {
    let rng = &mut StdRng::seed_from_u64(seed);
    let store = store.fresh();
    let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
    let chaos = Chaos::new(store.db.clone(), env, Faults::all(0.05));
    let world = ScheduleWorld::on(&store, chaos, NOON).await;
    let mut model = Model::default();
    for step in 0..STEPS {
        let op = random_op(rng);
        let said = world.step(&op, bug).await.unwrap();
        let expected = model.step(&op);
        let at = format!("seed {seed}, step {step}, {op:?}");
        if said != expected {
            return Err(format!("{at}: {said:?} instead of {expected:?}"));
        }
        let known = world.known().await;
        if known != model.schedules {
            return Err(format!("{at}: {known:?} instead of {:?}", model.schedules));
        }
    }
    let audit = world.queue.audit(&world.runner).await.unwrap();
    if !audit.is_clean() {
        return Err(format!("seed {seed}: {audit:?}"));
    }
    Ok(world.runner.database().tally().commits)
}

async fn schedules_follow_the_programs_of_several_owners(store: TestStore) {
    let mut faults = 0;
    for seed in 0..scale(8, 2_000) as u64 {
        faults += run(&store, seed, None).await.unwrap();
    }
    assert!(faults > 0);
}

async fn each_planted_bug_is_caught(store: TestStore) {
    for bug in BUGS {
        let mut is_caught = false;
        for seed in 0..5 {
            is_caught = is_caught || run(&store, seed, Some(bug)).await.is_err();
        }
        assert!(is_caught, "{bug:?}");
    }
}
