//! Calls into redb, which panics on some pages that are damaged.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;
use std::{io, thread};

use super::damage::Damage;
use crate::foreign::panic_text;

/// The prefix of the source files of this crate in the locations of panics.
const OWN_SOURCES: &str =
    match file!().split_at_checked(file!().len() - "embedded/tree/guard.rs".len()) {
        Some((prefix, _)) => prefix,
        None => "",
    };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// No guarded call runs on this thread.
    Off,
    On,
    /// The guarded call has panicked in the code of this crate: that is a bug, and not damage.
    FoundBug,
}

thread_local! {
    static GUARD: Cell<Guard> = const { Cell::new(Guard::Off) };
}

/// Keeps the panics of guarded calls from the application's panic hook, from now on.
///
/// A damaged page is an error of its own, and the text of a panic would only confuse its readers. All other
/// panics reach the hook that is installed now. Does nothing after the first call, nor in a program in which a panic
/// aborts: its text is then all that is left.
pub(crate) fn silence_panics() {
    static SILENCED: Once = Once::new();
    // A hook cannot be changed during a panic. A later opening does it.
    if cfg!(panic = "abort") || thread::panicking() {
        return;
    }
    SILENCED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !is_of_damage(panic) {
                previous(panic);
            }
        }));
    });
}

/// Returns whether a panic is that of a guarded call on a damaged page.
fn is_of_damage(panic: &PanicHookInfo<'_>) -> bool {
    // A thread that ends has no variables left, and guards no call.
    let guard = GUARD.try_with(Cell::get).unwrap_or(Guard::Off);
    if guard == Guard::Off {
        return false;
    }
    let is_bug = panic
        .location()
        .is_some_and(|location| location.file().starts_with(OWN_SOURCES));
    if is_bug {
        GUARD.set(Guard::FoundBug);
    }
    !is_bug
}

/// Calls redb, and turns its panics into errors.
///
/// A damaged file must not take the process down. State that a panic leaves behind is not used again: a file
/// that was being opened is closed, and an open store ends.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    let outer = GUARD.replace(Guard::On);
    let ended = panic::catch_unwind(AssertUnwindSafe(call));
    let guard = GUARD.replace(outer);
    ended.unwrap_or_else(|panic| Err(error_of(guard, &*panic)))
}

fn error_of(guard: Guard, panic: &(dyn Any + Send)) -> redb::Error {
    let text = panic_text(panic);
    if guard == Guard::FoundBug {
        return io::Error::other(format!("the store panicked: {text}")).into();
    }
    tracing::debug!(text, "a page is damaged");
    Damage::of_page().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::tree::damage::reason_of;

    #[test]
    fn a_panic_of_this_crate_is_a_bug_and_any_other_is_damage() {
        silence_panics();
        let bug = guarded::<()>(|| panic!("it is planned")).unwrap_err();
        assert_eq!(reason_of(&bug), None);
        assert!(bug.to_string().contains("it is planned"), "{bug}");
        // This panic does not reach the hook, as that of a library does not reach the application's.
        let elsewhere = guarded::<()>(|| panic::resume_unwind(Box::new("a page")));
        let damage = reason_of(&elsewhere.unwrap_err()).unwrap();
        assert_eq!(damage, Damage::of_page().to_string());
    }

    #[test]
    fn a_guarded_call_in_a_guarded_call_leaves_the_outer_one_guarded() {
        let outer = guarded(|| {
            guarded(|| Ok(()))?;
            Ok(GUARD.get())
        });
        assert_eq!(outer.unwrap(), Guard::On);
        assert_eq!(GUARD.get(), Guard::Off);
    }
}
