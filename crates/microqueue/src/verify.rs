//! Making sure that new items go behind the old ones.
//!
//! The order of commits is the order of their versionstamps because a store's version only grows. A
//! restored backup or a copy can bring items into a store whose version is behind theirs:
//!
//! 1. A cluster at version 9,000,000,000 is backed up, items and all.
//! 2. The backup is restored into a new cluster, at version 1,000,000.
//! 3. An enqueue commits there. Its stamp is smaller than those of the restored items, so that its
//!    item goes before them.
//!
//! Nothing fails at step 3, since an enqueue reads nothing. So the check is a call of its own, to be
//! made when a queue is opened.

use keyspace::codec::Codec;
use keyspace::run::Runner;
use keyspace::{Database, Isolation, OpenOptions, Subspace, Transaction, Versionstamp};

use crate::error::{Error, Result};
use crate::item::ItemId;
use crate::keys::Layout;
use crate::order::Order;
use crate::queue::MicroQueue;
use crate::read::last_row;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Makes sure that items enqueued from now on go behind all that are in the queue.
    ///
    /// In index order they do whatever the store's version is, and nothing is read.
    ///
    /// # Conflicts
    /// Reads the last item by snapshot, and a key that only [`clear`](Self::clear) writes.
    ///
    /// # Errors
    /// [`StampAhead`](Error::StampAhead) if they would not, and else as [`peek`](Self::peek), of
    /// the last item's key.
    ///
    /// # Cancel safety
    /// Reads only: dropping the future leaves conflict ranges at most.
    pub async fn verify_order(&self, tr: &impl Transaction) -> Result<()> {
        let Order::Commit = self.layout.order else {
            return Ok(());
        };
        let read_version = tr.read_version();
        let last = last_row(self.layout.subspace.range());
        // Safe as a snapshot read: what commits behind the read version gets a stamp above it, and
        // is in its right place.
        let rows = self.read(tr, last, Isolation::Snapshot).await?;
        let read_version = read_version.await?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let ItemId::Commit {
            versionstamp: stamp,
            ..
        } = self.layout.id(row.key())?
        else {
            unreachable!("a key of a queue in commit order gives an id in commit order");
        };
        // Bytes are compared, as the store compares keys.
        if stamp > Versionstamp::new(read_version, u16::MAX) {
            return Err(Error::StampAhead {
                queue: self.layout.subspace.clone(),
                stamp,
                read_version,
            });
        }
        Ok(())
    }

    /// Opens the queue in `subspace`, in commit order, and makes sure of the
    /// [order](Self::verify_order) in a transaction of its own. Takes call numbers from the runner's
    /// environment.
    ///
    /// # Conflicts
    /// As [`verify_order`](Self::verify_order).
    ///
    /// # Errors
    /// Those of [`verify_order`](Self::verify_order) and of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Reads only: dropping the future leaves nothing behind.
    ///
    /// # Examples
    /// ```
    /// use keyspace::{Runner, Subspace};
    /// use microqueue::MicroQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = MicroQueue::<String>::open(&runner, Subspace::from("jobs")).await?;
    /// jobs.committing(&runner).enqueue(&"first".to_owned()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open<D: Database>(runner: &Runner<D>, subspace: Subspace) -> Result<Self>
    where
        T: Send + Sync,
        C: Default,
    {
        let options = OpenOptions::new().codec(C::default());
        Self::open_with(runner, subspace, options).await
    }

    /// Opens the queue as [`open`](Self::open) does, with a codec and a registry of ids, where it is a
    /// `microqueue`.
    ///
    /// # Conflicts
    /// As [`verify_order`](Self::verify_order), and as [`Ids::register`](keyspace::ids::Ids::register).
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Overlap`](keyspace::Error::Overlap). Nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the subspace taken or not.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: Subspace,
        options: OpenOptions<C>,
    ) -> Result<Self>
    where
        T: Send + Sync,
    {
        let queue = Self {
            layout: Layout::new(subspace, Order::Commit, options.get_codec().clone()),
            env: runner.environment().clone(),
        };
        let (handle, options) = (&queue, &options);
        runner
            .run(|tr| async move {
                options
                    .register(&tr, handle.subspace(), "microqueue", &[C::NAME])
                    .await?;
                handle.verify_order(&tr).await
            })
            .await?;
        Ok(queue)
    }
}
