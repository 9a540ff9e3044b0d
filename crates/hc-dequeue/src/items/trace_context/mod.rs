//! The trace context of an item.

use std::sync::Arc;

#[cfg(feature = "opentelemetry")]
use tracing::Span;

use crate::items::error::{Error, Result};
use crate::items::record::MAX_TRACE_CONTEXT_BYTES;

#[cfg(feature = "opentelemetry")]
pub(crate) mod bridge;

/// The length of a traceparent in bytes.
const TRACEPARENT_BYTES: usize = 55;

/// Separates the traceparent from the tracestate in the field of a record.
const SEPARATOR: char = '\n';

/// The place in a distributed trace where an item was enqueued, in the format of the W3C's [Trace
/// Context](https://www.w3.org/TR/trace-context/). It is stored with the item.
///
/// ```
/// use hc_dequeue::{Enqueue, TraceContext};
///
/// let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::new(traceparent, Some("vendor=value"))?;
/// let options = Enqueue::new().with_trace_context(context);
/// # let _ = options;
/// # Ok::<_, hc_dequeue::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The field of a record: the traceparent and, if there is one, a newline and the tracestate.
    field: Arc<str>,
}

impl TraceContext {
    /// Returns a trace context with these two headers.
    ///
    /// As the W3C requires, a tracestate is dropped if it is empty or contains anything but printable ASCII. It is
    /// also dropped if it has more than 456 bytes, so that the whole context has at most 512 bytes.
    ///
    /// # Errors
    /// [`Error::TraceContext`] if the traceparent is not of the form `version-traceid-parentid-flags` with 2, 32, 16
    /// and 2 lower-case hexadecimal digits; if the version is `ff`; or if an id is all zeros.
    pub fn new(traceparent: &str, tracestate: Option<&str>) -> Result<Self> {
        check(traceparent).map_err(|reason| Error::TraceContext { reason })?;
        let tracestate = tracestate.filter(|state| is_kept(state));
        let field = match tracestate {
            Some(tracestate) => format!("{traceparent}{SEPARATOR}{tracestate}").into(),
            None => traceparent.into(),
        };
        Ok(Self { field })
    }

    /// Parses the field of a record. Returns `None` if this version does not know its form.
    pub(crate) fn parse(field: &str) -> Option<Self> {
        let (traceparent, tracestate) = match field.split_once(SEPARATOR) {
            Some((traceparent, tracestate)) => (traceparent, Some(tracestate)),
            None => (field, None),
        };
        Self::new(traceparent, tracestate).ok()
    }

    /// Returns the field of a record.
    pub(crate) fn into_field(self) -> Arc<str> {
        self.field
    }

    /// Returns the `traceparent` header: version, trace id, id of the enqueuing span, and flags.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        &self.field[..TRACEPARENT_BYTES]
    }

    /// Returns the `tracestate` header, if there is one.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.field.get(TRACEPARENT_BYTES + SEPARATOR.len_utf8()..)
    }
}

/// Returns an error that describes the defect of a malformed traceparent.
fn check(traceparent: &str) -> Result<(), &'static str> {
    let parts: Vec<_> = traceparent.split('-').collect();
    let [version, trace_id, parent_id, flags] = parts[..] else {
        return Err("a traceparent has four parts, separated by `-`");
    };
    if [version, trace_id, parent_id, flags].map(str::len) != [2, 32, 16, 2] {
        return Err("the parts of a traceparent have 2, 32, 16 and 2 digits");
    }
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
    if !traceparent.bytes().all(is_digit) {
        return Err("the digits of a traceparent are hexadecimal, in lower case");
    }
    if version == "ff" {
        return Err("`ff` is not a version of a traceparent");
    }
    let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
    match (is_zero(trace_id), is_zero(parent_id)) {
        (true, _) => Err("the trace id is all zeros"),
        (_, true) => Err("the parent id is all zeros"),
        _ => Ok(()),
    }
}

/// Returns whether a tracestate is kept.
fn is_kept(tracestate: &str) -> bool {
    let bytes = TRACEPARENT_BYTES + SEPARATOR.len_utf8() + tracestate.len();
    let is_printable = |byte| matches!(byte, b' '..=b'~');
    !tracestate.is_empty()
        && tracestate.bytes().all(is_printable)
        && bytes <= MAX_TRACE_CONTEXT_BYTES
}

/// Returns the trace context of the current span, if there is one.
#[cfg(feature = "opentelemetry")]
pub(crate) fn current_context() -> Option<TraceContext> {
    bridge::context_of(&Span::current())
}

/// Returns nothing: without the feature `opentelemetry`, spans have no trace context.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current_context() -> Option<TraceContext> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_gives_back_its_headers_and_its_field() {
        for (tracestate, field) in [
            (None, PARENT.to_owned()),
            (Some("a=b, c=d"), format!("{PARENT}\na=b, c=d")),
        ] {
            let context = TraceContext::new(PARENT, tracestate).unwrap();
            assert_eq!(context.traceparent(), PARENT);
            assert_eq!(context.tracestate(), tracestate);
            assert_eq!(TraceContext::parse(&field).as_ref(), Some(&context));
            assert_eq!(&*context.into_field(), field);
        }
    }

    #[test]
    fn a_malformed_traceparent_is_refused_with_what_is_wrong() {
        let of_later_version = PARENT.replacen("00", "fe", 1);
        TraceContext::new(&of_later_version, None).unwrap();
        for (traceparent, wrong) in [
            (String::new(), "four parts"),
            (PARENT[3..].to_owned(), "four parts"),
            (format!("{PARENT}-00"), "four parts"),
            (format!("{PARENT}0"), "2, 32, 16 and 2"),
            (PARENT.replacen("00-4", "00-", 1), "2, 32, 16 and 2"),
            (PARENT.replace("00f0", "0\u{f6}f"), "hexadecimal"),
            (PARENT.to_uppercase(), "lower case"),
            (PARENT.replace('6', "g"), "hexadecimal"),
            (PARENT.replacen("00", "ff", 1), "not a version"),
            (
                PARENT.replace(&PARENT[3..35], &"0".repeat(32)),
                "trace id is all zeros",
            ),
            (
                PARENT.replace(&PARENT[36..52], &"0".repeat(16)),
                "parent id is all zeros",
            ),
        ] {
            let error = TraceContext::new(&traceparent, None).unwrap_err();
            assert!(
                matches!(error, Error::TraceContext { reason } if reason.contains(wrong)),
                "{traceparent}: {error}"
            );
            assert_eq!(TraceContext::parse(&traceparent), None);
        }
    }

    #[test]
    fn a_tracestate_that_is_too_long_or_is_no_header_is_left_out() {
        let longest = MAX_TRACE_CONTEXT_BYTES - TRACEPARENT_BYTES - 1;
        assert_eq!(longest, 456);
        for (tracestate, is_kept) in [
            ("x".repeat(longest), true),
            ("x".repeat(longest + 1), false),
            (String::new(), false),
            ("a=b\nc=d".to_owned(), false),
            ("a=\u{e4}".to_owned(), false),
        ] {
            let context = TraceContext::new(PARENT, Some(&tracestate)).unwrap();
            let expected = is_kept.then_some(&*tracestate);
            assert_eq!(context.tracestate(), expected);
            assert!(context.into_field().len() <= MAX_TRACE_CONTEXT_BYTES);
        }
    }
}
