//! Trace contexts of items, and the spans that handle them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{LONG, World};
use conformance::stores::TestStore;
use hc_dequeue::{
    Backoff, Consumer, Delivery, Enqueue, Enqueued, Error, OnRepeat, TraceContext, WorkerOptions,
};
use keyspace::names::queue_name;
use keyspace::{Isolation, RangeQuery, Tx, read_all};
use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

conformance::on_every_store!(
    a_context_stays_with_its_item,
    an_item_that_is_enqueued_outside_of_spans_has_no_context,
    a_context_of_the_enqueue_s_own_comes_before_that_of_the_span,
    a_value_that_is_replaced_brings_its_context,
    a_first_attempt_has_the_enqueuer_as_parent_and_a_later_one_as_a_link,
    handlers_in_transactions_have_the_enqueuer_as_parent,
    a_span_of_the_application_s_own_continues_the_trace,
);

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const SOON: Duration = Duration::from_millis(1);

fn context() -> TraceContext {
    TraceContext::new(PARENT, Some("a=b")).unwrap()
}

fn quick() -> WorkerOptions {
    WorkerOptions::new().with_backoff(Backoff::new(SOON, SOON))
}

async fn next(consumer: &Consumer<u64>) -> Delivery<u64> {
    consumer.dequeue_within(LONG).await.unwrap().unwrap()
}

/// Returns the exporter of all spans of this program.
fn exporter() -> &'static InMemorySpanExporter {
    static EXPORTER: OnceLock<InMemorySpanExporter> = OnceLock::new();
    EXPORTER.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
        let layer = tracing_opentelemetry::layer().with_tracer(provider.build().tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).unwrap();
        exporter
    })
}

/// Returns a span, which has a tracestate, and its context.
fn enqueuer() -> (Span, SpanContext) {
    static TRACES: AtomicU64 = AtomicU64::new(1);
    exporter();
    let trace = TRACES.fetch_add(1, Ordering::Relaxed);
    let trace = TraceId::from(u128::from(trace));
    let parent = SpanId::from(1);
    let state = TraceState::from_key_value([("a", "b")]).unwrap();
    let remote = SpanContext::new(trace, parent, TraceFlags::SAMPLED, true, state);
    let span = tracing::info_span!("enqueuer");
    let parent = Context::new().with_remote_span_context(remote);
    span.set_parent(parent).unwrap();
    let context = span.context().span().span_context().clone();
    (span, context)
}

/// Returns the spans of handlers that have this span as their parent or as a link, in the order of their ends.
fn handlers(enqueuer: &SpanContext) -> Vec<SpanData> {
    let mut spans = exporter().get_finished_spans().unwrap();
    spans.retain(|span| {
        span.name == "handler" && (is_child(span, enqueuer) || is_linked(span, enqueuer))
    });
    spans
}

fn is_child(span: &SpanData, of: &SpanContext) -> bool {
    span.span_context.trace_id() == of.trace_id()
        && span.parent_span_id == of.span_id()
        && span.parent_span_is_remote
        && span.span_context.trace_state() == of.trace_state()
}

fn is_linked(span: &SpanData, to: &SpanContext) -> bool {
    let is_same = |linked: &SpanContext| {
        (linked.trace_id(), linked.span_id(), linked.trace_flags())
            == (to.trace_id(), to.span_id(), to.trace_flags())
            && linked.trace_state() == to.trace_state()
    };
    span.links.iter().any(|link| is_same(&link.span_context))
}

fn attribute(span: &SpanData, key: &str) -> String {
    let mut attributes = span.attributes.iter();
    let attribute = attributes.find(|attribute| attribute.key.as_str() == key);
    attribute.unwrap().value.to_string()
}

async fn a_context_stays_with_its_item(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = Enqueue::new().with_trace_context(context());
    let staged = world.enqueue_with(7, &options).await.unwrap();
    assert!(matches!(staged, Enqueued::Staged(_)));
    let consumer = world.consumer().await;

    let check = |delivery: &Delivery<u64>, attempt| {
        assert_eq!(delivery.trace_context(), Some(context()));
        assert_eq!(delivery.attempt(), attempt);
    };
    let delivery = next(&consumer).await;
    check(&delivery, 1);
    delivery.retry_after(SOON, "not yet").await.unwrap();
    let delivery = next(&consumer).await;
    check(&delivery, 2);
    delivery.snooze(SOON).await.unwrap();
    let delivery = next(&consumer).await;
    check(&delivery, 2);
    delivery.discard("no good").await.unwrap();

    let queue = &world.queue;
    let item = delivery.item_ref();
    let redrive = |tr| async move { queue.redrive(&tr, &item).await };
    assert!(world.runner.run(redrive).await.unwrap());
    let delivery = next(&consumer).await;
    check(&delivery, 1);
    world.ack(&delivery).await.unwrap();
    world.check().await;
}

