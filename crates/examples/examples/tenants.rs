//! Three tenants share a queue: one has many jobs, one some, one few. They take turns, each has at most two jobs at a
//! time, and the jobs of one of them are done in order, although one fails at first.
//!
//! `cargo run -p examples --example tenants` runs it in memory. With a URL it runs there: `embedded:tenants.keyspace`
//! or `fdb:`. Which tenant has the first turn is random, and the order of the jobs follows from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hc_dequeue::keyspace::{self, Database, Runner, Subspace, Tx};
use hc_dequeue::microqueue::ItemId;
use hc_dequeue::{BoxError, Delivery, Enqueue, Error, GroupLimits, Queue, WorkerOptions};

/// The tenants, and how many jobs each has.
const TENANTS: [(&str, u32); 3] = [("acme", 12), ("globex", 6), ("initech", 3)];

/// How many jobs of a tenant may run at the same time.
const LIMIT: u32 = 2;

/// The tenant whose jobs are done one after another.
const IN_ORDER: &str = "initech";

/// The job that fails at first.
const FAILS: &str = "initech 2";

/// Sets the limits, and enqueues the jobs of one tenant after those of another.
async fn enqueue<D: Database>(runner: &Runner<D>, jobs: &Queue<String>) -> Result<(), Error> {
    let enqueue = async |tr: Tx<_>| {
        let limited = GroupLimits::new().with_limit(LIMIT);
        jobs.configure_groups(&tr, &limited).await?;
        let in_order = GroupLimits::ordered();
        jobs.configure_group(&tr, IN_ORDER.as_bytes(), Some(&in_order))
            .await?;
        for (tenant, count) in TENANTS {
            let of_tenant = Enqueue::new().with_group(tenant);
            for number in 1..=count {
                let job = format!("{tenant} {number}");
                let _ = jobs.enqueue_with(&tr, &job, &of_tenant).await?;
            }
        }
        Ok::<_, Error>(())
    };
    runner.run(enqueue).await
}

/// What was seen of the jobs of a tenant.
#[derive(Default)]
struct Seen {
    running: u32,
    most_running: u32,
    done: Vec<ItemId>,
}

/// Stands for many handlers: starts as many jobs as may be granted, and then ends the oldest one.
#[derive(Default)]
struct Handlers {
    running: VecDeque<Delivery<String>>,
    started: Vec<String>,
    seen: BTreeMap<String, Seen>,
}

impl Handlers {
    fn seen_of(&mut self, job: &Delivery<String>) -> &mut Seen {
        let tenant = job.group().expect("every job has a group");
        let tenant = String::from_utf8_lossy(tenant).into_owned();
        self.seen.entry(tenant).or_default()
    }

    fn start(&mut self, job: Delivery<String>) {
        let seen = self.seen_of(&job);
        seen.running += 1;
        seen.most_running = seen.most_running.max(seen.running);
        self.started.push(job.value().clone());
        self.running.push_back(job);
    }

    /// Ends the job that runs for the longest time. Returns `false` if there is none.
    async fn end_oldest(&mut self) -> Result<bool, Error> {
        let Some(job) = self.running.pop_front() else {
            return Ok(false);
        };
        let seen = self.seen_of(&job);
        seen.running -= 1;
        if job.value() == FAILS && job.attempt() == 1 {
            // It goes back to the queue, and keeps the later jobs of its tenant waiting.
            job.nack().await?;
        } else {
            seen.done.push(job.id());
            job.complete().await?;
        }
        Ok(true)
    }
}

pub(crate) async fn run<D: Database>(runner: &Runner<D>, root: &Subspace) -> Result<(), BoxError> {
    let jobs = Queue::<String>::open(runner, root.subspace(&"jobs")).await?;
    enqueue(runner, &jobs).await?;

    let consumer = jobs.consumer(runner, WorkerOptions::new()).await?;
    let mut handlers = Handlers::default();
    loop {
        while let Some(job) = consumer.dequeue().await? {
            handlers.start(job);
        }
        if !handlers.end_oldest().await? {
            break;
        }
    }
    consumer.shut_down(Duration::ZERO).await?;

    println!("started: {}", handlers.started.join(", "));
    for (tenant, seen) in &handlers.seen {
        let most = seen.most_running;
        println!(
            "{tenant}: {} jobs done, at most {most} at a time",
            seen.done.len()
        );
        let limit = if tenant == IN_ORDER { 1 } else { LIMIT };
        assert!(most <= limit, "{tenant}: {most}");
    }
    // The many jobs of one tenant were enqueued first, and kept no other tenant waiting.
    let first_turns = handlers.started.iter().take(TENANTS.len());
    let tenants: BTreeSet<_> = first_turns
        .filter_map(|job| job.split(' ').next())
        .collect();
    assert_eq!(tenants.len(), TENANTS.len());
    assert!(handlers.seen[IN_ORDER].done.is_sorted());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1);
    let store = keyspace::open(url.as_deref().unwrap_or("memory:"))?;
    let runner = Runner::new(store.clone());
    run(&runner, &Subspace::from("tenants")).await?;
    runner.close().await?;
    Ok(store.close()?)
}
