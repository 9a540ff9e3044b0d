//! Decides when the items of a group may start that has a rate, without a store.
//!
//! This is the generic cell rate algorithm (ITU-T I.371), which needs one number for a token bucket: the *theoretical
//! arrival time*, at which the bucket is full again if nothing starts until then. Each start puts it off by one
//! interval, and the next item may start once it is less than `burst` intervals ahead.
//!
//! The clock is the read version of the transaction. It is never older than the newest commit that the transaction can
//! see, so it does not go back from one start to the next, whichever processes they are in. A read version that is old
//! only delays a start. A recovery of FoundationDB makes versions jump by 100 seconds, after which at most one burst
//! starts too early.
//!
//! # Tokens that come back
//!
//! An item that goes back before a handler got it gives its token back: the bucket is then as if it had not been
//! granted. Without that grant, the bucket would have been fuller since, by one token, but never fuller than full: what
//! does not fit in is lost. So a grant is worth only as much as the bucket has lacked at all times since then. The
//! bucket therefore remembers its *lows*: the least that it has lacked since earlier versions, as far as grants show
//! it. At other times it lacked more than at the grant that follows.

use microqueue::keyspace::limits::VERSIONS_PER_SECOND;

use crate::items::rate::Rate;
use crate::items::record::Spent;

const VERSIONS_PER_MILLI: i64 = VERSIONS_PER_SECOND / 1_000;

/// The largest number of lows. If there are more, the newest two become one: grants between them are worth what they
/// are before both.
const MAX_LOWS: usize = 8;

/// What is stored of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Level {
    /// The version at which all tokens are there.
    pub(crate) full_at: i64,
    /// Versions and what is lacking grow from each to the next.
    lows: Vec<Low>,
}

/// The least that a bucket has lacked since a version, and between it and the version of the low before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Low {
    version: i64,
    /// After how many versions the bucket would have been full, just before the grant at that version.
    lacking: i64,
}

impl Level {
    pub(crate) const fn new(full_at: i64) -> Self {
        Self {
            full_at,
            lows: Vec::new(),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let lows = self.lows.iter();
        let numbers = lows.flat_map(|low| [low.version, low.lacking]);
        let numbers = [self.full_at].into_iter().chain(numbers);
        numbers.flat_map(i64::to_be_bytes).collect()
    }

    /// Returns `None` if the bytes are not those of a level.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (full_at, rest) = bytes.split_first_chunk()?;
        let (lows, rest) = rest.as_chunks::<16>();
        let lows: Vec<_> = lows.iter().map(Low::parse).collect();
        let mut pairs = lows.windows(2);
        let ascends = pairs
            .all(|pair| pair[0].version < pair[1].version && pair[0].lacking < pair[1].lacking);
        let is_valid = rest.is_empty() && lows.len() <= MAX_LOWS && ascends;
        let full_at = i64::from_be_bytes(*full_at);
        if !is_valid {
            return None;
        }
        Some(Self { full_at, lows })
    }

    /// Lets tokens come back as if this many versions had passed. The versions of lows, and of tokens that are given
    /// back, matter only by their order.
    pub(crate) fn pass(&mut self, versions: i64) {
        self.full_at = self.full_at.saturating_sub(versions);
    }

    /// Notes what was lacking at a version.
    fn note_low(&mut self, version: i64, lacking: i64) {
        let lower = self.lows.partition_point(|low| low.lacking < lacking);
        self.lows.truncate(lower);
        // The grants of a transaction have one version. What lacks at the first one is the least.
        if self.lows.last().is_none_or(|low| low.version < version) {
            self.lows.push(Low { version, lacking });
        }
        if self.lows.len() > MAX_LOWS {
            let merged = self.lows.remove(MAX_LOWS - 1);
            self.lows[MAX_LOWS - 1].lacking = merged.lacking;
        }
    }

