//! The console as pages and as JSON.
//!
//! # Paths
//!
//! A name of a queue is one segment of a path, percent-encoded: `orders/open` is `orders%2Fopen`.
//!
//! | page | JSON | shows |
//! |---|---|---|
//! | `/?after=` | `/api/queues?after=&limit=` | [all queues](crate::report::Queues), 100 a page |
//! | `/queues/{name}` | `/api/queues/{name}` | [a queue](crate::report::Queue) |
//! | `/queues/{name}/items/{place}?after=` | `/api/queues/{name}/items/{place}?after=&limit=` | [the items in a place](crate::report::Items) |
//! | `/queues/{name}/item/{ref}` | `/api/queues/{name}/item/{ref}` | [an item](crate::report::Item) |
//! | `/queues/{name}/sessions` | `/api/queues/{name}/sessions` | [sessions, and what they hold](crate::report::Sessions) |
//! | `/queues/{name}/groups?after=` | `/api/queues/{name}/groups?after=&limit=` | [groups of items](crate::report::Groups) |
//! | `/queues/{name}/batches?after=` | `/api/queues/{name}/batches?after=&limit=` | [batches](crate::report::Batches) |
//! | `/queues/{name}/batch/{ref}` | `/api/queues/{name}/batch/{ref}` | [a batch](crate::report::Batch) |
//! | `/queues/{name}/schedules?owner=&after=` | `/api/queues/{name}/schedules?owner=&after=&limit=` | [schedules](crate::report::Schedules) |
//! | on the queue's page | `/api/queues/{name}/kinds` | [kinds of items](crate::report::Kinds) |
//! | on the queue's page | `/api/queues/{name}/settings` | [settings](crate::report::Settings) |
//! | | `/api/queues/{name}/key/{key}?combiner=` | [a key of a combine queue](crate::report::CombineKey) |
//! | | `/api/queues/{name}/set-aside?after=&limit=` | [what a combine queue set aside](crate::report::SetAsidePage) |
//! | | `/api/queues/{name}/letters/{subscription}?after=&limit=` | [dead letters of a subscription](crate::report::Items) |
//! | | `/api/keys?prefix=&after=&limit=` | [keys](crate::report::Keys) |
//! | | `/api/key/{key}` | [a key and its value](crate::report::Key) |
//! | `/events`, `/events/queues/{name}` | | live updates of the overview and of a queue's page, as server-sent events |
//!
//! Changes, if they [are allowed](WebOptions::allow_changes). All are sent by `POST`; a form has the field `token`, a
//! program sends the header `x-console-token` with what `GET /api/token` answers:
//!
//! | form | JSON | does |
//! |---|---|---|
//! | `/queues/{name}/pause`, `/queues/{name}/resume` | the same below `/api` | pauses or resumes a queue |
//! | `/queues/{name}/item/{ref}`, `action` | `/api/queues/{name}/item/{ref}/{action}` | cancels, expedites, redrives or purges an item |
//! | `/queues/{name}/items/{place}`, `action`, `item`... | | does so with the selected items |
//! | `/queues/{name}/groups`, `action`, `group`, limits | the same below `/api` | replaces (`set`), pauses or resets the limits of a group |
//! | `/queues/{name}/batches`, `action`, `batch` | the same below `/api` | closes or cancels (`close`, `cancel`) a batch |
//!
//! The limits are the fields `at_most`, `weight`, `until_end`, `dead_letters_block`, and those of a rate: `starts`,
//! `period`, a time with its unit such as `1m`, and `burst`. One that is missing or empty is not set. An empty `group`
//! stands for the default limits.
//!
//! A form is answered with a redirect (303) to the page that shows the result, a program with a
//! [change](crate::report::Change). An error is `{"error": "...", "causes": ["..."]}` below `/api`, and a page
//! elsewhere, with the status:
//!
//! | status | means |
//! |---|---|
//! | 400 | a reference, a place, a page of a listing or a form is malformed |
//! | 403 | the request comes from another site and does not open a page; or a change is not allowed or lacks the token |
//! | 404 | there is no such queue, item, batch or page |
//! | 409 | the queue is of another recipe, or cannot be read |
//! | 413 | the body is too large |
//! | 421 | the request is for a host that is not allowed |
//! | 503 | the store failed, or there are too many requests or listeners |
//! | 504 | the request took too long; a change may have been carried out |
//!
//! # Guarantees
//!
//! - `GET` and `HEAD` change nothing.
//! - Counts are those of the queue's counters or bounded counts; no page reads more than its rows.
//! - Stored data is shown as text, with the controls of bidirectional text and characters without a shape as codes:
//!   `\u202e`. Pages load nothing from elsewhere and run only one script, a file of their own.
//!   Without it, everything works except live updates.
//! - A browser gets an answer for a page of another site only if it opens one of the pages here.
//! - One task looks at the store for all listeners, at most once a second, and only while there are any. It ends when
//!   the last listener is gone.
//!
//! # Limits
//!
//! | what | limit | beyond |
//! |---|---|---|
//! | queues of a page, and queues on the overview with live updates | 100 | the next page |
//! | rows of a listing | 100 on pages, 1,000 of JSON; 100 groups of items, 100 batches | the next page |
//! | dead letters whose reasons are grouped | 200 | the page says so |
//! | history for the charts | 5 minutes, every 5 seconds, 2,000 queues and subscriptions | dropped |
//! | requests at the same time | 64 | 503 |
//! | time of a request | 10 seconds | 504 |
//! | body of a request | 64 KiB | 413 |
//! | listeners | 100 | 503 |
//! | with [`serve`](serve::serve): connections | 256 | wait to be accepted |
//! | with [`serve`](serve::serve): time for the head of a request | 15 seconds | closed |
//! | with [`serve`](serve::serve): time in which a client reads nothing | 30 seconds | closed |

mod api;
mod change;
mod chart;
mod events;
mod files;
mod guard;
mod history;
mod live;
mod mount;
mod options;
mod pages;
mod refusal;
mod routes;
mod sampler;
mod serve;
mod site;
mod text;
mod verdict;
mod view;

pub use self::mount::{Mounted, mount};
pub use self::options::WebOptions;
pub use self::routes::router;
pub use self::serve::serve;
