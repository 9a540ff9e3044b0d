//! Looking at export queues: how far each subscription is, and what it has given up.

use export_queue::keyspace::codec::Raw;
use export_queue::keyspace::{Bytes, Listed, Tx};
use export_queue::{DeadLetter, ExportQueue, Sequence, Subscription, SubscriptionState};

use super::payload::decode;
use super::{Console, Found, MAX_RECORDS, next_page};
use crate::error::{Error, Result};
use crate::report::{self, QueueState};

/// An export queue, and the names of its codecs of keys and values.
pub(crate) struct Export {
    pub(crate) queue: ExportQueue<Bytes, Bytes, Raw>,
    pub(crate) codecs: [String; 2],
}

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
            place: "dead".to_owned(),
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

    pub(super) async fn export_sessions(&self, found: &Export) -> Result<Vec<report::Session>> {
        let queue = &found.queue;
        let names = |tr| async move { queue.subscriptions(&tr).await };
        let mut all = Vec::new();
        for name in self.reader.run(names).await? {
            let subscription = self.subscription(found, &name).await?;
            for mut session in self.session_lives(&subscription.sessions()).await? {
                session.subscription = Some(name.clone());
                all.push(session);
            }
        }
        Ok(all)
    }

    pub(crate) async fn find_export(&self, name: &str, what: &'static str) -> Result<Export> {
        match self.find(name).await? {
            Found::Export(found) => Ok(found),
            other => Err(other.has_no(name, what)),
        }
    }

    pub(crate) async fn subscription(
        &self,
        found: &Export,
        name: &str,
    ) -> Result<Subscription<Bytes, Bytes, Raw>> {
        let queue = &found.queue;
        let read = |tr: Tx<_>| async move { queue.subscription(&tr, name).await };
        let subscription = self.reader.run(read).await?;
        subscription.ok_or_else(|| Error::Missing {
            what: "subscription",
            given: name.to_owned(),
            hint: "`exports` lists those that there are",
        })
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
        place: "dead".to_owned(),
        ..report::Item::default()
    };
    match listed.value {
        Ok(letter) => {
            let is_block = listed.id.is_of_block();
            report.attempts = letter.failures.into();
            report.exported = letter.exported;
            report.failure = Some(report::Failure {
                time: None,
                reason: letter.reason,
            });
            report.key = (!is_block).then(|| decode(of_key, &letter.key));
            let codec = if is_block { "block" } else { of_value };
            report.payload = Some(decode(codec, &letter.value));
        }
        Err(error) => report.problem = Some(error.to_string()),
    }
    report
}