    /// Gives a token back.
    fn give_back(&mut self, spent: Spent) {
        let since = self
            .lows
            .partition_point(|low| low.version <= spent.version);
        let (before, after) = self.lows.split_at_mut(since);
        let lacking = after.first().map_or(i64::MAX, |low| low.lacking);
        let worth = spent.interval.min(lacking);
        self.full_at = self.full_at.saturating_sub(worth);
        for low in after.iter_mut() {
            low.lacking -= worth;
        }
        let lacking = lacking.saturating_sub(worth);
        let kept = before.partition_point(|low| low.lacking < lacking);
        self.lows.drain(kept..since);
    }
}

impl Low {
    fn parse(bytes: &[u8; 16]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        Self {
            version: i64::from_be_bytes(numbers[0]),
            lacking: i64::from_be_bytes(numbers[1]),
        }
    }
}

/// The tokens of a group, at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    rate: Rate,
    now: i64,
    level: Level,
}

impl Bucket {
    /// Returns the bucket at a version, with the stored level, or a full bucket.
    ///
    /// A level that no start can have led to is that of an empty bucket: it comes from another store, or the rate was
    /// another one. Then earlier grants are worth nothing.
    pub(crate) fn new(rate: Rate, now: i64, level: Option<Level>) -> Self {
        let all = rate.interval().saturating_mul(rate.burst().into());
        let empty = now.saturating_add(all);
        let mut level = level.unwrap_or(Level::new(now));
        if level.full_at > empty {
            level = Level::new(empty);
            level.note_low(now, 0);
        }
        Self { rate, now, level }
    }

    /// Returns whether an item may start.
    pub(crate) fn may_start(&self) -> bool {
        self.next() <= self.now
    }

    /// Returns the version from which on an item may start.
    pub(crate) fn next(&self) -> i64 {
        let others = i64::from(self.rate.burst()) - 1;
        let missing = self.rate.interval().saturating_mul(others);
        self.level.full_at.saturating_sub(missing)
    }

    /// Takes a token.
    pub(crate) fn start(&mut self) {
        let from = self.level.full_at.max(self.now);
        self.level.note_low(self.now, from.saturating_sub(self.now));
        self.level.full_at = from.saturating_add(self.rate.interval());
    }

    /// Returns what the record of an item contains that takes a token.
    pub(crate) fn spent(&self) -> Spent {
        Spent {
            version: self.now,
            interval: self.rate.interval(),
        }
    }

    /// Gives back a token. Returns the level to store, or `None` if all tokens are there.
    pub(crate) fn give_back(mut self, spent: Spent) -> Option<Level> {
        self.level.give_back(spent);
        if self.is_full() {
            return None;
        }
        Some(self.level)
    }

    /// Returns the bucket after this many starts.
    pub(crate) fn after(mut self, starts: usize) -> Self {
        (0..starts).for_each(|_| self.start());
        self
    }

    /// Returns whether all tokens are there.
    pub(crate) fn is_full(&self) -> bool {
        self.level.full_at <= self.now
    }

    /// Returns how many milliseconds it takes until a version, rounded up.
    pub(crate) fn millis_until(&self, version: i64) -> u64 {
        let versions = version.saturating_sub(self.now).max(0);
        (versions as u64).div_ceil(VERSIONS_PER_MILLI as u64)
    }
}

/// The stored state of the rate of a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RateState {
    /// The level of the bucket. Missing if it is full.
    pub(crate) level: Option<Level>,
    /// The version until which the lane is parked, if it is.
    pub(crate) parked: Option<i64>,
}

/// What makes a session look at a lane again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookAgain {
    /// A notice: the lane has something to grant.
    Notice,
    /// The lane is parked until this version.
    At(i64),
    /// A change of the lane: nothing waits, or no slot is free.
    Change,
}

impl LookAgain {
    /// Returns what makes a session look again at a lane, given whether its next item has a slot and, if so, whether it
    /// may start.
    pub(crate) fn of(has_slot: bool, may_start: bool, bucket: Option<&Bucket>) -> Self {
        match bucket {
            _ if may_start => Self::Notice,
            Some(bucket) if has_slot => Self::At(bucket.next()),
            Some(bucket) if !bucket.is_full() => Self::At(bucket.level.full_at),
            _ => Self::Change,
        }
    }
}

