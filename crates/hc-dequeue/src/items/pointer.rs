//! Pointers: the rows by which a reference finds an item that is neither in a place without details nor queued at the
//! [default spot](Spot::DEFAULT).

use microqueue::ItemId;
use microqueue::StagedId;
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{self, Bytes, MutationOp, Transaction};

use crate::items::keys::Keys;
use crate::items::priority::Priority;
use crate::items::priority::RANK_OF_SLOT;
use crate::items::record::MAX_GROUP_BYTES;
use crate::items::spot::Spot;

mod tag {
    pub(super) const DELAYED: u8 = 0;
    pub(super) const QUEUED: u8 = 1;
    pub(super) const LANE: u8 = 2;
}

/// Where an item is that has a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// It is delayed until this wall time in milliseconds.
    Delayed(u64),
    /// It is queued elsewhere than at the default spot.
    Queued(Spot),
}

impl Pointer {
    /// Returns the pointer to a queued item, if it has one.
    pub(crate) fn to_queued(spot: &Spot) -> Option<Self> {
        if *spot == Spot::DEFAULT {
            return None;
        }
        Some(Self::Queued(spot.clone()))
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Delayed(ready_millis) => {
                [&[tag::DELAYED][..], &ready_millis.to_be_bytes()].concat()
            }
            Self::Queued(Spot::Priority(priority)) => vec![tag::QUEUED, priority.rank()],
            Self::Queued(Spot::Lane { group, rank }) => [&[tag::LANE, *rank][..], group].concat(),
        }
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> keyspace::Result<Self> {
        parse(value).map_err(|reason| keyspace::Error::corrupt(key, reason))
    }

    /// Returns the key of the row to which the pointer of an item leads.
    pub(crate) fn row(&self, keys: &Keys, id: &ItemId) -> Vec<u8> {
        match self {
            Self::Delayed(ready_millis) => id.key_in(keys.delayed(*ready_millis).subspace()),
            Self::Queued(spot) => keys.row_at(spot, id),
        }
    }

    /// Stages the pointer of an item.
    pub(crate) fn set(&self, tr: &impl Transaction, keys: &Keys, id: &ItemId) {
        tr.set(&id.key_in(&keys.pointers()), &self.to_bytes());
    }

    /// Stages the pointer of a new item.
    pub(crate) fn set_staged(&self, tr: &impl Transaction, keys: &Keys, id: StagedId) {
        let key = id.key_template_in(&keys.pointers());
        let key = key.expect("parts of a queue are in commit order");
        tr.atomic(MutationOp::SetVersionstampedKey, &key, &self.to_bytes());
    }
}

fn parse(value: &[u8]) -> Result<Pointer, String> {
    let mut fields = Fields::new(value);
    let [tag] = fields.array()?;
    let pointer = match tag {
        tag::DELAYED => Pointer::Delayed(fields.u64()?),
        tag::QUEUED => {
            let [rank] = fields.array()?;
            Priority::of_rank(rank)
                .and_then(|priority| Pointer::to_queued(&Spot::Priority(priority)))
                .ok_or_else(|| format!("{rank} is no rank of an item with a pointer"))?
        }
        tag::LANE => {
            let [rank] = fields.array()?;
            if rank != RANK_OF_SLOT && Priority::of_rank(rank).is_none() {
                return Err(format!("{rank} is no rank of an item in a lane"));
            }
            let group = fields.rest();
            if group.len() > MAX_GROUP_BYTES {
                return Err(format!("a group name of {} bytes", group.len()));
            }
            let group = Bytes::copy_from_slice(group);
            return Ok(Pointer::Queued(Spot::Lane { group, rank }));
        }
        other => return Err(format!("expected a pointer, found one of kind {other}")),
    };
    fields.end()?;
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_have_the_bytes_of_the_schema() {
        let queued = |priority| Pointer::Queued(Spot::Priority(Priority::new(priority).unwrap()));
        let lane = |group, rank| {
            let group = Bytes::from_static(group);
            Pointer::Queued(Spot::Lane { group, rank })
        };
        let table = [
            (Pointer::Delayed(258), vec![0, 0, 0, 0, 0, 0, 0, 1, 2]),
            (queued(9), vec![1, 1]),
            (queued(-9), vec![1, 19]),
            (lane(b"ab", 0), vec![2, 0, b'a', b'b']),
            (lane(b"", 10), vec![2, 10]),
        ];
        for (pointer, bytes) in table {
            assert_eq!(pointer.to_bytes(), bytes);
            assert_eq!(Pointer::parse(b"key", &bytes).unwrap(), pointer);
        }
        for bytes in [
            &[][..],
            &[0, 1],
            &[1],
            &[1, 0],
            &[1, 10],
            &[1, 20],
            &[1, 1, 1],
            &[2],
            &[2, 20],
            &[&[2, 1][..], &[0; MAX_GROUP_BYTES + 1]].concat(),
            &[3],
        ] {
            assert!(Pointer::parse(b"key", bytes).is_err(), "{bytes:?}");
        }
    }
}
