//! Random programs, each from its seed.
//!
//! A program has one to five interleaved transactions over a small set of keys, which are prefixes and
//! neighbors of each other. Each program first draws its kinds of operations, so that some programs have
//! many of an otherwise rare kind.

use bytes::Bytes;
use keyspace::{
    ConflictKind, Isolation, KeySelector, MutationOp, RangeQuery, TransactionOption, key_after,
};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::program::{BEGIN, END, Op, Program, Step};

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    Get,
    GetKey,
    GetRange,
    ReadVersion,
    Set,
    Clear,
    ClearRange,
    Atomic,
    StampedKey,
    StampedValue,
    ReadConflict,
    WriteConflict,
    NoWriteConflict,
    SnapshotRyw,
    Reset,
}

impl OperationKind {
    /// Every kind, with its weight among those of a program.
    const WEIGHTS: [(Self, u32); 15] = [
        (Self::Get, 12),
        (Self::GetKey, 10),
        (Self::GetRange, 20),
        (Self::ReadVersion, 3),
        (Self::Set, 15),
        (Self::Clear, 8),
        (Self::ClearRange, 5),
        (Self::Atomic, 15),
        (Self::StampedKey, 4),
        (Self::StampedValue, 4),
        (Self::ReadConflict, 5),
        (Self::WriteConflict, 5),
        (Self::NoWriteConflict, 4),
        (Self::SnapshotRyw, 4),
        (Self::Reset, 1),
    ];
}

/// Returns the program of a seed.
#[must_use]
pub fn program(seed: u64) -> Program {
    let mut generator = Generator::new(seed);
    let init = generator.init();
    let steps = generator.steps();
    Program { init, steps }
}

/// Draws 8 to 30 keys. Many are prefixes of others or the first key after them.
fn keys(rng: &mut StdRng) -> Vec<Bytes> {
    const LETTERS: &[u8] = b"\x00abc\xff";
    let count = rng.random_range(8..=30);
    let mut keys = vec![Bytes::from_static(BEGIN)];
    while keys.len() < count {
        let longer = keys.choose(rng).expect("there is one key").clone();
        let key = if longer.len() > 5 || rng.random_bool(0.3) {
            let mut key = BEGIN.to_vec();
            key.push(*LETTERS.choose(rng).expect("there are letters"));
            key
        } else if rng.random_bool(0.3) {
            key_after(&longer)
        } else {
            [
                &longer[..],
                &[*LETTERS.choose(rng).expect("there are letters")],
            ]
            .concat()
        };
        keys.push(key.into());
    }
    keys
}

/// Draws the kinds of operations of a program: about two thirds of all, each repeated by its weight.
fn kinds(rng: &mut StdRng) -> Vec<OperationKind> {
    let mut kinds = Vec::new();
    for (kind, weight) in OperationKind::WEIGHTS {
        if rng.random_bool(0.65) {
            kinds.extend((0..weight).map(|_| kind));
        }
    }
    if kinds.is_empty() {
        kinds.push(OperationKind::GetRange);
    }
    kinds
}

