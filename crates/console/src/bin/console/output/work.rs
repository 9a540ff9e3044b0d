//! Sessions, schedules, settings, changes, audits, what combine queues know of keys, and keys.

use console::report::{
    Audit, Change, CombineKey, Key, Keys, Payload, Process, Schedule, Schedules, Sessions,
    SetAsidePage, Settings, StoreCheck,
};

use console::terminal::short;

use super::{
    MAX_REASON_CHARS, Show, at_least, brief, fields, next_page, optional_span, pretty, span, table,
    text, whole,
};

impl Show for Sessions {
    fn show(&self) -> String {
        let processes = processes_text(&self.processes);
        if self.sessions.is_empty() {
            return format!("no session: nothing takes from this queue\n{processes}");
        }
        let header = [
            "SESSION",
            "LIFE",
            "LEASE",
            "SILENT",
            "HANDED OUT",
            "IN RESERVE",
            "SINCE",
            "WAITS FOR",
        ];
        let rows = self.sessions.iter().map(|session| {
            let handed_out = session.handed_out();
            let handed_out = handed_out.map(|count| at_least(count, session.has_more));
            let in_reserve = session.in_reserve.map(|count| count.to_string());
            vec![
                session.session.clone(),
                session.life.to_string(),
                span(session.lease_seconds),
                optional_span(session.silent_seconds),
                handed_out.unwrap_or_default(),
                in_reserve.unwrap_or_default(),
                session
                    .problem
                    .clone()
                    .unwrap_or_else(|| text(session.oldest_grant.as_ref())),
                session
                    .wanted
                    .map(|wanted| wanted.to_string())
                    .unwrap_or_default(),
            ]
        });
        let mut shown = table(&header, rows);
        next_page(&mut shown, self.next.as_deref());
        shown + &processes
    }
}

/// Returns a table of the processes that share a store, after an empty line.
fn processes_text(processes: &[Process]) -> String {
    if processes.is_empty() {
        return String::new();
    }
    let row = |process: &Process| {
        let pid = process.pid.to_string();
        vec![process.role.clone(), pid, process.program.clone()]
    };
    let rows = processes.iter().map(row);
    format!("\n{}", table(&["STORE", "PID", "PROGRAM"], rows))
}

/// Returns the next time of a schedule, and what to do if it is too far ahead.
fn next_text(schedule: &Schedule) -> String {
    let next = text(schedule.next.as_ref());
    match &schedule.expected {
        Some(expected) => format!("{next}, too late: `reschedule` it for {expected}"),
        None => next,
    }
}

