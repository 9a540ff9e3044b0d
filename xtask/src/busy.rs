//! Keeps the machine busy, so that tests that rely on a time fail.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Threads that do nothing but use a processor, until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    pub(crate) fn start(threads: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let is_over = is_over.clone();
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })
        };
        Self {
            threads: (0..threads).map(spin).collect(),
            is_over,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a loop does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_threads_run_until_it_is_dropped() {
        let busy = Busy::start(3);
        assert_eq!(busy.threads.len(), 3);
        assert!(busy.threads.iter().all(|thread| !thread.is_finished()));
        let is_over = busy.is_over.clone();
        drop(busy);
        // Each thread has let go of it.
        assert_eq!(Arc::strong_count(&is_over), 1);
    }
}
