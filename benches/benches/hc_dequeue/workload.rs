//! The workloads by name, and their rounds.

use std::time::Duration;

use benches::load::{Action, Load};
use benches::stage::Stage;
use conformance::scale;

use crate::trial::{Setting, Way};

/// Settings that belong into one table, and the ways to queue that are compared in them.
pub(crate) type Workload = benches::workload::Workload<Setting, Way>;

/// The outcome of a way to queue in a setting.
pub(crate) type Outcome = benches::workload::Outcome<Setting, Way>;

/// The outcome of a workload, setting by setting.
pub(crate) type Results = Vec<Outcome>;

/// Returns all workloads.
pub(crate) fn all() -> [Workload; 5] {
    let long_backlog = scale(100_000, 1_000_000) as u64;
    [
        Workload {
            name: "consumers",
            title: "Pop by consumers of one session in one process",
            is_curve: true,
            settings: [1, 4, 16, 64, 256].map(|count| pop(1, 1, count)).into(),
            ways: &Way::WITHOUT_GROUPS,
        },
        Workload {
            name: "processes",
            title: "Pop by consumers of one session in each of four processes",
            is_curve: true,
            settings: [16, 64, 256].map(|count| pop(4, 1, count / 4)).into(),
            ways: &Way::WITHOUT_GROUPS,
        },
        Workload {
            name: "sessions",
            title: "Pop by sessions of one consumer",
            is_curve: false,
            settings: vec![pop(1, 64, 1)],
            ways: &Way::WITHOUT_GROUPS,
        },
        Workload {
            name: "backlog",
            title: "Pop with a short and a long backlog",
            is_curve: false,
            settings: [1_000, long_backlog]
                .map(|backlog| pop(1, 1, 64).with_backlog(backlog))
                .into(),
            ways: &[Way::BlindSets, Way::Naive, Way::Popped],
        },
        Workload {
            name: "enqueue",
            title: "Enqueue, one item in a commit",
            is_curve: false,
            settings: vec![pop(1, 1, 64).with_action(Action::Enqueue)],
            ways: &[Way::BlindSets, Way::Naive, Way::Classic, Way::Popped],
        },
    ]
}

/// Returns a setting of consumers that take items, by the number of processes, of sessions per process, and of
/// consumers per session.
pub(crate) fn pop(processes: usize, sessions: usize, consumers_per_session: usize) -> Setting {
    const BACKLOG: u64 = 20_000;
    let load = Load {
        action: Action::Pop,
        sessions,
        consumers_per_session,
        backlog: BACKLOG / processes as u64,
        time: Duration::from_millis(scale(1_000, 5_000) as u64),
    };
    Setting { processes, load }
}

impl Setting {
    pub(crate) fn with_backlog(mut self, items: u64) -> Self {
        self.load.backlog = items;
        self
    }

    fn with_action(mut self, action: Action) -> Self {
        self.load.action = action;
        self
    }
}

/// Runs all rounds.
pub(crate) fn run(workload: &Workload, stage: &Stage) -> Results {
    workload.run(scale(3, 7), |setting, way| setting.measure(way, stage))
}

/// Says whether the workload takes several processes.
pub(crate) fn takes_processes(workload: &Workload) -> bool {
    workload
        .settings
        .iter()
        .any(|setting| setting.processes > 1)
}
