//! Which session works on which bucket.

use std::collections::BTreeMap;

use hc_dequeue::keyspace::Bytes;
use hc_dequeue::session::SessionId;

use crate::bucket::Bucket;
use crate::keys::bond;

/// The number of rounds for which a bucket of another session has made no progress.
#[derive(Debug)]
struct Still {
    mark: Bytes,
    rounds: usize,
}

/// The sessions that are alive, and the buckets of others that make no progress.
#[derive(Debug, Default)]
pub(super) struct Roster {
    living: Vec<SessionId>,
    still: BTreeMap<Bucket, Still>,
}

impl Roster {
    /// Records the sessions that are alive.
    pub(super) fn update(&mut self, living: Vec<SessionId>) {
        self.living = living;
    }

    /// Returns the rank of a session for a bucket. The session with rank 0 holds the bucket, and the next
    /// one takes it over. Sessions divide the buckets by
    /// [rendezvous hashing](https://en.wikipedia.org/wiki/Rendezvous_hashing).
    pub(super) fn rank(&self, own: SessionId, bucket: Bucket) -> usize {
        let own = (bond(own, bucket), own);
        let before = self
            .living
            .iter()
            .filter(|other| (bond(**other, bucket), **other) > own);
        before.count()
    }

    /// Records, round by round, the buckets that have work, and returns those that the session must take
    /// over: their mark has not changed for as many rounds as the session's rank.
    pub(super) fn stalled(
        &mut self,
        own: SessionId,
        marks: impl Iterator<Item = (Bucket, Bytes)>,
    ) -> Vec<Bucket> {
        let mut before = std::mem::take(&mut self.still);
        let mut stalled = Vec::new();
        for (bucket, mark) in marks {
            let rank = self.rank(own, bucket);
            if rank == 0 {
                continue;
            }
            let rounds = match before.remove(&bucket) {
                Some(still) if still.mark == mark => still.rounds + 1,
                _ => 0,
            };
            if rounds >= rank {
                stalled.push(bucket);
            }
            self.still.insert(bucket, Still { mark, rounds });
        }
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: u32 = 1000;

    fn sessions(count: u8) -> Vec<SessionId> {
        (0..count).map(|number| SessionId([number; 16])).collect()
    }

    fn holders(roster: &Roster) -> Vec<SessionId> {
        let holder = |bucket| {
            let mut holders = (roster.living.iter())
                .filter(|session| roster.rank(**session, Bucket(bucket)) == 0);
            let holder = holders.next().unwrap();
            assert_eq!(holders.next(), None);
            *holder
        };
        (0..BUCKETS).map(holder).collect()
    }

    #[test]
    fn every_bucket_has_one_holder_and_every_session_its_share() {
        let mut roster = Roster::default();
        roster.update(sessions(5));
        let holders = holders(&roster);
        for session in sessions(5) {
            let share = holders.iter().filter(|holder| **holder == session).count();
            assert!((140..260).contains(&share), "{share} of {BUCKETS}");
        }
    }

    #[test]
    fn a_session_that_goes_leaves_the_buckets_of_others_where_they_were() {
        let mut roster = Roster::default();
        roster.update(sessions(5));
        let before = holders(&roster);
        roster.update(sessions(4));
        let gone = SessionId([4; 16]);
        for (before, after) in before.into_iter().zip(holders(&roster)) {
            assert!(before == gone || before == after);
        }
    }

    #[test]
    fn a_session_takes_over_after_as_many_rounds_as_its_rank() {
        let mut roster = Roster::default();
        roster.update(sessions(4));
        let bucket = Bucket(7);
        let marked = |mark: &'static [u8]| (bucket, Bytes::from_static(mark));
        for session in sessions(4) {
            let rank = roster.rank(session, bucket);
            let mut fresh = Roster::default();
            fresh.update(sessions(4));
            // A bucket that makes progress is not taken over.
            for mark in [&b"1"[..], b"2", b"3"] {
                assert_eq!(fresh.stalled(session, [marked(mark)].into_iter()), []);
            }
            for round in 1..=3 {
                let stalled = fresh.stalled(session, [marked(b"3")].into_iter());
                let is_turn = rank > 0 && round >= rank;
                assert_eq!(
                    stalled.len(),
                    usize::from(is_turn),
                    "round {round}, rank {rank}"
                );
            }
            // A bucket that had no work in between starts over.
            assert_eq!(fresh.stalled(session, [].into_iter()), []);
            assert_eq!(fresh.stalled(session, [marked(b"3")].into_iter()), []);
        }
    }
}
