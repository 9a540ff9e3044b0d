//! The options of `limit`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use console::Limit;
use export_queue::hc_dequeue::{GroupLimits, Rate};

/// The limits of a group. Those that are given replace all that it had.
#[derive(Args)]
pub(crate) struct LimitOptions {
    /// The queue.
    pub(crate) queue: String,
    /// The group: text, or `0x` and hexadecimal digits. Without it, the default limits: those of groups that have none
    /// of their own.
    pub(crate) group: Option<String>,
    /// How many items of the group may have a slot. An item has one while a session holds it.
    #[arg(long, value_name = "N")]
    at_most: Option<u32>,
    /// Any number of items may have a slot.
    #[arg(long, conflicts_with_all = ["at_most", "ordered"])]
    no_limit: bool,
    /// An item keeps its slot until it ends, also while it waits to be tried again.
    #[arg(long)]
    until_end: bool,
    /// A dead letter keeps its slot until it is redriven, purged or cancelled.
    #[arg(long)]
    dead_letters_block: bool,
    /// The next item starts after the one before it has ended: `--at-most 1 --until-end`.
    #[arg(long, conflicts_with = "at_most")]
    ordered: bool,
    /// How many items the group is granted when it is its turn, from 1 to 1,000.
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// How many items of the group may start in which time: `100/1m`. Each grant of an item is a start.
    #[arg(long, value_name = "N/TIME", value_parser = parse_rate)]
    rate: Option<Rate>,
    /// How many items of the group may start at once, if the rate allows it. Without it, 1: starts are evenly spaced.
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// Remove this limit, and leave the others as they are.
    #[arg(
        long,
        value_name = "LIMIT",
        value_parser = limit(),
        conflicts_with_all = [
            "at_most", "no_limit", "until_end", "dead_letters_block", "ordered", "weight", "rate", "burst"
        ]
    )]
    pub(crate) remove: Option<Limit>,
    /// Let the default limits apply to the group again.
    #[arg(
        long,
        requires = "group",
        conflicts_with_all = [
            "at_most", "no_limit", "until_end", "dead_letters_block", "ordered", "weight", "rate", "burst",
            "remove"
        ]
    )]
    pub(crate) reset: bool,
}

impl LimitOptions {
    /// Returns the new limits. `None`: none were given, or one is removed, or they are reset.
    pub(crate) fn limits(&self) -> Option<GroupLimits> {
        let flags = [
            self.no_limit,
            self.until_end,
            self.dead_letters_block,
            self.ordered,
        ];
        let numbers = [self.at_most, self.weight];
        if !flags.contains(&true) && numbers.iter().all(Option::is_none) && self.rate.is_none() {
            return None;
        }
        let mut limits = if self.ordered {
            GroupLimits::ordered()
        } else {
            GroupLimits::new()
        };
        if let Some(items) = self.at_most {
            limits = limits.with_limit(items);
        }
        if self.until_end {
            limits = limits.with_until_end();
        }
        if self.dead_letters_block {
            limits = limits.with_dead_letters_blocking();
        }
        if let Some(items) = self.weight {
            limits = limits.with_weight(items);
        }
        if let Some(rate) = self.rate {
            let burst = self.burst.unwrap_or(rate.burst());
            limits = limits.with_rate(rate.with_burst(burst));
        }
        Some(limits)
    }
}

/// Returns the parser of a limit's name.
fn limit() -> impl TypedValueParser<Value = Limit> {
    PossibleValuesParser::new(Limit::ALL.map(Limit::name))
        .map(|name| Limit::parse(&name).expect("it is a possible value"))
}

/// Parses how many items may start in which time.
fn parse_rate(text: &str) -> Result<Rate, &'static str> {
    let rate = text.split_once('/').and_then(|(starts, period)| {
        let period = humantime::parse_duration(period).ok()?;
        Some(Rate::new(starts.parse().ok()?, period))
    });
    rate.ok_or("expected a number of starts and a time with its unit: 100/1m or 5/1s")
}
