//! Records where each person is, and which people are in each place. An observer keeps an index by place in step
//! with the values: it receives the old and the new value in the transaction of the change, so no reader
//! ever sees one without the other.

use std::collections::BTreeSet;
use std::time::Duration;

use combine::keyspace::{
    self, Isolation, RangeQuery, Runner, Store, Subspace, Transaction, read_all,
};
use combine::{
    BoxError, Change, ChangeObserver, CombineQueue, Error, LastWriter, Result, WorkerOptions,
};
use futures::future::try_join_all;

use crate::say;

/// The place of each person. An update is the new place, or that the person has left.
type Places = CombineQueue<String, Option<String>, String>;

const PEOPLE: u32 = 40;

/// People by place: `(place, person)` for each.
#[derive(Clone)]
struct Index(Subspace);

impl ChangeObserver<String, String> for Index {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, String>],
    ) -> Result<(), BoxError> {
        for Change { key, old, new, .. } in changes {
            if let Some(old) = old {
                tr.clear(&self.0.pack(&(old, key)));
            }
            if let Some(new) = new {
                tr.set(&self.0.pack(&(new, key)), b"");
            }
        }
        Ok(())
    }
}

impl Index {
    /// Returns the people in a place.
    async fn people_in(&self, tr: &impl Transaction, place: &str) -> Result<BTreeSet<String>> {
        let people = self.0.subspace(&place);
        let (begin, end) = people.range();
        let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
        let person = |row: &keyspace::KeyValue| people.unpack(row.key()).expect("as it was packed");
        Ok(rows.iter().map(person).collect())
    }
}

/// Moves people between places, and checks the index after each move.
///
/// # Errors
/// Those of the queue.
pub async fn run(runner: &Runner<Store>, root: &Subspace) -> Result<()> {
    let places: Places = CombineQueue::open(runner, root.subspace(&"places"), LastWriter).await?;
    let index = Index(root.subspace(&"index"));
    let options = WorkerOptions::default();
    let worker = places.work(runner, options, index.clone()).await?;

    // In the last wave all people leave.
    for wave in [&["attic", "cellar"][..], &["cellar", "garden"], &[]] {
        let moves = (0..PEOPLE).map(|person| {
            let place = person
                .checked_rem(wave.len() as u32)
                .map(|index| wave[index as usize].to_owned());
            move_to(runner, &places, format!("person {person}"), place)
        });
        try_join_all(moves).await?;
        // The index matches the values also while updates are pending.
        check(runner, &places, &index).await?;
        places.wait_idle(runner).await?;
        let found = check(runner, &places, &index).await?;
        assert_eq!(found, if wave.is_empty() { 0 } else { PEOPLE as usize });
    }
    worker.shut_down(Duration::from_secs(60)).await?;
    Ok(())
}

async fn move_to(
    runner: &Runner<Store>,
    places: &Places,
    person: String,
    place: Option<String>,
) -> Result<()> {
    let person = &person;
    let place = &place;
    let add = async |tr| places.add(&tr, person, place).await;
    runner.run(add).await
}

/// Verifies that the index contains each person in the right place, and nowhere else. Returns the number
/// of people.
async fn check(runner: &Runner<Store>, places: &Places, index: &Index) -> Result<usize> {
    let read = async |tr| {
        let values = places
            .values(&tr, None, usize::MAX, Isolation::Snapshot)
            .await?
            .into_iter()
            .map(|listed| listed.value)
            .collect::<Result<Vec<_>, _>>()
            .map_err(keyspace::Error::from)?;
        let mut found = 0;
        for place in ["attic", "cellar", "garden"] {
            let indexed = index.people_in(&tr, place).await?;
            let valued = values.iter().filter(|(_, value)| value == place);
            assert_eq!(indexed, valued.map(|(person, _)| person.clone()).collect());
            say(format_args!("{place}: {}", indexed.len()));
            found += indexed.len();
        }
        assert_eq!(found, values.len());
        Ok::<_, Error>(found)
    };
    runner.run(read).await
}