/// Draws the parts of a program from a seed.
pub(super) struct Generator {
    pub(super) rng: StdRng,
    keys: Vec<Bytes>,
    kinds: Vec<OperationKind>,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = keys(&mut rng);
        let kinds = kinds(&mut rng);
        Self { rng, keys, kinds }
    }

    pub(super) fn init(&mut self) -> Vec<(Bytes, Bytes)> {
        let mut keys = self.keys.clone();
        keys.sort();
        keys.dedup();
        keys.retain(|_| self.rng.random_bool(0.4));
        keys.into_iter().map(|key| (key, self.value())).collect()
    }

    /// Interleaves transactions of a few operations. Each one ends with a commit.
    fn steps(&mut self) -> Vec<Step> {
        let mut turns = Vec::new();
        for transaction in 0..self.rng.random_range(1..=5) {
            let operations = self.rng.random_range(1..=12);
            turns.extend((0..operations).map(|_| transaction));
        }
        turns.shuffle(&mut self.rng);
        let mut steps = Vec::new();
        for (at, &transaction) in turns.iter().enumerate() {
            let op = if turns[at + 1..].contains(&transaction) {
                self.op()
            } else {
                Op::Commit
            };
            steps.push(Step { transaction, op });
        }
        steps
    }

    fn op(&mut self) -> Op {
        match *self
            .kinds
            .choose(&mut self.rng)
            .expect("a program has kinds")
        {
            OperationKind::Get => Op::Get {
                key: self.key(),
                isolation: self.isolation(),
            },
            OperationKind::GetKey => Op::GetKey {
                selector: self.selector(),
                isolation: self.isolation(),
            },
            OperationKind::GetRange => Op::GetRange {
                query: self.query(),
                isolation: self.isolation(),
            },
            OperationKind::ReadVersion => Op::ReadVersion,
            OperationKind::Set => Op::Set {
                key: self.key(),
                value: self.value(),
            },
            OperationKind::Clear => Op::Clear { key: self.key() },
            OperationKind::ClearRange => {
                let (begin, end) = self.range();
                Op::ClearRange { begin, end }
            }
            OperationKind::Atomic => self.atomic(),
            OperationKind::StampedKey => {
                let op = MutationOp::SetVersionstampedKey;
                let prefix = self.key();
                let key = self.template(&prefix);
                let param = self.value();
                Op::Atomic { op, key, param }
            }
            OperationKind::StampedValue => {
                let op = MutationOp::SetVersionstampedValue;
                let key = self.key();
                let prefix = self.value();
                let param = self.template(&prefix);
                Op::Atomic { op, key, param }
            }
            OperationKind::ReadConflict => self.conflict(ConflictKind::Read),
            OperationKind::WriteConflict => self.conflict(ConflictKind::Write),
            OperationKind::NoWriteConflict => {
                Op::SetOption(TransactionOption::NextWriteNoWriteConflictRange)
            }
            OperationKind::SnapshotRyw if self.rng.random_bool(0.6) => {
                Op::SetOption(TransactionOption::SnapshotRywDisable)
            }
            OperationKind::SnapshotRyw => Op::SetOption(TransactionOption::SnapshotRywEnable),
            OperationKind::Reset => Op::Reset,
        }
    }

    fn atomic(&mut self) -> Op {
        let stamped = [
            MutationOp::SetVersionstampedKey,
            MutationOp::SetVersionstampedValue,
        ];
        let mut op = stamped[0];
        while stamped.contains(&op) {
            op = *MutationOp::ALL
                .choose(&mut self.rng)
                .expect("there are operations");
        }
        let key = self.key();
        let param = self.value();
        Op::Atomic { op, key, param }
    }

    /// Draws a template for a versionstamp after `prefix`. One in twenty has an offset past its end.
    fn template(&mut self, prefix: &[u8]) -> Bytes {
        let mut template = prefix.to_vec();
        template.extend_from_slice(&[0xff; 10]);
        if self.rng.random_bool(0.3) {
            template.extend_from_slice(&[0, 1]);
        }
        let stamp_offset = if self.rng.random_bool(0.05) {
            template.len()
        } else {
            prefix.len()
        };
        let offset = u32::try_from(stamp_offset).expect("templates are short");
        template.extend_from_slice(&offset.to_le_bytes());
        template.into()
    }

    fn conflict(&mut self, kind: ConflictKind) -> Op {
        let (begin, end) = if self.rng.random_bool(0.5) {
            let key = self.key();
            let end = key_after(&key).into();
            (key, end)
        } else {
            self.range()
        };
        Op::AddConflict { kind, begin, end }
    }

    pub(super) fn key(&mut self) -> Bytes {
        self.keys
            .choose(&mut self.rng)
            .expect("a program has keys")
            .clone()
    }

    /// Draws two bounds. One pair in ten is in the wrong order.
    pub(super) fn range(&mut self) -> (Bytes, Bytes) {
        let one = self.key();
        let other = self.bound();
        if self.rng.random_bool(0.9) {
            (one.clone().min(other.clone()), one.max(other))
        } else {
            (one, other)
        }
    }

    fn bound(&mut self) -> Bytes {
        if self.rng.random_bool(0.3) {
            Bytes::from_static(END)
        } else {
            self.key()
        }
    }

    pub(super) fn query(&mut self) -> RangeQuery {
        let mut query = if self.rng.random_bool(0.5) {
            let (begin, end) = self.range();
            RangeQuery::keys(begin, end)
        } else {
            RangeQuery::selectors(self.selector(), self.selector())
        };
        query.limit = self.rng.random_range(0..=5);
        query.reverse = self.rng.random_bool(0.4);
        query
    }

    pub(super) fn selector(&mut self) -> KeySelector {
        KeySelector {
            key: self.bound(),
            or_equal: self.rng.random_bool(0.5),
            offset: self.rng.random_range(-5..=5),
        }
    }

    fn isolation(&mut self) -> Isolation {
        if self.rng.random_bool(0.6) {
            Isolation::Serializable
        } else {
            Isolation::Snapshot
        }
    }

    pub(super) fn value(&mut self) -> Bytes {
        const COMMON: [&[u8]; 6] = [b"", b"x", b"\x01", b"\x01\x00", b"\xff", b"\xff\xff\xff"];
        if self.rng.random_bool(0.7) {
            Bytes::from_static(COMMON.choose(&mut self.rng).expect("there are values"))
        } else {
            let length = self.rng.random_range(1..=9);
            (0..length).map(|_| self.rng.random::<u8>()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_seed_makes_the_same_program_every_time() {
        assert_eq!(program(7), program(7));
        assert_ne!(program(7), program(8));
    }

    #[test]
    fn programs_hold_every_kind_of_operation_and_end_each_transaction_with_a_commit() {
        let mut seen = BTreeSet::new();
        for seed in 0..300 {
            let program = program(seed);
            let mut last = BTreeMap::new();
            for step in &program.steps {
                let name = format!("{:?}", step.op)
                    .split([' ', '('])
                    .next()
                    .map(str::to_owned);
                seen.extend(name);
                last.insert(step.transaction, &step.op);
            }
            assert!(last.values().all(|op| **op == Op::Commit), "seed {seed}");
        }
        let expected = [
            "AddConflict",
            "Atomic",
            "Clear",
            "ClearRange",
            "Commit",
            "Get",
            "GetKey",
            "GetRange",
            "ReadVersion",
            "Reset",
            "Set",
            "SetOption",
        ];
        assert_eq!(seen, expected.map(str::to_owned).into());
    }
}
