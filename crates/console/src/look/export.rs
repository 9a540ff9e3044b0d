//! Looking at export queues: how far each subscription is, and what it has given up.

use export_queue::hc_dequeue::PlaceKind;
use export_queue::keyspace::Listed;
use export_queue::{DeadLetter, Sequence, SubscriptionState};

use super::console::{Console, MAX_RECORDS, next_page};
use super::found::Export;
use super::payload::decode;
use crate::error::{Error, Result};
use crate::report::{self, QueueState};

impl Console {
    /// Returns a page of the dead letters of a subscription: up to `limit` after the one of this sequence.
    ///
    /// # Errors
    /// [`Error::NoQueue`], [`Error::WrongRecipe`], [`Error::Malformed`] for a sequence that is none, an unknown
    /// subscription, and those of the store.
    pub async fn letters(
        &self,
        name: &str,
        subscription: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<report::Items> {
        let found = &self.find_export(name, "subscriptions").await?;
        let after = after.map(parse_sequence).transpose()?;
        let limit = limit.clamp(1, MAX_RECORDS);
        let subscription = &self.subscription(found, subscription).await?;
        let read = |tr| async move { subscription.dead_letters(&tr, after, limit + 1).await };
        let mut letters = self.reader.run(read).await?;
        let next = next_page(&mut letters, limit).map(|last| last.id.to_string());
        let letters = letters.into_iter();
        Ok(report::Items {
            queue: name.to_owned(),
            place: PlaceKind::Dead,
            count: None,
            items: letters
                .map(|letter| letter_of(&found.codecs, letter))
                .collect(),
            next,
        })
    }

    pub(super) async fn export_state(&self, found: &Export) -> Result<QueueState> {
        let queue = &found.queue;
        let read = |tr| async move { queue.subscription_states(&tr).await };
        let mut subscriptions = Vec::new();
        for state in self.reader.run(read).await? {
            let subscription = self.subscription(found, &state.name).await?;
            let sessions = self.living(&subscription.sessions()).await?;
            subscriptions.push(subscription_of(state, sessions));
        }
        Ok(QueueState::ExportQueue(report::ExportState {
            buckets: queue.settings().bucket_count(),
            subscriptions,
        }))
    }
}

/// Returns the sequence that has a text.
pub(crate) fn parse_sequence(text: &str) -> Result<Sequence> {
    text.parse()
        .map_err(|error: export_queue::SequenceError| Error::Malformed {
            what: "sequence",
            given: text.to_owned(),
            reason: error.to_string(),
        })
}

fn subscription_of(state: SubscriptionState, sessions: usize) -> report::Subscription {
    report::Subscription {
        name: state.name,
        paused: state.is_paused,
        lag_seconds: state.lag.map(|lag| lag.as_secs_f64()),
        pending_entries: state.pending.count,
        pending_bytes: state.pending.bytes,
        has_more: state.pending.has_more,
        dead: state.dead_letters.count,
        has_more_dead: state.dead_letters.has_more,
        holds_log_back: state.holds_back,
        damaged_buckets: state.damaged.iter().map(|bucket| bucket.0).collect(),
        sessions,
    }
}

fn letter_of(codecs: &[String; 2], listed: Listed<Sequence, DeadLetter>) -> report::Item {
    let [of_key, of_value] = codecs;
    let mut report = report::Item {
        item: listed.id.to_string(),
        place: Some(PlaceKind::Dead),
        ..report::Item::default()
    };
    match listed.value {
        Ok(letter) => {
            report.attempts = letter.failures.into();
            report.exported = letter.exported;
            report.failure = Some(report::Failure {
                time: None,
                reason: letter.reason,
            });
            if listed.id.is_of_block() {
                report.payload = Some(decode("block", &letter.value));
            } else {
                report.key = Some(decode(of_key, &letter.key));
                report.payload = Some(decode(of_value, &letter.value));
            }
        }
        Err(error) => report.problem = Some(error.to_string()),
    }
    report
}
