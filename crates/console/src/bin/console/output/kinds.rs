//! Kinds of items.

use console::report::Kinds;

use super::{Show, table};

impl Show for Kinds {
    fn show(&self) -> String {
        if self.kinds.is_empty() {
            return "no items with a kind wait, and no session takes any\n".to_owned();
        }
        let rows = self.kinds.iter().map(|kind| {
            let state = if kind.is_unknown() {
                "no worker knows it"
            } else {
                ""
            };
            vec![
                kind.kind.clone(),
                kind.sessions.to_string(),
                kind.waiting.to_string(),
                state.to_owned(),
            ]
        });
        let shown = table(&["KIND", "SESSIONS", "WAITING", "STATE"], rows);
        shown
            + "\nWaiting: among the first 1,000 items with groups, the first 1,000 others, and the first 1,000 that are due\n"
    }
}
