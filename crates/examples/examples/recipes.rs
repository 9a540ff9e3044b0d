//! The answers of `docs/recipes.md`, each as a function. `cargo run -p examples --example recipes` runs them on a store
//! in memory, one after the other, and checks what they do.

use std::path::Path;
use std::time::{Duration, SystemTime};

use export_queue::hc_dequeue::testing::{drain, drain_process};
use export_queue::hc_dequeue::{
    Batch, BatchRef, Cancelled, Consumer, Death, Delivery, Enqueue, Enqueued, Error, GroupLimits,
    GroupState, ItemRef, ItemsOf, OnRepeat, Outcome, Place, PlaceKind, Queue, Rate, Replaced,
    Schedule, Settings, TransactionHandler, Worker, WorkerOptions,
};
use export_queue::keyspace::embedded::{Embedded, Options, Sharing};
use export_queue::keyspace::{self, OpenOptions, Runner, Store, Subspace, Transaction, Tx};
use tokio::task::spawn_blocking;

type JobQueue = Queue<String>;
type Result<T, E = Error> = std::result::Result<T, E>;
type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn enqueue_with_own_data(
    runner: &Runner<Store>,
    jobs: &JobQueue,
    users: &Subspace,
) -> Result<()> {
    let sign_up = async |tr: Tx<_>| {
        tr.set(&users.pack(&"ada"), b"ada@example.org");
        jobs.enqueue(&tr, &"welcome ada".to_owned()).await
    };
    runner.run(sign_up).await?;
    Ok(())
}

async fn enqueue_many(runner: &Runner<Store>, jobs: &JobQueue, values: &[String]) -> Result<()> {
    for chunk in values.chunks(1_000) {
        let enqueue = async |tr| jobs.enqueue_all(&tr, chunk).await;
        runner.run(enqueue).await?;
    }
    Ok(())
}

async fn enqueue_for_later(tr: &impl Transaction, jobs: &JobQueue, at: SystemTime) -> Result<()> {
    let tomorrow = Enqueue::new().with_due_time(at);
    let _ = jobs
        .enqueue_with(tr, &"remind ada".to_owned(), &tomorrow)
        .await?;
    Ok(())
}

async fn enqueue_once(tr: &impl Transaction, jobs: &JobQueue, invoice: u64) -> Result<bool> {
    let once = Enqueue::new().with_dedupe(format!("invoice {invoice}"));
    let enqueued = jobs
        .enqueue_with(tr, &format!("send invoice {invoice}"), &once)
        .await?;
    Ok(matches!(enqueued, Enqueued::Staged(_)))
}

async fn enqueue_debounced(tr: &impl Transaction, jobs: &JobQueue, page: &str) -> Result<()> {
    let quiet = Enqueue::new()
        .with_dedupe(format!("index {page}"))
        .with_on_repeat(OnRepeat::Debounce)
        .with_delay(Duration::from_secs(5))
        .with_max_wait(Duration::from_secs(60));
    let _ = jobs
        .enqueue_with(tr, &format!("index {page}"), &quiet)
        .await?;
    Ok(())
}