impl RateState {
    /// Returns the state after a look at a version, given the bucket after this many starts, or `None` if the group no
    /// longer has a rate.
    pub(crate) fn after(&self, bucket: Option<Bucket>, starts: usize, wake: LookAgain) -> Self {
        let Some(bucket) = bucket else {
            return Self::default();
        };
        // The look follows what a lane was parked for that is due.
        let parked = self.parked.filter(|until| *until > bucket.now);
        match wake {
            LookAgain::Change => Self::default(),
            LookAgain::Notice if starts == 0 => Self {
                level: self.level.clone(),
                parked,
            },
            LookAgain::Notice => Self {
                level: Some(bucket.level),
                parked,
            },
            LookAgain::At(version) => Self {
                // It differs from the stored one after a start, and if that is too far ahead.
                level: Some(bucket.level),
                // An earlier version stays: the lane is parked again then.
                parked: Some(parked.map_or(version, |until| until.min(version))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Three starts at once, and then one each second.
    const THREE: Rate = Rate::new(1, Duration::from_secs(1)).with_burst(3);
    const SECOND: i64 = VERSIONS_PER_SECOND;

    #[test]
    fn a_burst_starts_at_once_and_then_one_in_each_interval() {
        let now = 7 * SECOND;
        let mut bucket = Bucket::new(THREE, now, None);
        assert!(bucket.is_full());
        for _ in 0..3 {
            assert!(bucket.may_start());
            bucket.start();
        }
        assert!(!bucket.may_start());
        assert_eq!(bucket.next(), now + SECOND);
        assert_eq!(bucket.millis_until(bucket.next()), 1_000);
        let later = |versions| Bucket::new(THREE, now + versions, Some(bucket.level.clone()));
        assert!(!later(SECOND - 1).may_start());
        assert_eq!(later(SECOND - 1).millis_until(bucket.next()), 1);
        assert!(later(SECOND).may_start());
        assert!(!later(SECOND).after(1).may_start());
        assert!(!later(3 * SECOND - 1).is_full());
        assert!(later(3 * SECOND).is_full());
        assert!(later(100 * SECOND).after(2).may_start());
        assert!(!later(100 * SECOND).after(3).may_start());
    }

    #[test]
    fn a_time_from_another_store_delays_by_a_burst_at_most() {
        let at_five = |full_at| Bucket::new(THREE, 5 * SECOND, Some(Level::new(full_at)));
        for full_at in [i64::MAX, 1_000 * SECOND] {
            let bucket = at_five(full_at);
            assert_eq!(bucket, Bucket::new(THREE, 5 * SECOND, None).after(3));
        }
        for full_at in [i64::MIN, 0, 5 * SECOND] {
            assert!(at_five(full_at).is_full());
        }
    }

    #[test]
    fn the_largest_rates_do_not_overflow() {
        let rate = Rate::new(1, crate::items::rate::MAX_RATE_PERIOD).with_burst(u32::MAX);
        let level = Some(Level::new(i64::MAX));
        let bucket = Bucket::new(rate, i64::MAX - 1, level).after(10);
        assert!(bucket.may_start() && !bucket.is_full());
        assert!(bucket.next() <= bucket.level.full_at);
        let spent = bucket.spent();
        assert_eq!(bucket.give_back(spent), None);
    }

    /// Starts at random times, whenever it may: no span of versions has more starts than the rate allows.
    #[test]
    fn no_span_has_more_starts_than_the_rate_allows() {
        let rate = Rate::new(3, Duration::from_millis(1)).with_burst(4);
        let interval = rate.interval();
        let mut stored = None;
        let mut starts: Vec<i64> = Vec::new();
        let mut now = 0_i64;
        let mut seed = 1_u64;
        for _ in 0..3_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            now += (seed >> 33) as i64 % (2 * interval);
            let mut bucket = Bucket::new(rate, now, stored);
            if bucket.may_start() {
                bucket.start();
                starts.push(now);
            }
            stored = Some(bucket.level);
        }
        assert!(starts.len() > 1_000);
        for (first, begin) in starts.iter().enumerate() {
            for (last, end) in starts.iter().enumerate().skip(first) {
                let allowed = 4 + (end - begin) / interval;
                assert!((last - first + 1) as i64 <= allowed);
            }
        }
    }

    #[test]
    fn a_level_has_the_bytes_of_the_schema() {
        let mut bucket = Bucket::new(THREE, 3 * SECOND, None);
        bucket.start();
        let bytes = [4 * SECOND, 3 * SECOND, 0].map(i64::to_be_bytes).concat();
        assert_eq!(bucket.level.to_bytes(), bytes);
        assert_eq!(Level::parse(&bytes), Some(bucket.level));
        let full_at = (4 * SECOND).to_be_bytes();
        assert_eq!(Level::parse(&full_at), Some(Level::new(4 * SECOND)));
        let lows = |lows: &[i64]| {
            let numbers = [&[0], lows].concat();
            Level::parse(
                &numbers
                    .into_iter()
                    .flat_map(i64::to_be_bytes)
                    .collect::<Vec<_>>(),
            )
        };
        assert!(lows(&[1, 1, 2, 2]).is_some());
        for wrong in [&[1][..], &[1, 1, 1, 2], &[1, 1, 2, 1], &[0; 18]] {
            assert_eq!(lows(wrong), None);
        }
        assert_eq!(Level::parse(&[0; 7]), None);
    }

    /// A bucket from which tokens are taken and to which some come back, beside the starts that count.
    struct TriedBucket {
        rate: Rate,
        stored: Option<Level>,
        /// The starts that were not given back.
        starts: Vec<Spent>,
        /// Whether the bucket has remembered all lows.
        is_exact: bool,
    }

    impl TriedBucket {
        fn bucket(&self, now: i64) -> Bucket {
            Bucket::new(self.rate, now, self.stored.clone())
        }

        /// Starts an item, if one may start.
        fn start(&mut self, now: i64) {
            let mut bucket = self.bucket(now);
            if bucket.may_start() {
                self.starts.push(bucket.spent());
                bucket.start();
                self.is_exact &= bucket.level.lows.len() < MAX_LOWS;
                self.stored = Some(bucket.level);
            }
        }

        fn give_back(&mut self, number: usize, now: i64) {
            let spent = self.starts.remove(number);
            self.stored = self.bucket(now).give_back(spent);
        }

        /// Returns the version at which a bucket is full from which only these starts have taken tokens, and the
        /// version at which this one is.
        fn both(&self, now: i64) -> (i64, i64) {
            let interval = self.rate.interval();
            let take = |full_at: i64, start: &Spent| full_at.max(start.version) + interval;
            let only = self.starts.iter().fold(i64::MIN, take).max(now);
            (only, self.bucket(now).level.full_at.max(now))
        }
    }

    /// Takes tokens at random times, and gives back some: the bucket is always as if only the others had started.
    #[test]
    fn a_token_that_comes_back_was_never_taken() {
        let mut seed = 1_u64;
        let mut random = |below: i64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as i64 % below
        };
        let mut given_back = 0;
        let mut exact = 0;
        for burst in [1, 2, 3, 7] {
            let rate = Rate::new(1, Duration::from_millis(1)).with_burst(burst);
            for _ in 0..400 {
                let mut tried = TriedBucket {
                    rate,
                    stored: None,
                    starts: Vec::new(),
                    is_exact: true,
                };
                let mut now = 0;
                for _ in 0..40 {
                    now += random(3) * random(1_200);
                    let (only, here) = tried.both(now);
                    if tried.is_exact {
                        assert_eq!(here, only);
                        exact += 1;
                    }
                    // It is never fuller, so that no span has more starts than the rate allows.
                    assert!(here >= only);
                    if random(3) > 0 || tried.starts.is_empty() {
                        tried.start(now);
                    } else {
                        let recent = tried.starts.len().min(6) as i64;
                        let number = tried.starts.len() - 1 - random(recent) as usize;
                        tried.give_back(number, now);
                        given_back += 1;
                    }
                }
            }
        }
        assert!(given_back > 10_000 && exact > 40_000);
    }

    /// Takes tokens and gives some back in two buckets. The versions of one grow by as much as `pass` lets pass in the
    /// other one. Returns whether both always lack the same.
    fn passes_as_versions_do(pass: fn(&mut Level, i64)) -> bool {
        let mut seed = 1_u64;
        let mut random = |below: i64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as i64 % below
        };
        let rate = Rate::new(1, Duration::from_millis(1)).with_burst(5);
        let mut passed = 0;
        let [mut with_versions, mut with_pass] = [(); 2].map(|()| TriedBucket {
            rate,
            stored: None,
            starts: Vec::new(),
            is_exact: true,
        });
        for now in 1..20_000 {
            match random(4) {
                0 => {
                    let versions = random(3_000);
                    passed += versions;
                    if let Some(level) = &mut with_pass.stored {
                        pass(level, versions);
                    }
                }
                1 if !with_pass.starts.is_empty() => {
                    let recent = with_pass.starts.len().min(6) as i64;
                    let number = with_pass.starts.len() - 1 - random(recent) as usize;
                    with_versions.give_back(number, now + passed);
                    with_pass.give_back(number, now);
                }
                _ => {
                    with_versions.start(now + passed);
                    with_pass.start(now);
                }
            }
            let lacks = |tried: &TriedBucket, now| tried.bucket(now).level.full_at.max(now) - now;
            if lacks(&with_versions, now + passed) != lacks(&with_pass, now) {
                return false;
            }
        }
        true
    }

    #[test]
    fn versions_that_pass_for_a_level_are_as_those_of_the_store() {
        assert!(passes_as_versions_do(Level::pass));
        // Lows that move, too, lose their order with the tokens that were taken.
        assert!(!passes_as_versions_do(|level, versions| {
            level.pass(versions);
            for low in &mut level.lows {
                low.version -= versions;
            }
        }));
    }

    #[test]
    fn a_rate_that_has_become_faster_gives_nothing_back_for_earlier_starts() {
        let slow = Rate::new(1, Duration::from_secs(60));
        let mut bucket = Bucket::new(slow, SECOND, None);
        let spent = bucket.spent();
        bucket.start();
        let mut faster = Bucket::new(THREE, 2 * SECOND, Some(bucket.level));
        let empty = faster.level.full_at;
        faster.level.give_back(spent);
        assert_eq!(faster.level.full_at, empty);
    }

    /// Times at which an observer sees starts are later than their versions, each by another time. In a span of these
    /// times, there are at most as many starts as in a span of versions that is longer by the greatest difference, and
    /// there may be as many.
    #[test]
    fn starts_look_faster_to_an_observer_by_what_comes_back_while_some_are_late() {
        let rate = Rate::new(20, Duration::from_secs(1));
        let interval = rate.interval();
        for late in [0, interval / 2, 2 * interval, 7 * interval] {
            let mut level = None;
            let mut seen = Vec::new();
            for step in 0..400 {
                let now = SECOND + step * interval / 8;
                let mut bucket = Bucket::new(rate, now, level);
                if bucket.may_start() {
                    bucket.start();
                    seen.push(if step < 100 { now + late } else { now });
                }
                level = Some(bucket.level);
            }
            seen.sort_unstable();
            let mut most = i64::MIN;
            for (first, begin) in seen.iter().enumerate() {
                for (last, end) in seen.iter().enumerate().skip(first) {
                    let starts = (last - first + 1) as i64;
                    let allowed = 1 + (end - begin + late) / interval;
                    assert!(starts <= allowed);
                    most = most.max(starts - 1 - (end - begin) / interval);
                }
            }
            assert!(most >= late / interval);
        }
    }
}
