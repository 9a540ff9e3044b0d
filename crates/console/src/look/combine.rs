//! Looking at combine queues: how far they are, what they set aside, and what they know of a key.

use export_queue::combine::{AsideId, Bucket, SetAside};
use export_queue::keyspace::names::{hex, parse_hex};
use export_queue::keyspace::{Bytes, Listed, Tx, Undecodable};
use export_queue::microqueue::blocks::{EntryId, WHOLE_BLOCK};
use serde::Deserialize;
use serde_json::{Number, Value};

use super::console::{Console, MAX_RECORDS, next_page};
use super::found::Combine;
use super::payload::{decode, encode};
use crate::error::{Error, Result};
use crate::report::{self, QueueState};

/// How a queue combines the updates of a key, as far as JSON values allow: the combiners of the library whose values
/// are numbers or texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Combiner {
    /// Adds numbers. A key whose sum is zero has no value.
    Sum,
    /// Keeps the smallest.
    Min,
    /// Keeps the largest.
    Max,
    /// Keeps the last one. A key whose last update is null has no value.
    LastWriter,
}

impl Console {
    /// Returns what a combine queue knows of a key, which is given as JSON; a word without quotes is a string. The
    /// exact value is known if no update waits to be combined, or if a combiner is given.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for a key that is none of the queue's codec,
    /// or for values that the combiner cannot combine, and those of the store.
    pub async fn combine_key(
        &self,
        name: &str,
        key: &str,
        combiner: Option<Combiner>,
    ) -> Result<report::CombineKey> {
        let found = self.find_combine(name, "combined values").await?;
        let [of_key, of_update, of_value] = &found.codecs;
        let encoded = encode(of_key, key).map_err(|reason| malformed("key", key, reason))?;
        let queue = &found.queue;
        let encoded_key = &encoded;
        let read = |tr| async move { queue.key_state(&tr, encoded_key).await };
        let state = self.reader.run(read).await?;
        let value = |stored: Result<Option<Bytes>, Undecodable>| match stored {
            Ok(bytes) => bytes.map(|bytes| decode(of_value, &bytes)),
            Err(record) => Some(undecodable(of_value, &record)),
        };
        let current = value(state.current);
        let problem = state.pending.as_ref().err().map(ToString::to_string);
        let is_whole = problem.is_none() && !state.has_more;
        let pending: Vec<_> = state
            .pending
            .iter()
            .flatten()
            .map(|update| decode(of_update, update))
            .collect();
        let exact = match combiner {
            _ if pending.is_empty() && is_whole => Some(current.clone()),
            Some(combiner) if is_whole => {
                let folded = fold(combiner, current.as_ref(), &pending)
                    .map_err(|reason| malformed("combiner", key, reason))?;
                Some(folded.map(|value| report::Payload {
                    codec: of_value.clone(),
                    bytes: encode(of_value, &value.to_string()).map_or(0, |bytes| bytes.len()),
                    value: Some(value),
                    hex: None,
                    problem: None,
                }))
            }
            _ => None,
        };
        Ok(report::CombineKey {
            queue: name.to_owned(),
            key: decode(of_key, &encoded),
            settled: value(state.settled),
            combined: current,
            exact_known: exact.is_some(),
            exact: exact.flatten(),
            pending,
            problem,
            has_more: state.has_more,
            withheld: state
                .withheld
                .unwrap_or_else(|record| Some(record.to_string())),
        })
    }

