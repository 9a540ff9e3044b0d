//! The console beside the work: what open pages cost the consumers, and what pages cost on a long queue.

use std::time::Duration;

use ::console::{Console, WebOptions};
use benches::contender::ITEM;
use benches::runtime_with_sockets;
use benches::stage::Stage;
use benches::statistics::median;
use benches::table::Table;
use conformance::scale;
use futures::future::join_all;
use hc_dequeue::{Error, Queue, Result, Settings, WorkerOptions};
use keyspace::codec::Raw;
use keyspace::ids::Ids;
use keyspace::{Bytes, OpenOptions, RunOptions, Runner, Store, Subspace, Tx};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const CONSUMERS: usize = 64;

const TABS: usize = 10;

/// How many items a page of a listing has.
const ROWS: usize = 100;

/// How many items a transaction enqueues.
const BATCH: usize = 500;

type Jobs = Queue<Bytes, Raw>;

/// Returns a table of the rates of 64 consumers while ten tabs show the overview, and while none does.
pub(crate) fn tabs(stage: &Stage) -> Table {
    let runtime = runtime_with_sockets();
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..scale(6, 12) {
        for turn in 0..2 {
            let tabs = (round + turn) % 2 * TABS;
            let rate = stage.on_a_clean_place(|place| runtime.block_on(pops(stage, place, tabs)));
            rates[usize::from(tabs > 0)].push(rate.expect("nothing conflicts for good"));
        }
    }
    let [without, with] = &rates;
    let ratios = with
        .iter()
        .zip(without)
        .map(|(with, without)| with / without);
    let rate = |rates: &[f64]| format!("{:.0}", median(rates.iter().copied()));
    let mut table = Table::new(["consumers", "pops per second", "with ten tabs", "ratio"]);
    let ratio = format!("{:.2}", median(ratios));
    table.push([CONSUMERS.to_string(), rate(without), rate(with), ratio]);
    table
}

/// Returns a table of the time for a page, by the length of the queue.
pub(crate) fn pages(stage: &Stage) -> String {
    let runtime = runtime_with_sockets();
    let mut table = Table::new(["items", "overview, ms", "a page of 100, ms"]);
    for items in [1_000, scale(100_000, 1_000_000)] {
        let row = stage.on_a_clean_place(|place| runtime.block_on(walk(stage, place, items)));
        table.push(row.expect("the store serves"));
    }
    format!("Pages of the console on a queue of waiting items\n\n{table}")
}

/// Asks for the overview, then for every page of the waiting items.
async fn walk(stage: &Stage, place: &Subspace, items: usize) -> Result<[String; 3]> {
    let place = &Place::open(stage, place).await?;
    place.enqueue(items).await?;
    let console = place.console();
    let environment = place.runner.environment();
    let millis_since = |begun| (environment.now() - begun).as_secs_f64() * 1e3;

    let begun = environment.now();
    let overview = console.queues(None, ROWS).await;
    let overview_millis = millis_since(begun);
    let name = &overview.expect("the queues are listed").queues[0].name;

    let mut seen = 0;
    let mut after = None;
    let mut times = Vec::new();
    loop {
        let begun = environment.now();
        let page = console
            .items(name, "queued", after.as_deref(), ROWS)
            .await
            .expect("the page is listed");
        times.push(millis_since(begun));
        seen += page.items.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, items, "every item is listed once");
    Ok([
        items.to_string(),
        format!("{overview_millis:.1}"),
        format!("{:.2}", median(times)),
    ])
}

/// A queue with its registry.
struct Place {
    runner: Runner<Store>,
    ids: Ids,
    jobs: Jobs,
}

impl Place {
    async fn open(stage: &Stage, place: &Subspace) -> Result<Self> {
        let options = RunOptions::default().with_ledger_subspace(place.subspace(&"ledger"));
        let runner = Runner::with_options(stage.db().clone(), options);
        let ids = Ids::new(place.subspace(&"ids"));
        let options = OpenOptions::new().with_codec(Raw).with_ids(ids.clone());
        let queue = place.subspace(&"queue");
        let jobs = Jobs::open_with(&runner, queue, Settings::default(), options).await?;
        Ok(Self { runner, ids, jobs })
    }

    async fn enqueue(&self, items: usize) -> Result<()> {
        let jobs = &self.jobs;
        for _ in 0..items / BATCH {
            let batch = |tr: Tx<_>| async move { jobs.enqueue_all(&tr, &vec![ITEM; BATCH]).await };
            self.runner.run(batch).await?;
        }
        Ok(())
    }

    fn console(&self) -> Console {
        Console::new(&self.runner).with_ids(self.ids.clone())
    }
}

/// Returns how many items a second are popped.
async fn pops(stage: &Stage, place: &Subspace, tabs: usize) -> Result<f64> {
    let place = &Place::open(stage, place).await?;
    let items = scale(100_000, 400_000);
    place.enqueue(items).await?;
    let mut pages = JoinSet::new();
    open_tabs(&mut pages, place.console(), tabs).await;
    let options = WorkerOptions::default();
    let consumer = place.jobs.consumer(&place.runner, options).await?;
    let environment = place.runner.environment();
    let begun = environment.now();
    let popping = (0..CONSUMERS).map(|_| {
        let consumer = consumer.clone();
        tokio::spawn(async move {
            let mut count = 0;
            while consumer.pop_within(Duration::ZERO).await?.is_some() {
                count += 1;
            }
            Ok::<_, Error>(count)
        })
    });
    let mut popped = 0;
    for count in join_all(popping).await {
        popped += count.expect("no consumer panics")?;
    }
    let seconds = (environment.now() - begun).as_secs_f64();
    assert_eq!(popped, items, "every item is popped once");
    consumer.shut_down(Duration::ZERO).await?;
    Ok(items as f64 / seconds)
}

/// Serves the console, and opens tabs that read whatever their page gets.
async fn open_tabs(pages: &mut JoinSet<()>, console: Console, tabs: usize) {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    pages.spawn(async move {
        let served = ::console::serve(listener, console, WebOptions::new(), std::future::pending());
        served.await.expect("the listener is bound");
    });
    for _ in 0..tabs {
        let mut tab = TcpStream::connect(address).await.expect("it listens");
        let request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        tab.write_all(request).await.expect("it is connected");
        let mut buffer = vec![0; 1 << 16];
        let begin = tab.read(&mut buffer).await.expect("it answers");
        assert!(
            buffer[..begin].starts_with(b"HTTP/1.1 200"),
            "events are served"
        );
        pages.spawn(async move { while tab.read(&mut buffer).await.is_ok_and(|read| read > 0) {} });
    }
}
