//! Groups of items, and their limits.

use std::fmt::Write as _;

use console::report::{Group, Groups, Limits};
use console::terminal::short;

use super::{MAX_REASON_CHARS, Show, at_least, fields, next_page, table, text, yes};

const HEADER: [&str; 10] = [
    "GROUP",
    "STATE",
    "NEXT START",
    "SLOTS",
    "WAITING",
    "WEIGHT",
    "UNTIL END",
    "DEAD BLOCK",
    "RATE",
    "LIMITS",
];

impl Show for Groups {
    fn show(&self) -> String {
        let mut shown = if self.groups.is_empty() {
            "no groups on this page\n".to_owned()
        } else {
            table(&HEADER, self.groups.iter().map(cells))
        };
        let default = match &self.default_limits {
            Some(limits) => limits.to_string(),
            None => "unreadable".to_owned(),
        };
        let _ = writeln!(shown, "\ndefault limits: {default}");
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

/// Returns the row of a group.
fn cells(group: &Group) -> Vec<String> {
    let limits = group.limits.as_ref();
    let weight = limits.map(|limits| limits.weight);
    vec![
        group.group.clone(),
        group.state.clone(),
        text(group.next_start.as_ref()),
        group.slots_text(),
        at_least(group.waiting, group.has_more),
        text(weight.filter(|weight| *weight != 1).as_ref()),
        yes(limits.is_some_and(|limits| limits.until_end)),
        yes(limits.is_some_and(|limits| limits.dead_letters_block)),
        text(limits.and_then(|limits| limits.rate.as_ref())),
        if group.own_limits { "own" } else { "default" }.to_owned(),
    ]
}

/// Returns the items that have slots of a group, and what ends these.
fn holders_of(group: &Group) -> String {
    if group.holders.is_empty() {
        return String::new();
    }
    let header = ["HAS A SLOT", "PLACE", "SESSION", "SINCE", "UNTIL", "WHY"];
    let rows = group.holders.iter().map(|item| {
        let failure = item.failure.as_ref();
        let reason = failure.map(|failure| short(&failure.reason, MAX_REASON_CHARS));
        vec![
            item.item.clone(),
            item.place_name().to_owned(),
            text(item.session.as_ref()),
            text(item.granted.as_ref()),
            text(item.until.as_ref()),
            reason.unwrap_or_default(),
        ]
    });
    format!("\n{}", table(&header, rows))
}

impl Show for Group {
    fn show(&self) -> String {
        let limits = match &self.limits {
            Some(limits) if self.own_limits => limits.to_string(),
            Some(limits) => format!("{limits}, by default"),
            None => String::new(),
        };
        fields([
            ("group", self.group.clone()),
            ("state", self.state.clone()),
            ("not started", text(self.not_started.as_ref())),
            ("next start", text(self.next_start.as_ref())),
            ("slots", self.slots_text()),
            ("waiting", at_least(self.waiting, self.has_more)),
            ("limits", limits),
            ("paused", yes(self.paused)),
        ]) + &holders_of(self)
    }
}

impl Show for Limits {
    fn show(&self) -> String {
        fields([("default limits", self.to_string())])
    }
}
