//! The queue of deaths of a history, which no process works: each item has as many deaths there as times at which it
//! was a dead letter. These times are counted when they end, in the transactions that end them.

use std::collections::BTreeMap;

use conformance::stores::TestStore;
use hc_dequeue::{Death, Error, ItemRef, PlaceKind};
use keyspace::{MutationOp, Transaction};

use super::{Player, SAME};

/// Counts that an item is no dead letter any more.
pub(super) fn count_return(tr: &impl Transaction, store: &TestStore, item: &ItemRef) {
    let key = store.root.pack(&("undead", item.to_string()));
    tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
}

impl Player {
    /// Redrives dead letters.
    pub(super) async fn redrive(&self) {
        let queue = &self.queue;
        let store = &self.store;
        let redrive = |tr| async move {
            let tr = &tr;
            for letter in queue.list(tr, PlaceKind::Dead, None, 100).await?.items {
                if queue.redrive(tr, &letter.item).await? {
                    count_return(tr, store, &letter.item);
                }
            }
            Ok::<_, Error>(())
        };
        self.runner.run(redrive).await.unwrap();
    }

    /// Compares the deaths with the times at which items were dead letters, at the end, when none is one.
    pub(super) async fn judge_deaths(&mut self) -> Result<(), String> {
        let audit = self.deaths.audit(&self.runner).await.unwrap();
        if !audit.is_clean() {
            return Err(format!("{audit:?}"));
        }
        let deaths = self.told().await;
        let mut told: BTreeMap<String, usize> = BTreeMap::new();
        for death in &deaths {
            let payload = death.payload.clone().expect("a number is small");
            let value = self.queue.decode_payload(payload);
            let value = value.expect("the history has encoded it");
            let item = self.items.get(&(value % SAME));
            if item.is_some_and(|item| *item != death.item) || death.reason.is_empty() {
                return Err(format!("item {value} of {item:?}: {death:?}"));
            }
            *told.entry(death.item.to_string()).or_default() += 1;
        }
        let expected = self.effects("undead").await;
        if told != expected {
            return Err(format!("deaths are told of {told:?}, not {expected:?}"));
        }
        self.course.deaths = deaths.len();
        Ok(())
    }

    async fn told(&self) -> Vec<Death> {
        let deaths = &self.deaths;
        let list = |tr| async move {
            let mut told = Vec::new();
            let mut after = None;
            loop {
                let place = PlaceKind::Queued;
                let page = deaths.list(&tr, place, after.as_ref(), 100).await?;
                for listed in page.items {
                    let status = listed.status.expect("its record decodes");
                    told.push(status.value.expect("it is a death"));
                }
                after = page.next;
                if after.is_none() {
                    return Ok::<_, Error>(told);
                }
            }
        };
        self.runner.run(list).await.unwrap()
    }
}
