//! Commits that can be recognized in a store, and a check that a store contains all commits that it must.

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;

use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::transaction::Commit;
use crate::stores::embedded::disk::open::OpenedStore;
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::engine::queue::Mutation;

/// The key of the number of the last commit.
const NEWEST: &[u8] = b"newest";
/// The prefix of the keys under which commits store their versionstamps.
const STAMP: &[u8] = b"stamp/";

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// The commits of a store over all its openings, and what is known about them.
///
/// Commits are numbered from 1.
#[derive(Default)]
pub(super) struct Workload {
    /// The commits that may be in the store, in order.
    sent: Vec<Vec<Mutation>>,
    /// The versionstamps that were acknowledged.
    stamps: BTreeMap<usize, Versionstamp>,
    /// The number of commits that must be in the store.
    durable: usize,
    /// The number of commits that must be in the store while the power is on.
    acknowledged: usize,
    /// The newest versionstamp seen, including those of commits that may have been lost.
    newest_stamp: Option<Versionstamp>,
}

impl Workload {
    /// Returns the next commit and its number.
    pub(super) fn next(&mut self, rng: &mut StdRng) -> (usize, CommitRequest) {
        let number = self.sent.len() + 1;
        let mut mutations = vec![
            Mutation::Set {
                key: NEWEST.into(),
                value: encode(number).into(),
            },
            Mutation::Atomic {
                op: MutationOp::SetVersionstampedValue,
                key: stamp_key(number).into(),
                param: Bytes::from_static(&[0; 14]),
            },
        ];
        for _ in 0..rng.random_range(0..6) {
            mutations.push(random_mutation(rng));
        }
        self.sent.push(mutations.clone());
        let request = CommitRequest {
            mutations,
            ..CommitRequest::default()
        };
        (number, request)
    }

    /// Records that a commit was acknowledged.
    pub(super) fn acknowledge(
        &mut self,
        number: usize,
        commit: Commit,
        is_durable: bool,
    ) -> Result<(), String> {
        let stamp = commit.versionstamp.expect("the commit wrote something");
        self.see(stamp)?;
        self.stamps.insert(number, stamp);
        self.acknowledged = number;
        if is_durable {
            self.durable = number;
        }
        Ok(())
    }

    /// Records that the commits that were acknowledged since the last power loss must be in the store.
    pub(super) fn all_is_durable(&mut self) {
        self.durable = self.acknowledged;
    }

    /// Records that commits that were acknowledged but are not durable may be lost.
    pub(super) fn power_was_lost(&mut self) {
        self.acknowledged = self.durable;
    }

    /// Checks that the store holds the state after some commit, with all acknowledged commits, and
    /// continues from that state.
    pub(super) fn check(&mut self, store: &mut OpenedStore) -> Result<(), String> {
        let mut contents = read(store)?;
        let number = contents.get(NEWEST).map_or(0, |value| decode(value));
        if number < self.acknowledged {
            return Err(format!(
                "ends with commit {number}, {} was acknowledged",
                self.acknowledged
            ));
        }
        if number > self.sent.len() {
            return Err(format!(
                "ends with commit {number}, {} were sent",
                self.sent.len()
            ));
        }
        self.sent.truncate(number);
        self.stamps
            .retain(|&acknowledged, _| acknowledged <= number);
        self.durable = number;
        self.acknowledged = number;
        self.check_stamps(&mut contents)?;
        let mut expected = Contents::new();
        for mutation in self.sent.iter().flatten() {
            apply(&mut expected, mutation);
        }
        if contents != expected {
            return Err(format!("is not the state after commit {number}"));
        }
        Ok(())
    }

    /// Removes the rows with versionstamps from `contents` and checks them.
    fn check_stamps(&mut self, contents: &mut Contents) -> Result<(), String> {
        let mut previous = None;
        for number in 1..=self.durable {
            let row = contents.remove(&stamp_key(number));
            let stamp = row
                .ok_or_else(|| format!("commit {number} has no stamp"))?
                .try_into()
                .map(Versionstamp::from_bytes)
                .map_err(|bytes| format!("commit {number} has stamp {bytes:?}"))?;
            if self
                .stamps
                .get(&number)
                .is_some_and(|&known| known != stamp)
            {
                return Err(format!(
                    "commit {number} has another stamp than acknowledged"
                ));
            }
            if previous.replace(stamp) >= Some(stamp) {
                return Err(format!(
                    "commit {number} has a stamp older than the one before"
                ));
            }
        }
        self.newest_stamp = self.newest_stamp.max(previous);
        Ok(())
    }

    fn see(&mut self, stamp: Versionstamp) -> Result<(), String> {
        if self.newest_stamp.replace(stamp) >= Some(stamp) {
            return Err(format!("stamp {stamp} is not newer than all before"));
        }
        Ok(())
    }
}

fn encode(number: usize) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn decode(value: &[u8]) -> usize {
    usize::from_be_bytes(value.try_into().expect("the workload wrote it"))
}

pub(super) fn stamp_key(number: usize) -> Vec<u8> {
    [STAMP, &number.to_be_bytes()].concat()
}

fn random_mutation(rng: &mut StdRng) -> Mutation {
    let mut key = |prefix: &str| Bytes::from(format!("{prefix}/{:02}", rng.random_range(0..50)));
    let row = key("row");
    let begin = key("row");
    let end = key("row");
    let counter = key("counter");
    match rng.random_range(0..5) {
        4 => Mutation::Clear { key: row },
        0 => Mutation::ClearRange {
            end: begin.clone().max(end.clone()),
            begin: begin.min(end),
        },
        1 => Mutation::Atomic {
            op: MutationOp::Add,
            key: counter,
            param: rng.random_range(1..1000_u64).to_le_bytes().to_vec().into(),
        },
        _ => Mutation::Set {
            key: row,
            value: vec![rng.random(); rng.random_range(0..3000)].into(),
        },
    }
}

/// Applies a mutation as documented, except for versionstamps.
fn apply(contents: &mut Contents, mutation: &Mutation) {
    match mutation {
        Mutation::Set { key, value } => {
            contents.insert(key.to_vec(), value.to_vec());
        }
        Mutation::Clear { key } => {
            contents.remove(&key[..]);
        }
        Mutation::ClearRange { begin, end } => {
            contents.retain(|key, _| !(begin..end).contains(&&Bytes::copy_from_slice(key)));
        }
        Mutation::Atomic {
            op: MutationOp::Add,
            key,
            param,
        } => {
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let value = contents.entry(key.to_vec()).or_insert_with(|| vec![0; 8]);
            *value = number(value)
                .wrapping_add(number(param))
                .to_le_bytes()
                .to_vec();
        }
        Mutation::Atomic { .. } => {}
    }
}

fn read(store: &mut OpenedStore) -> Result<Contents, String> {
    let rows = store
        .window
        .parts()
        .over(&store.checkpointed)
        .scan(b"", b"\xff", false, usize::MAX);
    let rows = rows.map_err(|error| format!("cannot be read: {error}"))?;
    let pairs = rows
        .iter()
        .map(|row| (row.key().to_vec(), row.value().to_vec()));
    Ok(pairs.collect())
}
