//! The classic high-contention dequeue, as FoundationDB's *Queues* recipe describes it.
//!
//! A consumer that meets a conflict does not try again. It adds a request to a semi-ordered set, in the same way in
//! which an item is added to the queue: after the last one seen by snapshot, with a random suffix. It then serves up to
//! 100 requests of any consumers in one transaction: it pairs them with the first items, moves each item to the place
//! where its requester looks for it, and clears both. If its own request was not among them, it waits before it serves
//! and looks again: 10 ms at first, and twice as long each time.
//!
//! This is a baseline only, and it has the known faults of the recipe:
//!
//! - Any failure of the first try counts as a conflict. If a commit was reported lost and happened, it has taken an
//!   item that no consumer gets.
//! - If a result was collected by a commit of unknown outcome, it is gone at the next look, which looks like an empty
//!   queue.
//! - An item that was moved to a consumer that has died stays there for good.
//! - Consumers poll: each look is a transaction, and a result waits for its requester's next one.
//! - A request that finds no item is answered with nothing, even if an item arrives a moment later.

use std::time::Duration;

use keyspace::codec::Raw;
use keyspace::{
    Bytes, Code, ConflictKind, Database, Environment, Isolation, KeyValue, OwnedTransaction,
    RangeQuery, Result, Store, StreamingMode, Subspace, Transaction,
};
use microqueue::{MicroQueue, Order};

use super::{Contender, Site};
use crate::meter::{Metered, MeteredTransaction};

/// How many requests one transaction serves.
const REQUESTS_PER_COMMIT: usize = 100;

const FIRST_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_secs(1);

type Tr = MeteredTransaction<<Store as Database>::Transaction>;

/// A place in the set of requests: its index and 20 random bytes.
type Place = (u64, Vec<u8>);

/// The outcome of a consumer's first try.
enum FirstTry {
    Took(Option<Bytes>),
    Registered(Place),
}

/// A queue whose consumers register when they collide.
#[derive(Debug)]
pub struct Classic {
    db: Metered<Store>,
    env: Environment,
    items: MicroQueue<Bytes, Raw>,
    requests: Subspace,
    /// The items that were given to requests, under the places of those.
    results: Subspace,
}

impl Contender for Classic {
    type Site = Site;

    async fn open(site: &Site) -> Self {
        let queue = site.queue();
        Self {
            db: site.db.clone(),
            env: Environment::system(),
            items: MicroQueue::new(queue.subspace(&"item")).with_order(Order::Index),
            requests: queue.subspace(&"request"),
            results: queue.subspace(&"result"),
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        let mut tr = self.db.begin().expect("the store serves");
        let staged = self.items.enqueue_all(&tr, items).await;
        staged.expect("the items are small");
        tr.commit().await.expect("nothing conflicts");
    }

    async fn pop(&self) -> Option<Bytes> {
        let place = match self.first_try().await {
            Ok(FirstTry::Took(item)) => return item,
            Ok(FirstTry::Registered(place)) => place,
            Err(_) => self.register_first().await.expect("nothing conflicts"),
        };
        let item = self.wait_for(&place).await;
        item.expect("what does not pass is no conflict")
    }
}

impl Classic {
    /// Takes the first item. If another consumer waits for one, waits, too.
    async fn first_try(&self) -> microqueue::Result<FirstTry> {
        let mut tr = self.db.begin()?;
        let outcome = match self.last_request(&tr).await? {
            Some(last) => FirstTry::Registered(self.register(&tr, last + 1)),
            None => {
                let item = self.items.dequeue(&tr).await?;
                FirstTry::Took(item.map(|item| item.value))
            }
        };
        tr.commit().await?;
        Ok(outcome)
    }

    /// Registers after a conflict, in a transaction of its own.
    async fn register_first(&self) -> Result<Place> {
        let mut tr = self.db.begin()?;
        let last = self.last_request(&tr).await?;
        let place = self.register(&tr, last.map_or(0, |last| last + 1));
        tr.commit().await?;
        Ok(place)
    }

    /// Returns the index of the last request, read by snapshot: if two see the same last one,
    /// their random bytes distinguish them.
    async fn last_request(&self, tr: &Tr) -> Result<Option<u64>> {
        let (begin, end) = self.requests.range();
        let last = RangeQuery::keys(begin, end).limit(1).reversed();
        let batch = tr.get_range(&last, Isolation::Snapshot).await?;
        Ok(batch.rows.first().map(|row| self.place(row).0))
    }

    fn register(&self, tr: &Tr, index: u64) -> Place {
        let place = (index, self.env.random_bytes::<20>().to_vec());
        tr.set(&self.requests.pack(&place), b"");
        place
    }

    fn place(&self, request: &KeyValue) -> Place {
        let place = self.requests.unpack(request.key());
        place.expect("only consumers write requests")
    }

    /// Serves, looks and waits, until its own request was served.
    async fn wait_for(&self, place: &Place) -> Result<Option<Bytes>> {
        let mut wait = FIRST_WAIT;
        loop {
            self.serve_all().await?;
            if let Some(result) = self.collect(place).await? {
                return Ok(result);
            }
            self.env.sleep(wait).await;
            wait = MAX_WAIT.min(2 * wait);
        }
    }

    /// Serves requests until few are left, or until a conflict shows that another consumer serves them.
    async fn serve_all(&self) -> Result<()> {
        let mut tr = self.db.begin()?;
        loop {
            match self.serve(&mut tr).await {
                Ok(served) if served < REQUESTS_PER_COMMIT => return Ok(()),
                Ok(_) => tr.reset(),
                Err(error) if error.code() == Some(Code::NOT_COMMITTED) => return Ok(()),
                Err(error) => tr.on_error(error).await?,
            }
        }
    }

    /// Serves the first requests with the first items and returns how many requests there were.
    async fn serve(&self, tr: &mut Tr) -> Result<usize> {
        // Snapshot reads are safe: each row that is taken gets its own read conflict below.
        let requests = first(tr, &self.requests).await?;
        let rows = first(tr, self.items.subspace()).await?;
        let mut items = rows.iter();
        for request in &requests {
            tr.add_conflict_key(ConflictKind::Read, request.key())?;
            tr.clear(request.key());
            let Some(item) = items.next() else { continue };
            tr.add_conflict_key(ConflictKind::Read, item.key())?;
            tr.clear(item.key());
            let result = self.results.pack(&self.place(request));
            tr.set(&result, item.value());
        }
        tr.commit().await?;
        Ok(requests.len())
    }

    /// Takes the answer to a request, which is an item or that there was none; `None` if the request
    /// was not served yet.
    async fn collect(&self, place: &Place) -> Result<Option<Option<Bytes>>> {
        let request = self.requests.pack(place);
        let result = self.results.pack(place);
        let mut tr = self.db.begin()?;
        loop {
            let collected = async {
                if tr.get(&request, Isolation::Serializable).await?.is_some() {
                    return Ok(None);
                }
                let item = tr.get(&result, Isolation::Serializable).await?;
                if item.is_some() {
                    tr.clear(&result);
                    tr.commit().await?;
                }
                Ok(Some(item))
            };
            match collected.await {
                Ok(answer) => return Ok(answer),
                Err(error) => tr.on_error(error).await?,
            }
        }
    }
}

async fn first(tr: &Tr, rows: &Subspace) -> Result<Vec<KeyValue>> {
    let (begin, end) = rows.range();
    let query = RangeQuery::keys(begin, end)
        .limit(REQUESTS_PER_COMMIT)
        .mode(StreamingMode::WantAll);
    Ok(tr.get_range(&query, Isolation::Snapshot).await?.rows)
}