    /// Returns a page of what a combine queue has set aside: up to `limit` after the one of this id.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for an id that is none, and those of the
    /// store.
    pub async fn set_aside(
        &self,
        name: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::SetAsidePage> {
        let found = self.find_combine(name, "updates set aside").await?;
        let after = after.map(parse_aside).transpose()?;
        let queue = &found.queue;
        let after = after.as_ref();
        let limit = limit.clamp(1, MAX_RECORDS);
        let read = |tr| async move { queue.set_aside(&tr, after, limit + 1).await };
        let mut listed = self.reader.run(read).await?;
        let next = next_page(&mut listed, limit).map(|last| aside_text(&last.id));
        let listed = listed.into_iter();
        Ok(report::SetAsidePage {
            queue: name.to_owned(),
            set_aside: listed.map(|aside| aside_of(&found.codecs, aside)).collect(),
            next,
        })
    }

    pub(super) async fn combine_state(&self, found: &Combine) -> Result<QueueState> {
        let queue = &found.queue;
        let read = |tr: Tx<_>| async move {
            Ok::<_, Error>((queue.backlog(&tr).await?, queue.count_set_aside(&tr).await?))
        };
        let (backlog, set_aside) = self.reader.run(read).await?;
        Ok(QueueState::Combine(report::CombineState {
            buckets: queue.settings().bucket_count(),
            pending_updates: backlog.pending.count,
            pending_bytes: backlog.pending.bytes,
            has_more: backlog.pending.has_more,
            lag_seconds: backlog.lag.map(|lag| lag.as_secs_f64()),
            set_aside: set_aside.count,
            has_more_set_aside: set_aside.has_more,
            damaged_buckets: backlog.damaged.iter().map(|bucket| bucket.0).collect(),
            sessions: self.living(&queue.sessions()).await?,
        }))
    }
}

/// Returns a record that does not decode.
fn undecodable(codec: &str, record: &Undecodable) -> report::Payload {
    report::Payload {
        codec: codec.to_owned(),
        bytes: record.bytes.len(),
        value: None,
        hex: Some(hex(&record.bytes)),
        problem: Some(record.to_string()),
    }
}

/// Returns the text that names what was set aside: `key.` and the key, or the number of the bucket, a point and the
/// place of the update, in hexadecimal digits.
fn aside_text(id: &AsideId) -> String {
    match id {
        AsideId::Update { bucket, id } => format!("{}.{}", bucket.0, hex(&id.to_bytes())),
        AsideId::Key(key) => format!("key.{}", hex(key)),
        _ => String::new(),
    }
}

/// Returns what such a text names.
pub(crate) fn parse_aside(text: &str) -> Result<AsideId> {
    let id = text.split_once('.').and_then(|(bucket, digits)| {
        let bytes = parse_hex(digits)?;
        match bucket {
            "key" => Some(AsideId::Key(bytes.into())),
            bucket => Some(AsideId::Update {
                bucket: Bucket(bucket.parse().ok()?),
                id: EntryId::try_from(&bytes[..]).ok()?,
            }),
        }
    });
    id.ok_or_else(|| {
        malformed(
            "id",
            text,
            "`combine --set-aside` lists those that there are".into(),
        )
    })
}

fn malformed(what: &'static str, given: &str, reason: String) -> Error {
    let given = given.to_owned();
    Error::Malformed {
        what,
        given,
        reason,
    }
}

fn aside_of(codecs: &[String; 3], listed: Listed<AsideId, SetAside>) -> report::SetAside {
    let [of_key, of_update, _] = codecs;
    let mut report = report::SetAside {
        id: aside_text(&listed.id),
        kind: kind_of(&listed.id).to_owned(),
        folded: 0,
        failure: None,
        key: None,
        update: None,
        problem: None,
    };
    match listed.value {
        Ok(aside) => {
            report.folded = aside.folded;
            report.failure = Some(report::Failure {
                time: None,
                reason: aside.reason,
            });
            match &listed.id {
                AsideId::Update { id, .. } if id.index == WHOLE_BLOCK => {
                    report.update = Some(decode("block", &aside.update));
                }
                AsideId::Update { .. } => {
                    report.key = Some(decode(of_key, &aside.key));
                    report.update = Some(decode(of_update, &aside.update));
                }
                _ => report.key = Some(decode(of_key, &aside.key)),
            }
        }
        Err(error) => report.problem = Some(error.to_string()),
    }
    report
}

fn kind_of(id: &AsideId) -> &'static str {
    match id {
        AsideId::Update { id, .. } if id.index == WHOLE_BLOCK => "block",
        AsideId::Update { .. } => "update",
        _ => "key",
    }
}

/// Combines the values of a key as JSON.
fn fold(
    combiner: Combiner,
    current: Option<&report::Payload>,
    updates: &[report::Payload],
) -> Result<Option<Value>, String> {
    let mut values: Vec<Value> = current
        .into_iter()
        .chain(updates)
        .map(|payload| {
            let problem = || payload.problem.clone().unwrap_or_default();
            payload.value.clone().ok_or_else(problem)
        })
        .collect::<Result<_, _>>()?;
    match combiner {
        // An update that is none removes the value.
        Combiner::LastWriter => Ok(values.pop().filter(|value| !value.is_null())),
        Combiner::Sum => {
            let sum = values
                .iter()
                .try_fold(Number::from(0), |sum, value| add(&sum, value))?;
            if sum.as_f64() == Some(0.0) {
                return Ok(None);
            }
            Ok(Some(Value::Number(sum)))
        }
        Combiner::Min | Combiner::Max => {
            let mut best: Option<Value> = None;
            for value in values {
                let order = match &best {
                    None => true,
                    Some(best) => {
                        (compare(&value, best)? == std::cmp::Ordering::Less)
                            == (combiner == Combiner::Min)
                    }
                };
                if order {
                    best = Some(value);
                }
            }
            Ok(best)
        }
    }
}

