//! Items.

use std::fmt::Write as _;

use console::report::{Item, Items, Progress};
use export_queue::hc_dequeue::PlaceKind;

use console::terminal::short;

use super::{MAX_REASON_CHARS, Show, brief, fields, next_page, pretty, table, text, yes};

impl Show for Items {
    fn show(&self) -> String {
        let mut header = vec![
            "ITEM", "ENQUEUED", "TRIES", "DEATHS", "SINCE", "WHY", "PAYLOAD",
        ];
        // Most queues have items of one type, without kinds.
        let have_kinds = self.have_kinds();
        if have_kinds {
            header.insert(1, "KIND");
        }
        let rows = self.items.iter().map(|item| {
            let since = item.until.or(item.ended).or(item.granted);
            let why = item.problem.clone().or(item.end.clone());
            let progress = item.progress.as_ref().map(Progress::to_string);
            let failure = item.failure.as_ref().map(|failure| failure.reason.clone());
            // Of an item that is held, how far it is says more than why it failed before.
            let reason = match item.place {
                Some(PlaceKind::Held) => why.or(progress).or(failure),
                _ => why.or(failure),
            };
            let reason = short(&reason.unwrap_or_default(), MAX_REASON_CHARS);
            let note = match item.exported {
                0 => reason,
                exported => format!("{reason} ({exported} entries were exported)"),
            };
            let mut cells = vec![
                item.item.clone(),
                text(item.enqueued.as_ref()),
                item.attempts.to_string(),
                item.deaths.to_string(),
                text(since.as_ref()),
                note,
                brief(item.payload.as_ref()),
            ];
            if have_kinds {
                cells.insert(1, text(item.kind.as_ref()));
            }
            cells
        });
        let mut shown = if self.items.is_empty() {
            format!("no {} items on this page\n", self.place.name())
        } else {
            table(&header, rows)
        };
        if let Some(count) = self.count {
            let _ = writeln!(shown, "\n{count} {} in all", self.place.name());
        }
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

impl Show for Item {
    fn show(&self) -> String {
        let failure = self.failure.as_ref();
        let priority = match self.priority {
            0 => String::new(),
            other => other.to_string(),
        };
        fields([
            ("item", self.item.clone()),
            ("place", self.place_name().to_owned()),
            ("problem", text(self.problem.as_ref())),
            ("until", text(self.until.as_ref())),
            ("session", text(self.session.as_ref())),
            ("cancelled", yes(self.cancelled)),
            ("end", text(self.end.as_ref())),
            ("ended", text(self.ended.as_ref())),
            ("enqueued", text(self.enqueued.as_ref())),
            ("granted", text(self.granted.as_ref())),
            ("dedupe id", text(self.dedupe.as_ref())),
            ("kind", text(self.kind.as_ref())),
            ("priority", priority),
            ("group", text(self.group.as_ref())),
            ("has a slot", yes(self.has_slot)),
            ("not started", text(self.not_started.as_ref())),
            ("batch", text(self.batch.as_ref())),
            ("attempts", self.attempts.to_string()),
            ("deaths", self.deaths.to_string()),
            ("deliveries", self.deliveries.to_string()),
            ("steps done", self.steps.join(", ")),
            ("progress", text(self.progress.as_ref())),
            (
                "failed",
                text(failure.and_then(|failure| failure.time.as_ref())),
            ),
            (
                "reason",
                failure
                    .map(|failure| failure.reason.clone())
                    .unwrap_or_default(),
            ),
            ("payload", pretty(self.payload.as_ref())),
            ("checkpoint", pretty(self.checkpoint.as_ref())),
            ("result", pretty(self.result.as_ref())),
        ])
    }
}
