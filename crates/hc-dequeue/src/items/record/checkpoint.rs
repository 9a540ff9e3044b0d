//! What the handlers of an item leave in its record for its next delivery.

use std::sync::Arc;

use microqueue::keyspace::Bytes;
use microqueue::keyspace::record::Fields;

/// The largest [checkpoint](crate::Delivery::set_checkpoint) of an item in bytes. The [steps](crate::Delivery::step)
/// that are done share this room: each takes the bytes of its name and of its encoded result, and three more.
pub const MAX_CHECKPOINT_BYTES: usize = 4_096;

/// The largest number of [steps](crate::Delivery::step) of an item.
pub const MAX_STEPS: usize = 255;

/// The largest name of a [step](crate::Delivery::step) in bytes.
pub const MAX_STEP_NAME_BYTES: usize = 255;

/// The largest [`Progress::text`] in bytes.
pub const MAX_PROGRESS_TEXT_BYTES: usize = 200;

/// The number of bytes that a step has besides its name and its result.
const STEP_BYTES: usize = 3;

/// The bytes of the application, and the steps that are done. Most items have neither.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Checkpoint(Option<Box<Left>>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Left {
    own: Bytes,
    /// In the order in which they were done.
    steps: Vec<StepDone>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct StepDone {
    name: Arc<str>,
    result: Bytes,
}

impl Checkpoint {
    /// Returns the bytes of the application, if there are any.
    pub(crate) fn own(&self) -> Option<&Bytes> {
        let own = &self.0.as_ref()?.own;
        if own.is_empty() { None } else { Some(own) }
    }

    /// Sets the bytes of the application.
    pub(crate) fn set_own(&mut self, own: Bytes) {
        let mut left = self.0.take().unwrap_or_default();
        left.own = own;
        if *left != Left::default() {
            self.0 = Some(left);
        }
    }

    fn steps_done(&self) -> &[StepDone] {
        self.0.as_ref().map_or(&[], |left| &left.steps)
    }

    /// Returns how many bytes it takes of [`MAX_CHECKPOINT_BYTES`].
    pub(crate) fn size(&self) -> usize {
        let steps = self.steps_done().iter();
        let of_steps = steps.map(|step| STEP_BYTES + step.name.len() + step.result.len());
        self.own().map_or(0, Bytes::len) + of_steps.sum::<usize>()
    }

    /// Returns how many bytes it would take with another step.
    pub(crate) fn size_with(&self, name: &str, result: &[u8]) -> usize {
        self.size() + STEP_BYTES + name.len() + result.len()
    }

    /// Returns the names of the steps that are done, in their order.
    pub(crate) fn steps(&self) -> impl ExactSizeIterator<Item = &str> {
        self.steps_done().iter().map(|step| &*step.name)
    }

    /// Returns the result of a step, if it is done.
    pub(crate) fn result_of(&self, name: &str) -> Option<&Bytes> {
        let mut steps = self.steps_done().iter();
        let step = steps.find(|step| *step.name == *name);
        step.map(|step| &step.result)
    }

    /// Adds a step that is done, for which there must be room.
    pub(crate) fn add_step(&mut self, name: &str, result: &[u8]) {
        let left = self.0.get_or_insert_default();
        left.steps.push(StepDone {
            name: name.into(),
            result: Bytes::copy_from_slice(result),
        });
    }

    /// Returns the bytes of its field, none if there is nothing in it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Some(left) = &self.0 else {
            return Vec::new();
        };
        let mut bytes = vec![left.steps.len() as u8];
        for StepDone { name, result } in &left.steps {
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&(result.len() as u16).to_be_bytes());
            bytes.extend_from_slice(result);
        }
        bytes.extend_from_slice(&left.own);
        bytes
    }

    pub(crate) fn parse(field: Bytes) -> Result<Self, String> {
        let mut fields = Fields::new(&field);
        let mut checkpoint = Self::default();
        let [steps] = fields.array()?;
        for _ in 0..steps {
            let [length] = fields.array()?;
            let name = fields.take(length.into())?;
            let name = std::str::from_utf8(name).map_err(|error| error.to_string())?;
            if name.is_empty() || checkpoint.result_of(name).is_some() {
                return Err(format!("step {name:?} has no name of its own"));
            }
            let length = u16::from_be_bytes(fields.array()?);
            let result = field.slice_ref(fields.take(length.into())?);
            let name = name.into();
            let left = checkpoint.0.get_or_insert_default();
            left.steps.push(StepDone { name, result });
        }
        checkpoint.set_own(field.slice_ref(fields.rest()));
        match checkpoint.size() {
            0 => Err("a checkpoint without anything in it".to_owned()),
            1..=MAX_CHECKPOINT_BYTES => Ok(checkpoint),
            size => Err(format!("a checkpoint of {size} bytes")),
        }
    }
}

/// How far the work for an item is, as its handler [has said](crate::Delivery::set_progress).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// How much is done.
    pub done: u64,
    /// How much there is to do, in the same unit.
    pub total: u64,
    /// What is done at present; may be empty.
    pub text: String,
}

impl Progress {
    /// The largest number of bytes of its field.
    pub(super) const MAX_BYTES: usize = 16 + MAX_PROGRESS_TEXT_BYTES;

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.done, self.total].map(u64::to_be_bytes).concat();
        [&numbers, self.text.as_bytes()].concat()
    }

    pub(super) fn parse(field: &[u8]) -> Result<Self, String> {
        if field.len() > Self::MAX_BYTES {
            return Err(format!("progress of {} bytes", field.len()));
        }
        let mut fields = Fields::new(field);
        let done = fields.u64()?;
        let total = fields.u64()?;
        let text = std::str::from_utf8(fields.rest()).map_err(|error| error.to_string())?;
        Ok(Self {
            done,
            total,
            text: text.to_owned(),
        })
    }
}