fn add(sum: &Number, value: &Value) -> Result<Number, String> {
    let Value::Number(value) = value else {
        return Err(format!("{value} is no number"));
    };
    let whole = |number: &Number| number.as_i128();
    match (whole(sum), whole(value)) {
        (Some(sum), Some(value)) => {
            let sum = sum.checked_add(value).and_then(Number::from_i128);
            sum.ok_or_else(|| "the sum does not fit a number".to_owned())
        }
        _ => {
            let sum = sum.as_f64().unwrap_or_default() + value.as_f64().unwrap_or_default();
            Number::from_f64(sum).ok_or_else(|| "the sum does not fit a number".to_owned())
        }
    }
}

fn compare(one: &Value, other: &Value) -> Result<std::cmp::Ordering, String> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (one.as_i128(), other.as_i128()) {
            (Some(one), Some(other)) => Ok(one.cmp(&other)),
            _ => {
                let number = |number: &Number| number.as_f64().unwrap_or_default();
                Ok(number(one).total_cmp(&number(other)))
            }
        },
        (Value::String(one), Value::String(other)) => Ok(one.cmp(other)),
        _ => Err(format!("{one} and {other} are neither numbers nor texts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn payload(value: Value) -> report::Payload {
        report::Payload {
            codec: "Json".to_owned(),
            bytes: 0,
            value: Some(value),
            hex: None,
            problem: None,
        }
    }

    fn folded(
        combiner: Combiner,
        current: Option<Value>,
        updates: Vec<Value>,
    ) -> Result<Option<Value>, String> {
        let updates: Vec<_> = updates.into_iter().map(payload).collect();
        fold(combiner, current.map(payload).as_ref(), &updates)
    }

    #[test]
    fn updates_are_combined_as_the_library_does() {
        let sum = Combiner::Sum;
        let min = Combiner::Min;
        let max = Combiner::Max;
        let table = [
            (
                sum,
                Some(json!(1)),
                vec![json!(2), json!(-4)],
                Some(json!(-1)),
            ),
            (sum, Some(json!(1)), vec![json!(-1)], None),
            (
                sum,
                Some(json!(u64::MAX - 1)),
                vec![json!(1)],
                Some(json!(u64::MAX)),
            ),
            (sum, None, vec![json!(0.5), json!(1)], Some(json!(1.5))),
            (
                min,
                Some(json!(3)),
                vec![json!(2), json!(4)],
                Some(json!(2)),
            ),
            (
                max,
                Some(json!(3)),
                vec![json!(2), json!(4)],
                Some(json!(4)),
            ),
            (max, Some(json!("a")), vec![json!("b")], Some(json!("b"))),
            (
                Combiner::LastWriter,
                Some(json!(3)),
                vec![json!([1]), json!([2])],
                Some(json!([2])),
            ),
            (Combiner::LastWriter, Some(json!(3)), vec![], Some(json!(3))),
            (
                Combiner::LastWriter,
                Some(json!(3)),
                vec![Value::Null],
                None,
            ),
        ];
        for (combiner, current, updates, expected) in table {
            assert_eq!(
                folded(combiner, current, updates),
                Ok(expected),
                "{combiner:?}"
            );
        }
        assert!(folded(sum, None, vec![json!("a")]).is_err());
        assert!(folded(min, Some(json!("a")), vec![json!(1)]).is_err());
    }

    #[test]
    fn what_was_set_aside_is_named_by_a_text() {
        let id = EntryId::try_from(&[7; 20][..]).unwrap();
        let bucket = Bucket(3);
        for aside in [
            AsideId::Key(Bytes::from_static(b"k\xff")),
            AsideId::Update { bucket, id },
        ] {
            assert_eq!(parse_aside(&aside_text(&aside)).unwrap(), aside);
        }
        for text in ["", "3", "3.00", "x.00", "key.0"] {
            assert!(
                matches!(parse_aside(text), Err(Error::Malformed { .. })),
                "{text}"
            );
        }
    }
}
