//! The transactions of the model, which are the recipe's own.

use std::sync::Arc;

use conformance::checker_store::{CheckerTransaction, Rows, Staged, finish};
use hc_dequeue::keyspace::{Environment, MessagePack, Subspace};

use crate::bucket::Bucket;
use crate::combiner::Sum;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::pass::Plan;
use crate::queue::CombineQueue;
use crate::queue::aside::AsideId;
use crate::settings::Settings;
use crate::tests::model::bug::{Bug, Parts, PlantedBug};

/// The number of keys.
pub(crate) const KEYS: usize = 3;

/// The number of keys that are loaded and withheld, which are the first ones.
pub(crate) const EVENTFUL_KEYS: usize = 2;

/// The key that the observer adds to.
pub(crate) const OBSERVERS_KEY: usize = 1;

/// The only bucket.
pub(crate) const BUCKET: Bucket = Bucket(0);

/// The value that `initialize` gives a key.
pub(crate) const LOADED: i64 = 40;

/// An update of a key, by the key's number. `None` does not decode.
pub(crate) type Update = (usize, Option<i64>);

/// How much a pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Extent {
    /// Everything.
    All,
    /// Everything, but it reports only one change.
    OneChange,
    /// The updates of one key, from all blocks.
    OneKey,
    /// The updates of one key in the first block, and it reports only one change.
    Least,
    /// Everything, but it withholds the reports of a key.
    Withholding(usize),
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// `add_all`.
    Add(Vec<Update>),
    /// A pass, and whether the observer adds an update.
    Pass(Extent, bool),
    /// `initialize`, of a key.
    Initialize(usize),
    /// `redrive`.
    Redrive(AsideId),
}

/// A change that is reported: the key, the old and the new value.
pub(crate) type Report = (usize, Option<i64>, Option<i64>);

/// The recipe, on rows of the model.
#[derive(Clone)]
pub(crate) struct Protocol {
    pub(crate) queue: CombineQueue<String, i64>,
    pub(crate) keys: [String; KEYS],
    /// The keys, encoded.
    pub(crate) encoded: [Vec<u8>; KEYS],
    planted: PlantedBug,
}

impl Protocol {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        let env = Environment::system();
        let settings = Settings::new().with_bucket_count(1);
        let queue = CombineQueue {
            keys: Arc::new(Keys::new(Subspace::from("Q"), 1, env.clone())),
            settings,
            combiner: Arc::new(Sum),
            env,
            codec: MessagePack,
        };
        let keys = ["a", "b", "c"].map(str::to_owned);
        let encoded = [0, 1, 2].map(|key: usize| queue.encode_key(&keys[key]).unwrap());
        let rows = encoded.iter().map(|key| {
            let current = queue.keys.current(key);
            let value = queue.keys.value(key);
            (current, value)
        });
        let parts = Parts {
            state: queue.keys.pass(BUCKET),
            log: queue.keys.logs.after(BUCKET.0, None),
            values: queue.keys.values_of(BUCKET),
            currents: queue.keys.currents_of(BUCKET),
            notes: queue.keys.all_aside(),
            value_of: rows.collect(),
        };
        Self {
            planted: PlantedBug {
                bug,
                parts: Arc::new(parts),
            },
            queue,
            keys,
            encoded,
        }
    }

    /// Returns the rule that the model breaks, if it breaks any.
    pub(crate) fn bug(&self) -> Option<Bug> {
        self.planted.bug
    }

    /// Begins a transaction that reads these rows.
    pub(crate) fn begin(&self, rows: &Arc<Rows>, version: i64) -> CheckerTransaction<PlantedBug> {
        CheckerTransaction::begin(rows, version, self.planted.clone())
    }

    /// Stages a transaction that reads these rows, and returns the changes that it reports. Returns
    /// `None` if there is nothing to do.
    pub(crate) fn stage(
        &self,
        rows: &Arc<Rows>,
        version: i64,
        action: &Action,
    ) -> Option<(Staged, Vec<Report>)> {
        let tr = self.begin(rows, version);
        let reports = match action {
            Action::Add(updates) => {
                self.add(&tr, updates);
                Vec::new()
            }
            Action::Pass(extent, adds) => finish(self.pass(&tr, *extent, *adds)).unwrap(),
            Action::Initialize(key) => {
                match finish(self.queue.initialize(&tr, &self.keys[*key], &LOADED)) {
                    Ok(()) => Vec::new(),
                    Err(Error::AlreadyPresent { .. }) => return None,
                    Err(error) => panic!("{error}"),
                }
            }
            Action::Redrive(aside) => {
                assert!(finish(self.queue.redrive(&tr, aside)).unwrap());
                Vec::new()
            }
        };
        Some((tr.staged()?, reports))
    }

    /// Like `add_all`, but also adds updates that do not decode.
    pub(crate) fn add(&self, tr: &CheckerTransaction<PlantedBug>, updates: &[Update]) {
        let mut batch = self.queue.keys.logs.batch();
        for (key, update) in updates {
            let key = &self.encoded[*key];
            let bytes = match update {
                Some(update) => &[*update as i8 as u8][..],
                None => b"\xc1",
            };
            self.queue.push(&mut batch, key, bytes).unwrap();
        }
        self.queue.stage(tr, &batch).unwrap();
    }

    async fn pass(
        &self,
        tr: &CheckerTransaction<PlantedBug>,
        extent: Extent,
        adds: bool,
    ) -> Result<Vec<Report>> {
        let staged = self
            .queue
            .stage_pass(tr, BUCKET, &self.plan(extent))
            .await?;
        // The observer.
        if adds && !staged.changes.is_empty() {
            let key = &self.keys[OBSERVERS_KEY];
            self.queue.add(tr, key, &1).await?;
        }
        let number = |key| self.keys.iter().position(|known| *known == key);
        let reports = staged.changes.into_iter().map(|change| {
            let key = number(change.key).expect("there are no other keys");
            (key, change.old, change.new)
        });
        Ok(reports.collect())
    }

    fn plan(&self, extent: Extent) -> Plan {
        let all = Plan {
            budget: 1 << 20,
            max_changes: usize::MAX,
            withheld: None,
        };
        match extent {
            Extent::All => all,
            Extent::OneChange => Plan {
                max_changes: 1,
                ..all
            },
            // Blocks of the model have a few bytes, and a key costs more than half of this.
            Extent::OneKey => Plan { budget: 90, ..all },
            Extent::Least => Plan {
                budget: 1,
                max_changes: 1,
                ..all
            },
            Extent::Withholding(key) => Plan {
                withheld: Some((self.encoded[key].clone().into(), "too large".to_owned())),
                ..all
            },
        }
    }
}