async fn an_item_that_is_enqueued_outside_of_spans_has_no_context(store: TestStore) {
    exporter();
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let _ = world.enqueue_with(7, &Enqueue::new()).await.unwrap();
    let (begin, end) = world.queue.subspace().subspace(&"i").range();
    let query = &RangeQuery::keys(begin, end);
    let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    let rows = world.runner.run(read).await.unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        // Two formats, the time of the enqueue in a field of 3 and 6 bytes, the end, and the payload.
        let value = row.value();
        assert_eq!(
            (&value[..5], value.len()),
            (&[1, 1, 1, 0, 6][..], 13),
            "{value:?}"
        );
    }
    assert_eq!(next(&world.consumer().await).await.trace_context(), None);
}

async fn a_context_of_the_enqueue_s_own_comes_before_that_of_the_span(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (span, enqueuer) = enqueuer();
    let enqueue = async {
        let own = Enqueue::new().with_trace_context(context());
        let _ = world.enqueue_with(1, &own).await.unwrap();
        let _ = world.enqueue_with(2, &Enqueue::new()).await.unwrap();
        world.enqueue([3, 4]).await;
    };
    enqueue.instrument(span).await;
    let deliveries = world.consumer().await.dequeue_batch(4).await.unwrap();
    assert_eq!(deliveries.len(), 4);
    assert_eq!(deliveries[0].trace_context(), Some(context()));
    for delivery in &deliveries[1..] {
        let context = delivery.trace_context().unwrap();
        let expected = format!("00-{}-{}-01", enqueuer.trace_id(), enqueuer.span_id());
        assert_eq!(context.traceparent(), expected);
        assert_eq!(context.tracestate(), Some("a=b"));
    }
}

async fn a_value_that_is_replaced_brings_its_context(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let first = Enqueue::new()
        .with_dedupe("id")
        .with_on_repeat(OnRepeat::Replace);
    let second = first.clone().with_trace_context(context());
    let consumer = world.consumer().await;
    for (options, expected) in [
        ([&first, &second], Some(context())),
        ([&second, &first], None),
    ] {
        for (value, options) in options.into_iter().enumerate() {
            let _ = world.enqueue_with(value as u64, options).await.unwrap();
        }
        let delivery = next(&consumer).await;
        assert_eq!((*delivery.value(), delivery.trace_context()), (1, expected));
        delivery.discard("no good").await.unwrap();
    }
}

async fn a_first_attempt_has_the_enqueuer_as_parent_and_a_later_one_as_a_link(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (span, enqueuer) = enqueuer();
    world.enqueue([7]).instrument(span).await;
    let (sender, mut refs) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(delivery.item_ref());
            match delivery.attempt() {
                1 | 2 => Err("not yet"),
                _ => Ok(()),
            }
        }
    };
    let worker = world.queue.work(&world.runner, quick(), handler).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();

    let spans = handlers(&enqueuer);
    let [first, second, third] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert!(
        is_child(first, &enqueuer) && first.links.is_empty(),
        "{first:?}"
    );
    for (span, attempt) in [(second, 2), (third, 3)] {
        assert!(is_linked(span, &enqueuer), "{span:?}");
        assert_eq!(span.parent_span_id, SpanId::INVALID, "{span:?}");
        assert_ne!(span.span_context.trace_id(), enqueuer.trace_id());
        assert_eq!(attribute(span, "attempt"), attempt.to_string());
    }
    let item = refs.recv().await.unwrap();
    assert_eq!(attribute(first, "item"), item.to_string());
    assert_eq!(attribute(first, "attempt"), "1");
    let name = queue_name(world.queue.subspace());
    assert_eq!(attribute(first, "queue"), name);
}

async fn handlers_in_transactions_have_the_enqueuer_as_parent(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (span, enqueuer) = enqueuer();
    world.enqueue([1, 2]).instrument(span).await;
    let handler = |_: Tx<_>, _| async move { Ok::<_, Error>(()) };
    let worker = world.queue.process(&world.runner, quick(), handler).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let spans = handlers(&enqueuer);
    assert_eq!(spans.len(), 2);
    assert!(
        spans.iter().all(|span| is_child(span, &enqueuer)),
        "{spans:?}"
    );
}

async fn a_span_of_the_application_s_own_continues_the_trace(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (span, enqueuer) = enqueuer();
    world.enqueue([7]).instrument(span).await;
    let delivery = next(&world.consumer().await).await;
    let new = tracing::info_span!("handler", entered = false);
    delivery.continue_trace(&new);
    let entered = tracing::info_span!("handler", entered = true);
    entered.in_scope(|| {});
    delivery.continue_trace(&entered);
    drop((new, entered));

    let spans = handlers(&enqueuer);
    let of = |entered: &str| {
        let mut spans = spans.iter();
        spans
            .find(|span| attribute(span, "entered") == entered)
            .unwrap()
    };
    assert!(is_child(of("false"), &enqueuer) && of("false").links.is_empty());
    assert!(is_linked(of("true"), &enqueuer));
}
