//! Looking at maps of applications' own data.

use export_queue::keyspace::ids::RegisteredRecipe;
use export_queue::keyspace::names::{hex, queue_name};
use export_queue::keyspace::{Listed, Subspace, map};

use super::console::{Console, MAX_QUEUES, next_page};
use super::found::parse_name;
use crate::error::Result;
use crate::report;

/// The name under which maps are registered.
const RECIPE: &str = "map";

/// How many bytes of rows are counted.
const MAX_COUNTED_BYTES: usize = 1_000_000;

/// Whether something that is registered is a map, or what else it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registered {
    Map,
    /// A queue, or what does not decode.
    Queue,
}

impl Registered {
    pub(super) fn of(recipe: &Listed<Subspace, RegisteredRecipe>) -> Self {
        match &recipe.value {
            Ok(recipe) if recipe.name == RECIPE => Self::Map,
            _ => Self::Queue,
        }
    }
}

impl Console {
    /// Returns a page of the maps, and how they stand: up to `limit` after the one of this name.
    ///
    /// # Errors
    /// [`Error::NoQueue`](crate::Error::NoQueue) for a name that no map can have, and those of the store.
    pub async fn maps(&self, after: Option<&str>, limit: usize) -> Result<report::Maps> {
        let after = after.map(parse_name).transpose()?;
        let limit = limit.clamp(1, MAX_QUEUES);
        let mut listed = self.registered_after(Registered::Map, after, limit).await?;
        let next = next_page(&mut listed, limit).map(|last| queue_name(&last.id));
        let mut maps = Vec::new();
        for map in listed {
            maps.push(self.map_of(&map.id).await);
        }
        Ok(report::Maps { maps, next })
    }

    /// Returns how a map stands, or why that is not known.
    async fn map_of(&self, subspace: &Subspace) -> report::Map {
        let inspect = |tr| async move { map::inspect(&tr, subspace, MAX_COUNTED_BYTES).await };
        let mut shown = report::Map {
            name: queue_name(subspace),
            prefix: hex(subspace.bytes()),
            codec: String::new(),
            rows: 0,
            has_more: false,
            indexes: Vec::new(),
            problem: None,
        };
        match self.reader.run(inspect).await {
            Ok(Some(state)) => {
                shown.codec = state.codec;
                shown.rows = state.rows.count;
                shown.has_more = state.rows.has_more;
                shown.indexes = state.indexes.into_iter().map(index_of).collect();
            }
            Ok(None) => shown.problem = Some("its settings are missing".to_owned()),
            Err(error) => shown.problem = Some(error.to_string()),
        }
        shown
    }

    /// Returns what is registered of maps or of queues, after a prefix: one more than the limit, if there is.
    pub(super) async fn registered_after(
        &self,
        kind: Registered,
        mut after: Option<Subspace>,
        limit: usize,
    ) -> Result<Vec<Listed<Subspace, RegisteredRecipe>>> {
        let ids = &self.ids;
        let mut found = Vec::new();
        loop {
            let begin = after.as_ref();
            let read = |tr| async move { ids.recipes(&tr, begin, limit + 1).await };
            let listed: Vec<Listed<_, _>> = self.reader.run(read).await?;
            let is_last = listed.len() <= limit;
            after = listed.last().map(|last| last.id.clone());
            let of_kind = listed.into_iter().filter(|one| Registered::of(one) == kind);
            found.extend(of_kind.take(limit + 1 - found.len()));
            if is_last || found.len() > limit {
                return Ok(found);
            }
        }
    }
}

fn index_of(index: map::IndexStatus) -> report::MapIndex {
    report::MapIndex {
        name: index.name,
        version: index.version,
        is_unique: index.is_unique,
        rows_looked_at: index.building.map(|building| building.rows),
    }
}