impl Show for Schedules {
    fn show(&self) -> String {
        if self.schedules.is_empty() {
            return "no schedules\n".to_owned();
        }
        let header = [
            "SCHEDULE", "OWNER", "CRON", "ZONE", "MISSED", "OPTIONS", "NEXT", "LAST", "PAYLOAD",
        ];
        let rows = self.schedules.iter().map(|schedule| {
            vec![
                schedule.name.clone(),
                text(schedule.owner.as_ref()),
                text(schedule.cron.as_ref().or(schedule.problem.as_ref())),
                text(schedule.time_zone.as_ref()),
                text(schedule.missed.as_ref()),
                text(schedule.options.as_ref()),
                next_text(schedule),
                text(schedule.last.as_ref()),
                brief(schedule.payload.as_ref()),
            ]
        });
        let mut shown = table(&header, rows);
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

impl Show for Settings {
    fn show(&self) -> String {
        fields([
            ("queue", self.queue.clone()),
            ("lease", span(self.lease_seconds)),
            ("max attempts", self.max_attempts.to_string()),
            ("max deaths", self.max_deaths.to_string()),
            ("max deliveries", self.max_deliveries.to_string()),
            ("dedupe retention", span(self.dedupe_retention_seconds)),
            ("keep done", span(self.keep_done_seconds)),
            (
                "deaths",
                self.deaths.clone().unwrap_or_else(|| "-".to_owned()),
            ),
        ])
    }
}

impl Show for Change {
    fn show(&self) -> String {
        match self.changed {
            0 => format!("{}: {}: {}\n", self.queue, self.action, self.outcome),
            count => format!(
                "{}: {}: {count}: {}\n",
                self.queue, self.action, self.outcome
            ),
        }
    }
}

impl Show for StoreCheck {
    fn show(&self) -> String {
        format!(
            "blocks: every checksum is right\n\
             rows: {} with {} bytes are in order\n\
             log: {} batches of commits can be recovered\n",
            self.rows, self.bytes, self.log_batches
        )
    }
}

impl Show for Audit {
    fn show(&self) -> String {
        let notes: String = self
            .unchecked
            .iter()
            .map(|note| format!("Not a finding: {note}\n"))
            .collect();
        if self.findings.is_empty() {
            let checked = if notes.is_empty() {
                "everything"
            } else {
                "all that was checked"
            };
            return format!("{}: {checked} agrees\n{notes}", self.queue);
        }
        let rows = self
            .findings
            .iter()
            .map(|finding| vec![finding.kind.clone(), finding.detail.clone()]);
        let shown = table(&["FOUND", "WHAT"], rows);
        let next = if self.repaired {
            "What can be repaired was repaired: run audit again to see what is left."
        } else {
            "To repair what can be repaired: console repair"
        };
        format!("{shown}\n{notes}{next}\n")
    }
}

impl Show for SetAsidePage {
    fn show(&self) -> String {
        if self.set_aside.is_empty() {
            return "nothing is set aside\n".to_owned();
        }
        let rows = self.set_aside.iter().map(|aside| {
            let why = aside
                .failure
                .as_ref()
                .map(|failure| &failure.reason)
                .or(aside.problem.as_ref());
            let kind = match aside.folded {
                0 => aside.kind.clone(),
                folded => format!("{}, {folded} folded", aside.kind),
            };
            vec![
                aside.id.clone(),
                kind,
                why.map(|why| short(why, MAX_REASON_CHARS))
                    .unwrap_or_default(),
                brief(aside.key.as_ref()),
                brief(aside.update.as_ref()),
            ]
        });
        let mut shown = table(&["ID", "KIND", "WHY", "KEY", "UPDATE"], rows);
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

impl Show for CombineKey {
    fn show(&self) -> String {
        let value = |payload: &Option<Payload>| match payload {
            Some(payload) => whole(payload),
            None => "none".to_owned(),
        };
        let exact = match (&self.problem, self.has_more) {
            _ if self.exact_known => value(&self.exact),
            (Some(problem), _) => format!("not known: {problem}"),
            (None, true) => "not known: too many pending updates".to_owned(),
            (None, false) => "not known: name the queue's combiner with --combiner".to_owned(),
        };
        let pending = match self.problem {
            Some(_) => "cannot be read".to_owned(),
            None => at_least(self.pending.len(), self.has_more),
        };
        fields([
            ("key", whole(&self.key)),
            ("settled", value(&self.settled)),
            ("combined", value(&self.combined)),
            ("exact", exact),
            ("pending updates", pending),
            ("reports withheld", text(self.withheld.as_ref())),
        ])
    }
}

impl Show for Keys {
    fn show(&self) -> String {
        let rows = self.keys.iter().map(|key| {
            vec![
                key.name.clone(),
                text(key.queue.as_ref()),
                text(key.part.as_ref()),
                key.value_bytes.to_string(),
            ]
        });
        let mut shown = if self.keys.is_empty() {
            "no keys\n".to_owned()
        } else {
            table(&["KEY", "QUEUE", "PART", "BYTES"], rows)
        };
        next_page(&mut shown, self.next.as_deref());
        shown
    }
}

impl Show for Key {
    fn show(&self) -> String {
        fields([
            ("key", self.name.clone()),
            ("tuple", text(self.tuple.as_ref())),
            ("hex", self.hex.clone()),
            ("queue", text(self.queue.as_ref())),
            ("part", text(self.part.as_ref())),
            ("value", pretty(self.value.as_ref())),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_audit_has_not_checked_is_a_note_and_no_finding() {
        let audit = |findings, unchecked: &[&str]| Audit {
            queue: "jobs".to_owned(),
            repaired: false,
            findings,
            unchecked: unchecked.iter().map(|note| (*note).to_owned()).collect(),
        };
        assert_eq!(audit(vec![], &[]).show(), "jobs: everything agrees\n");
        let note = "counter `slots` was not checked: there are too many items";
        assert_eq!(
            audit(vec![], &[note]).show(),
            format!("jobs: all that was checked agrees\nNot a finding: {note}\n")
        );
        let finding = console::report::Finding {
            kind: "no-pointer".to_owned(),
            detail: "item 1 has no pointer".to_owned(),
        };
        let shown = audit(vec![finding], &[note]).show();
        assert!(shown.contains("no-pointer") && shown.contains(note) && shown.contains("repair"));
    }
}