async fn enqueue_bounded(tr: &impl Transaction, jobs: &JobQueue) -> Result<bool> {
    let bounded = Enqueue::new().with_max_depth(10_000);
    match jobs.enqueue_with(tr, &"job".to_owned(), &bounded).await {
        Ok(_) => Ok(true),
        Err(Error::Full { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn enqueue_first(tr: &impl Transaction, jobs: &JobQueue, order: String) -> Result<bool> {
    let first = Enqueue::new().with_priority(9);
    let enqueued = jobs.enqueue_with(tr, &order, &first).await?;
    Ok(matches!(enqueued, Enqueued::Staged(_)))
}

async fn enqueue_for_tenant(
    tr: &impl Transaction,
    jobs: &JobQueue,
    (tenant, job): (&str, String),
) -> Result<()> {
    let of_tenant = Enqueue::new().with_group(tenant);
    let _ = jobs.enqueue_with(tr, &job, &of_tenant).await?;
    Ok(())
}

async fn limit_tenants(tr: &impl Transaction, jobs: &JobQueue) -> Result<()> {
    let two = GroupLimits::new().with_limit(2);
    jobs.configure_groups(tr, &two).await?;
    let five = GroupLimits::new().with_limit(5);
    jobs.configure_group(tr, b"acme", Some(&five)).await
}

/// Returns whether the tenant is drained.
async fn pause_a_tenant(runner: &Runner<Store>, jobs: &JobQueue, tenant: &str) -> Result<bool> {
    let pause = async |tr: Tx<_>| jobs.pause_group(&tr, tenant.as_bytes());
    runner.run(pause).await?;
    let look = async |tr: Tx<_>| jobs.group(&tr, tenant.as_bytes()).await;
    Ok(runner.run(look).await?.slots == 0)
}

async fn clear_and_resume(runner: &Runner<Store>, jobs: &JobQueue, tenant: &str) -> Result<u64> {
    let removed = jobs.clear_items(runner, &ItemsOf::group(tenant)).await?;
    let resume = async |tr: Tx<_>| jobs.resume_group(&tr, tenant.as_bytes());
    runner.run(resume).await?;
    Ok(removed)
}

async fn share_between_tenants(tr: &impl Transaction, jobs: &JobQueue) -> Result<()> {
    let thrice = GroupLimits::new().with_limit(6).with_weight(3);
    jobs.configure_group(tr, b"acme", Some(&thrice)).await
}

async fn limit_calls(tr: &impl Transaction, jobs: &JobQueue) -> Result<()> {
    let a_minute = Duration::from_secs(60);
    let rate = Rate::new(90, a_minute).with_burst(10);
    let limits = GroupLimits::new().with_rate(rate);
    jobs.configure_groups(tr, &limits).await
}

async fn run_when_all_are_done(
    tr: &impl Transaction,
    jobs: &JobQueue,
    reports: &[String],
) -> Result<BatchRef> {
    let then = Batch::new().with_callback("send the summary".to_owned(), Enqueue::new());
    let batch = jobs.open_batch(tr, &then).await?;
    let member = Enqueue::new().with_batch(&batch);
    jobs.enqueue_all_alike(tr, reports, &member).await?;
    jobs.close_batch(tr, &batch)?;
    Ok(batch)
}

async fn keep_accounts_in_order(tr: &impl Transaction, jobs: &JobQueue) -> Result<()> {
    let in_order = GroupLimits::ordered();
    jobs.configure_groups(tr, &in_order).await
}

async fn decide_how_to_fail(_tr: Tx<impl Transaction>, job: Delivery<String>) -> Result<Outcome> {
    Ok(match job.value().as_str() {
        "malformed" => Outcome::discard("there is no such customer"),
        "later" => Outcome::snooze(Duration::from_secs(60)),
        "busy" => Outcome::retry_after(Duration::from_secs(5), "the bank is busy"),
        _ => Outcome::Done,
    })
}

async fn why_it_failed(
    tr: &impl Transaction,
    jobs: &JobQueue,
    item: &ItemRef,
) -> Result<Option<String>> {
    let status = jobs.status(tr, item).await?;
    let failure = status.and_then(|status| status.failure);
    Ok(failure.map(|failure| failure.reason))
}

async fn cancel(tr: &impl Transaction, jobs: &JobQueue, item: &ItemRef) -> Result<bool> {
    match jobs.cancel(tr, item).await? {
        Cancelled::Removed => Ok(true),
        // A handler has it: its acknowledgment will be refused, and `Delivery::cancelled` resolves.
        Cancelled::Requested => Ok(true),
        _ => Ok(false),
    }
}

async fn run_at_once(tr: &impl Transaction, jobs: &JobQueue, item: &ItemRef) -> Result<bool> {
    jobs.expedite(tr, item).await
}

async fn change_what_waits(tr: &impl Transaction, jobs: &JobQueue, item: &ItemRef) -> Result<bool> {
    let replaced = jobs.replace(tr, item, &"welcome Ada".to_owned()).await?;
    Ok(matches!(replaced, Replaced::Replaced))
}

async fn open_deaths(runner: &Runner<Store>, payments: &JobQueue) -> Result<Queue<Death>> {
    let deaths = Queue::<Death>::open(runner, ("shop", "deaths")).await?;
    let name = async |tr: Tx<_>| {
        let settings = payments.settings(&tr).await?;
        let settings = settings.with_deaths(deaths.subspace().clone());
        payments.configure(&tr, &settings).await
    };
    runner.run(name).await?;
    Ok(deaths)
}

struct TellTheTeam {
    payments: JobQueue,
    mails: JobQueue,
}

impl<Tr: Transaction> TransactionHandler<Death, Tr> for TellTheTeam {
    type Output = Result<(), AnyError>;

    async fn handle(&self, tr: Tx<Tr>, death: Delivery<Death>) -> Self::Output {
        let death = death.value();
        let payment = match &death.payload {
            Some(payload) => self.payments.decode_payload(payload.clone())?,
            None => death.item.to_string(),
        };
        let mail = format!("{payment} died: {}", death.reason);
        self.mails.enqueue(&tr, &mail).await?;
        Ok(())
    }
}

/// Lets a payment die, and returns the mail about it.
async fn mail_about_a_death(
    runner: &Runner<Store>,
    mails: &JobQueue,
) -> Result<Option<String>, AnyError> {
    let payments = ("shop", "payments");
    let deaths = open_deaths(runner, &JobQueue::open(runner, payments).await?).await?;
    // Opened anew, its first session knows these settings at once.
    let payments = &JobQueue::open(runner, payments).await?;
    payments.submit(runner, &"payment 17".to_owned()).await?;
    let refuse = async |_: Delivery<String>| Outcome::discard("the card has expired");
    drain(runner, payments, refuse).await?;
    let team = TellTheTeam {
        payments: payments.clone(),
        mails: mails.clone(),
    };
    let options = WorkerOptions::new();
    let worker = deaths.process_by(runner, options, team).await?;
    deaths.wait_idle(runner).await?;
    worker.shut_down(Duration::from_secs(5)).await?;
    let consumer = mails.consumer(runner, WorkerOptions::new()).await?;
    let mail = consumer.dequeue().await?;
    Ok(mail.map(|mail| mail.value().clone()))
}

async fn redrive_all(runner: &Runner<Store>, jobs: &JobQueue) -> Result<u64> {
    let mut redriven = 0;
    let mut after = None;
    loop {
        let cursor = &after;
        let redrive = async |tr: Tx<_>| {
            let page = jobs
                .list(&tr, PlaceKind::Dead, cursor.as_ref(), 100)
                .await?;
            for dead in &page.items {
                jobs.redrive(&tr, &dead.item).await?;
            }
            Ok::<_, Error>((page.items.len() as u64, page.next))
        };
        let (count, next) = runner.run(redrive).await?;
        redriven += count;
        after = next;
        if after.is_none() {
            return Ok(redriven);
        }
    }
}

async fn return_a_result(job: Delivery<String>) -> Result<()> {
    job.set_result(job.value().to_uppercase())
}

async fn wait_for_a_result(
    runner: &Runner<Store>,
    jobs: &JobQueue,
    item: &ItemRef,
) -> Result<Option<Vec<u8>>> {
    let done = jobs.await_done(runner, item).await?;
    // Not the result of a dead letter, which has none.
    let done = done.filter(|done| matches!(done.place, Place::Done { .. }));
    Ok(done.map(|done| done.result.to_vec()))
}

async fn run_periodically(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let hourly = &Schedule::new("0 * * * *").with_time_zone("America/New_York");
    let job = &"collect statistics".to_owned();
    let schedule = async |tr| jobs.schedule(&tr, "statistics", hourly, job).await;
    let _ = runner.run(schedule).await?;
    Ok(())
}

async fn run_what_the_code_says(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let shop = Some("shop");
    let own = async |tr| jobs.set_schedule_owner(&tr, "statistics", shop).await;
    assert!(runner.run(own).await?);
    let hourly = Schedule::new("0 * * * *").with_time_zone("America/New_York");
    let schedules = &[("statistics", hourly, "collect statistics".to_owned())];
    let set = async |tr| jobs.set_schedules(&tr, "shop", schedules).await;
    for name in runner.run(set).await?.removed {
        println!("`{name}` is no longer in the code, and fires no more");
    }
    Ok(())
}

async fn run_without_a_pile(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let once = Enqueue::new().with_dedupe("refresh");
    let minutely = &Schedule::new("* * * * *").with_enqueue_options(once);
    let job = &"refresh".to_owned();
    let schedule = async |tr| jobs.schedule(&tr, "refresh", minutely, job).await;
    let _ = runner.run(schedule).await?;
    Ok(())
}

async fn work_for_a_long_time(runner: &Runner<Store>, jobs: &JobQueue) -> Result<Worker<String>> {
    let hour = WorkerOptions::new()
        .with_concurrency(4)
        .with_time_limit(Duration::from_secs(3600));
    let encode = async |video: Delivery<String>| {
        for _part in 0..10 {
            // A handler that waits is dropped where it waits. One that computes has to look, and to return an error.
            if video.is_cancelled() {
                let item = video.item_ref();
                return Err(Error::Cancelled { item });
            }
            // The time limit begins anew. Fails if the delivery was lost, because the time was over.
            video.keep_alive()?;
        }
        Ok::<_, Error>(())
    };
    jobs.work(runner, hour, encode).await
}

async fn stop(worker: Worker<String>) -> Result<()> {
    let report = worker.shut_down(Duration::from_secs(30)).await?;
    println!("{} handlers were dropped", report.dropped);
    Ok(())
}

async fn test_a_handler(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let drained = drain_process(runner, jobs, decide_how_to_fail).await?;
    assert_eq!((drained.completed, drained.dead), (1, 1));
    Ok(())
}

async fn change_settings(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let change = async |tr: Tx<_>| {
        let settings = jobs.settings(&tr).await?.with_max_attempts(20);
        jobs.configure(&tr, &settings).await
    };
    runner.run(change).await
}

async fn pause(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let pause = async |tr: Tx<_>| {
        jobs.pause(&tr);
        Ok::<_, Error>(())
    };
    runner.run(pause).await
}

fn back_up(store: &Embedded, path: &str) -> Result<(), keyspace::OpenError> {
    store.backup(path)
}

async fn open_in_each_process(url: &str) -> Result<(Runner<Store>, JobQueue), AnyError> {
    // The first process owns the store. The others are its clients.
    let runner = Runner::new(keyspace::open(url)?);
    let jobs = Queue::<String>::open(&runner, "jobs").await?;
    Ok((runner, jobs))
}

fn open_only_as_a_client(path: &Path) -> Result<Runner<Embedded>, keyspace::OpenError> {
    let client = Options::new().with_sharing(Sharing::ClientOnly);
    let store = client.with_patience(Duration::from_secs(60)).open(path)?;
    Ok(Runner::new(store))
}

async fn hand_over(worker: Worker<String>, runner: Runner<Store>) -> Result<(), AnyError> {
    worker.shut_down(Duration::from_secs(30)).await?;
    runner.close().await?;
    // Blocks its thread until a client can take the store over.
    let store = runner.database().clone();
    spawn_blocking(move || store.close()).await??;
    Ok(())
}

/// Opens a file several times, as processes do, and hands it over from the first opening to the second one.
async fn share_a_store() -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("jobs.keyspace");
    let url = format!("embedded:{}", path.display());
    let (old, old_jobs) = open_in_each_process(&url).await?;
    let (new, new_jobs) = open_in_each_process(&url).await?;
    let client = open_only_as_a_client(&path)?;
    let worker = old_jobs
        .work(&old, WorkerOptions::new(), return_a_result)
        .await?;
    hand_over(worker, old).await?;
    new_jobs.submit(&client, &"trailer".to_owned()).await?;
    let jobs = &new_jobs;
    let length = async |tr: Tx<_>| jobs.len(&tr).await;
    assert_eq!(new.run(length).await?, 1);
    Ok(())
}

/// Returns how many jobs of a tenant are granted before no other may be, and completes them.
async fn granted_to(consumer: &Consumer<String>, tenant: &str) -> Result<usize> {
    let mut granted = Vec::new();
    while let Some(job) = consumer.dequeue().await? {
        granted.push(job);
    }
    let of_tenant = |job: &&Delivery<String>| job.group().is_some_and(|group| group == tenant);
    let count = granted.iter().filter(of_tenant).count();
    for job in granted {
        job.complete().await?;
    }
    Ok(count)
}

async fn limit_pause_and_share(runner: &Runner<Store>, jobs: &JobQueue) -> Result<()> {
    let consumer = jobs.consumer(runner, WorkerOptions::new()).await?;
    let enqueue = async |tr: Tx<_>| {
        limit_tenants(&tr, jobs).await?;
        for number in 0..9 {
            for tenant in ["acme", "globex"] {
                enqueue_for_tenant(&tr, jobs, (tenant, number.to_string())).await?;
            }
        }
        Ok::<_, Error>(())
    };
    runner.run(enqueue).await?;
    assert_eq!(granted_to(&consumer, "acme").await?, 5);

    assert!(pause_a_tenant(runner, jobs, "acme").await?);
    assert_eq!(granted_to(&consumer, "acme").await?, 0);
    let state = async |tr: Tx<_>| jobs.group(&tr, b"acme").await;
    let paused = runner.run(state).await?;
    assert_eq!((paused.waiting, paused.state), (4, GroupState::Paused));
    assert_eq!(clear_and_resume(runner, jobs, "acme").await?, 4);

    runner.run(enqueue).await?;
    let share = async |tr: Tx<_>| share_between_tenants(&tr, jobs).await;
    runner.run(share).await?;
    assert_eq!(granted_to(&consumer, "acme").await?, 6);
    consumer.shut_down(Duration::ZERO).await?;
    Ok(())
}

async fn call_at_a_rate(runner: &Runner<Store>, calls: &JobQueue) -> Result<()> {
    let enqueue = async |tr: Tx<_>| {
        limit_calls(&tr, calls).await?;
        for number in 0..100 {
            enqueue_for_tenant(&tr, calls, ("customer 7", number.to_string())).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(enqueue).await?;
    let consumer = calls.consumer(runner, WorkerOptions::new()).await?;
    // One more for each two thirds of a second that this takes.
    let granted = granted_to(&consumer, "customer 7").await?;
    assert!((10..100).contains(&granted));
    let state = async |tr: Tx<_>| calls.group(&tr, b"customer 7").await;
    let customer = runner.run(state).await?;
    assert!(matches!(customer.state, GroupState::UntilRate(_)));
    consumer.shut_down(Duration::ZERO).await?;
    Ok(())
}

async fn handle_in_order(runner: &Runner<Store>, transfers: &JobQueue) -> Result<()> {
    let enqueue = async |tr: Tx<_>| {
        keep_accounts_in_order(&tr, transfers).await?;
        for transfer in ["first", "second", "third"] {
            enqueue_for_tenant(&tr, transfers, ("account 7", transfer.to_owned())).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(enqueue).await?;
    let consumer = transfers.consumer(runner, WorkerOptions::new()).await?;
    let mut handled = Vec::new();
    while let Some(transfer) = consumer.dequeue().await? {
        // The later ones wait for this one, also after its first attempt has failed.
        assert!(consumer.dequeue().await?.is_none());
        if transfer.attempt() == 1 {
            transfer.nack().await?;
            continue;
        }
        handled.push(transfer.value().clone());
        transfer.complete().await?;
    }
    assert_eq!(handled, ["first", "second", "third"]);
    consumer.shut_down(Duration::ZERO).await?;
    Ok(())
}

/// Handles the reports of all regions, and then the summary.
async fn summarize(runner: &Runner<Store>, reports: &JobQueue) -> Result<()> {
    let regions = &["north".to_owned(), "south".to_owned()];
    let enqueue = async |tr: Tx<_>| run_when_all_are_done(&tr, reports, regions).await;
    let batch = runner.run(enqueue).await?;
    let handler = async |job: Delivery<String>| {
        let counts = job.batch_counts().map(|counts| counts.completed);
        let is_summary = job.value() == "send the summary";
        assert_eq!(counts, is_summary.then_some(2));
    };
    let drained = drain(runner, reports, handler).await?;
    assert_eq!(drained.completed, 3);
    reports.await_batch(runner, &batch).await
}

/// Calls the recipes of enqueues with options.
async fn enqueue_in_all_ways(runner: &Runner<Store>, later: &JobQueue) -> Result<()> {
    let once = async |tr: Tx<_>| {
        let first = enqueue_once(&tr, later, 7).await?;
        Ok::<_, Error>((first, enqueue_once(&tr, later, 7).await?))
    };
    assert_eq!(runner.run(once).await?, (true, false));
    let tomorrow = runner.environment().wall() + Duration::from_secs(24 * 3600);
    let more = async |tr: Tx<_>| {
        enqueue_for_later(&tr, later, tomorrow).await?;
        enqueue_debounced(&tr, later, "home").await?;
        assert!(enqueue_bounded(&tr, later).await?);
        assert!(enqueue_first(&tr, later, "order".to_owned()).await?);
        Ok::<_, Error>(())
    };
    runner.run(more).await?;
    let delayed = runner
        .run(async |tr: Tx<_>| later.list(&tr, PlaceKind::Delayed, None, 1).await)
        .await?
        .items[0]
        .item;
    let expedite = async |tr: Tx<_>| run_at_once(&tr, later, &delayed).await;
    assert!(runner.run(expedite).await?);
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), AnyError> {
    let store = keyspace::open("memory:")?;
    let runner = &Runner::new(store.clone());
    let settings = Settings::new().with_keep_done(Duration::from_secs(60));
    let open = |name: &'static str| {
        JobQueue::open_with(runner, name, settings.clone(), OpenOptions::new())
    };
    let jobs = &open("jobs").await?;

    enqueue_with_own_data(runner, jobs, &Subspace::from("users")).await?;
    enqueue_many(runner, jobs, &["malformed".to_owned()]).await?;
    test_a_handler(runner, jobs).await?;
    let dead = runner
        .run(async |tr: Tx<_>| jobs.list(&tr, PlaceKind::Dead, None, 1).await)
        .await?
        .items
        .remove(0)
        .item;
    let why = async |tr: Tx<_>| why_it_failed(&tr, jobs, &dead).await;
    assert_eq!(
        runner.run(why).await?.as_deref(),
        Some("there is no such customer")
    );
    assert_eq!(redrive_all(runner, jobs).await?, 1);
    let change = async |tr: Tx<_>| change_what_waits(&tr, jobs, &dead).await;
    assert!(runner.run(change).await?);
    let cancel_it = async |tr: Tx<_>| cancel(&tr, jobs, &dead).await;
    assert!(runner.run(cancel_it).await?);

    enqueue_in_all_ways(runner, &open("later").await?).await?;

    limit_pause_and_share(runner, &open("tenants").await?).await?;
    call_at_a_rate(runner, &open("calls").await?).await?;
    handle_in_order(runner, &open("transfers").await?).await?;
    summarize(runner, &open("reports").await?).await?;

    let mail = mail_about_a_death(runner, &open("mails").await?).await?;
    assert_eq!(
        mail.as_deref(),
        Some("payment 17 died: the card has expired")
    );

    let videos = &open("videos").await?;
    change_settings(runner, videos).await?;
    run_periodically(runner, videos).await?;
    run_what_the_code_says(runner, videos).await?;
    run_without_a_pile(runner, videos).await?;
    stop(work_for_a_long_time(runner, videos).await?).await?;
    let item = videos.submit(runner, &"trailer".to_owned()).await?;
    let worker = videos
        .work(runner, WorkerOptions::new(), return_a_result)
        .await?;
    let result = wait_for_a_result(runner, videos, &item).await?;
    assert_eq!(result.as_deref(), Some(&b"TRAILER"[..]));
    stop(worker).await?;
    pause(runner, videos).await?;

    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("copy.keyspace").display().to_string();
    let Store::Embedded(embedded) = &store else {
        unreachable!("`memory:` names an embedded store");
    };
    back_up(embedded, &copy)?;
    keyspace::open_existing(&format!("embedded:{copy}"))?.close()?;
    if cfg!(unix) {
        share_a_store().await?;
    }
    println!("all recipes did what they say");
    Ok(())
}
