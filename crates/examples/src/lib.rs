//! The examples, each as a module: what it shows, in the code that an application would have. Each checks what it shows.

pub mod append;
pub mod inverted_index;
pub mod payments;
pub mod relay;
pub mod rollup;
pub mod word_count;
