//! Code of an application that panics wherever it can, for tests of what calls such code.

use std::error::Error;
use std::fmt;
use std::future::pending;
use std::panic::panic_any;

/// Panics when it is dropped.
#[derive(Debug)]
pub struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("no drop");
    }
}

/// The ways in which an asynchronous call and what it returns may panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The future panics.
    Poll,
    /// What it holds panics when it ends.
    Guard,
    /// It panics with a payload that panics when it is dropped.
    Payload,
    /// It never ends, and panics when it is dropped.
    TimeLimit,
    /// Its error panics when it is formatted.
    Display,
    /// Its error panics when it is asked for its source.
    Source,
    /// Its error panics when it is dropped.
    Error,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Poll,
        Self::Guard,
        Self::Payload,
        Self::TimeLimit,
        Self::Display,
        Self::Source,
        Self::Error,
    ];

    /// Panics at this place.
    ///
    /// # Errors
    /// One that panics when it is used, if that is the place.
    pub async fn call(self) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self {
            Self::Poll => panic!("no poll"),
            Self::Guard => {
                let _guard = Bomb;
                Ok(())
            }
            Self::Payload => panic_any(Bomb),
            Self::TimeLimit => {
                let _guard = Bomb;
                pending().await
            }
            Self::Display | Self::Source => Err(Hostile::new(self, None).into()),
            Self::Error => Err(Hostile::new(self, Some(Bomb)).into()),
        }
    }
}

/// An error that panics when it is used. Its text is `hostile`.
struct Hostile {
    place: Place,
    _guard: Option<Bomb>,
}

impl Hostile {
    fn new(place: Place, guard: Option<Bomb>) -> Self {
        Self {
            place,
            _guard: guard,
        }
    }
}

impl fmt::Debug for Hostile {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no words");
    }
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Display => panic!("no words"),
            _ => f.write_str("hostile"),
        }
    }
}

impl Error for Hostile {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.place {
            Place::Source => panic!("no source"),
            _ => None,
        }
    }
}
