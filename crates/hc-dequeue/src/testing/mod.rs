//! A test kit for applications. It runs their handlers and enqueues on a real queue, in memory or in any other store,
//! with a wall clock that tests set.
//!
//! - [`drain`] handles all items that are queued or due, one after another, until none is left. [`drain_process`]
//!   does the same with a handler for [`process`](crate::Queue::process), and [`drain_jobs`] with the handlers of
//!   [`Jobs`](crate::Jobs). [`drain_with`] and its like take the options of a worker.
//! - [`ManualWall`] is a wall clock that only moves when a test moves it, so that tests need not wait for delays,
//!   retries and schedules. [`advance_rates`] does it for the rates of groups.
//! - [`EnqueuedSince`] shows the items that were enqueued after it was created. [`enqueued`] shows all items that are
//!   queued or delayed.
//!
//! Nothing here is a mock: items are granted to a session, held, acknowledged and given back as in production.
//!
//! ```
//! use std::time::Duration;
//!
//! use hc_dequeue::keyspace::{self, RunOptions, Runner, Subspace, Transaction};
//! use hc_dequeue::testing::{Drained, EnqueuedItem, EnqueuedSince, ManualWall, drain, enqueued};
//! use hc_dequeue::{Enqueue, Outcome, Queue, Result};
//!
//! const DAY: Duration = Duration::from_secs(24 * 60 * 60);
//!
//! /// The function under test: signing up sends one mail at once, and another one the next day.
//! async fn sign_up(tr: &impl Transaction, mail: &Queue<String>) -> Result<()> {
//!     mail.enqueue(tr, &"welcome".to_owned()).await?;
//!     let tomorrow = Enqueue::new().with_delay(DAY).with_dedupe("tips of ada");
//!     let _ = mail.enqueue_with(tr, &"tips".to_owned(), &tomorrow).await?;
//!     Ok(())
//! }
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let wall = ManualWall::new();
//! let options = RunOptions::default().with_environment(wall.environment());
//! let runner = Runner::with_options(keyspace::open("memory:")?, options);
//! let subspace = Subspace::from("mail");
//! let mail = &Queue::<String>::open(&runner, subspace).await?;
//!
//! let new = EnqueuedSince::now(&runner, mail).await?;
//! runner.run(async |tr| sign_up(&tr, mail).await).await?;
//! assert_eq!(
//!     new.items().await?,
//!     [
//!         EnqueuedItem::new("welcome".to_owned()),
//!         EnqueuedItem::new("tips".to_owned())
//!             .ready(wall.time() + DAY)
//!             .dedupe("tips of ada"),
//!     ]
//! );
//!
//! let send = async |_| Outcome::Done;
//! let one = Drained { completed: 1, ..Drained::default() };
//! assert_eq!(drain(&runner, mail, send).await?, one);
//! wall.advance(DAY);
//! assert_eq!(drain(&runner, mail, send).await?, one);
//! assert_eq!(enqueued(&runner, mail).await?, []);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod drain;
mod enqueued;
pub(crate) mod rates;

pub use self::clock::ManualWall;
pub use self::drain::{
    Drained, drain, drain_jobs, drain_jobs_with, drain_process, drain_process_with, drain_with,
};
pub use self::enqueued::{EnqueuedItem, EnqueuedSince, enqueued};
pub use self::rates::advance_rates;
