//! Which keys are added to.

use benches::adder::Key;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;

/// How many keys there are.
const KEYS: u64 = 1_000_000;

/// The exponent of Zipf's law: the most frequent key gets about an eighth of everything.
const EXPONENT: f64 = 1.1;

/// How often each key is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// One key.
    Hot,
    /// A million keys, by Zipf's law.
    Zipf,
    /// This number of keys, all equally often.
    Even(u64),
}

impl Spread {
    /// A million keys, one as often as another.
    pub(crate) const EVEN: Self = Self::Even(KEYS);

    pub(crate) fn name(self) -> String {
        match self {
            Self::Hot => "one".to_owned(),
            Self::Zipf => format!("{KEYS}, Zipf"),
            Self::Even(keys) => format!("{keys}, even"),
        }
    }

    /// Returns keys by chance: the same ones for the same seed.
    pub(crate) fn keys(self, seed: u64) -> impl Iterator<Item = Key> + Send + 'static {
        let mut rng = StdRng::seed_from_u64(seed);
        let zipf = Zipf::new(KEYS as f64, EXPONENT).expect("there are keys");
        let draw = move || match self {
            Self::Hot => 1,
            Self::Zipf => rng.sample(zipf) as u64,
            Self::Even(keys) => rng.random_range(1..=keys),
        };
        std::iter::repeat_with(draw).map(u64::to_be_bytes)
    }
}
