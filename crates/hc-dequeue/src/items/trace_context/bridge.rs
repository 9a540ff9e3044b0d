//! Converts between trace contexts and those of OpenTelemetry.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::items::trace_context::TraceContext;

/// Returns the trace context of a span, if it has one.
pub(crate) fn context_of(span: &Span) -> Option<TraceContext> {
    let context = span.context();
    let span = context.span();
    let context = span.span_context();
    if !context.is_valid() {
        return None;
    }
    let traceparent = format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags()
    );
    let tracestate = context.trace_state().header();
    let context = TraceContext::new(&traceparent, Some(&tracestate));
    Some(context.expect("a valid span context has ids of this form"))
}

/// Makes a trace context the parent of a span. Links the span to it instead if `as_parent` is false or the span has
/// already begun.
pub(crate) fn continue_trace(span: &Span, context: &TraceContext, as_parent: bool) {
    let context = span_context(context);
    let parent = Context::new().with_remote_span_context(context.clone());
    if !as_parent || span.set_parent(parent).is_err() {
        span.add_link(context);
    }
}

fn span_context(context: &TraceContext) -> SpanContext {
    const FORM: &str = "the form was checked";
    let parts: Vec<_> = context.traceparent().split('-').collect();
    let flags = u8::from_str_radix(parts[3], 16).expect(FORM);
    // As the W3C requires, a tracestate that OpenTelemetry refuses is dropped.
    let state = context.tracestate().unwrap_or_default().parse();
    SpanContext::new(
        TraceId::from_hex(parts[1]).expect(FORM),
        SpanId::from_hex(parts[2]).expect(FORM),
        TraceFlags::new(flags),
        true,
        state.unwrap_or(TraceState::NONE),
    )
}
