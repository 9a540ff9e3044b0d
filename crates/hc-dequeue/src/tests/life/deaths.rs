//! What the queue of deaths gets in the model.

use microqueue::keyspace::codec::{Codec, MessagePack};

use super::kinds::shown;
use super::model::{Model, ModelItem};
use super::world::LifeWorld;
use crate::items::death::Death;
use crate::items::error::Result;
use crate::queue::list::PlaceKind;

/// More deaths than a program has.
const MAX_DEATHS: usize = 1_000;

/// A dead letter, as it was when it became one.
#[derive(Debug)]
pub(super) struct ModelDeath {
    pub(super) item: usize,
    pub(super) reason: &'static str,
    kind: &'static str,
    attempts: u64,
    deaths: u64,
    value: u64,
}

impl ModelDeath {
    pub(super) fn of(item: usize, life: &ModelItem) -> Self {
        Self {
            item,
            reason: life.failure.expect("it died of something").1,
            kind: life.kind,
            attempts: life.attempts,
            deaths: life.deaths,
            value: life.value,
        }
    }
}

impl LifeWorld {
    /// Compares the queue of deaths, which no session works, with all deaths so far.
    pub(super) async fn compare_deaths(&self, model: &Model) -> Result<()> {
        let deaths = &self.deaths;
        let list = |tr| async move { deaths.list(&tr, PlaceKind::Queued, None, MAX_DEATHS).await };
        let page = self.runner.run(list).await?;
        assert_eq!((page.strays, page.next), (vec![], None));
        let listed = page.items.into_iter().map(|listed| {
            let status = listed.status.expect("its record decodes");
            status.value.expect("it is a death")
        });
        let expected = model.deaths.iter().map(|death| {
            let mut payload = Vec::new();
            let encoded = MessagePack.encode(&death.value, &mut payload);
            encoded.expect("a number has a code");
            Death {
                queue: self.queue.keys.name.clone(),
                item: self.items[death.item],
                kind: shown(death.kind),
                reason: death.reason.to_owned(),
                attempts: death.attempts,
                deaths: death.deaths,
                payload: Some(payload.into()),
            }
        });
        assert_eq!(listed.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        Ok(())
    }
}
