//! Batches.

use console::report::{Batch, Batches};
use console::terminal::short;

use super::{MAX_REASON_CHARS, Show, fields, next_page, optional_span, table, text, yes};

const HEADER: [&str; 10] = [
    "BATCH",
    "STATE",
    "WAITS FOR",
    "PENDING",
    "COMPLETED",
    "DEAD",
    "CANCELLED",
    "AGE",
    "CALLBACK",
    "PARENT",
];

impl Show for Batches {
    fn show(&self) -> String {
        let mut shown = if self.batches.is_empty() {
            "no batches on this page\n".to_owned()
        } else {
            table(&HEADER, self.batches.iter().map(cells))
        };
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

/// Returns the row of a batch.
fn cells(batch: &Batch) -> Vec<String> {
    let waits = batch.waits_for.as_ref().or(batch.problem.as_ref());
    let mut cells = vec![
        batch.batch.clone(),
        batch.state.clone(),
        waits
            .map(|waits| short(waits, MAX_REASON_CHARS))
            .unwrap_or_default(),
    ];
    cells.extend(numbers(batch));
    cells.extend([
        optional_span(batch.age_seconds),
        yes(batch.has_callback),
        text(batch.parent.as_ref()),
    ]);
    cells
}

/// Returns the numbers of pending, completed, dead and cancelled members, unless they are not known.
fn numbers(batch: &Batch) -> [String; 4] {
    if batch.problem.is_some() {
        return Default::default();
    }
    let numbers = [batch.pending, batch.completed, batch.dead, batch.cancelled];
    numbers.map(|number| number.to_string())
}

impl Show for Batch {
    fn show(&self) -> String {
        let [pending, completed, dead, cancelled] = numbers(self);
        fields([
            ("batch", self.batch.clone()),
            ("state", self.state.clone()),
            ("waits for", text(self.waits_for.as_ref())),
            ("problem", text(self.problem.as_ref())),
            ("pending", pending),
            ("completed", completed),
            ("dead", dead),
            ("cancelled", cancelled),
            ("dead letters stay", yes(self.dead_letters_stay)),
            ("opened", text(self.opened.as_ref())),
            ("age", optional_span(self.age_seconds)),
            ("has a callback", yes(self.has_callback)),
            ("ended", text(self.ended.as_ref())),
            ("callback", text(self.callback.as_ref())),
            ("parent", text(self.parent.as_ref())),
        ])
    }
}
