//! The console beside the work.

use conformance::process::get;

use crate::program::{Running, World, finish};

#[test]
fn a_store_that_the_program_works_on_is_watched() {
    let world = World::new();
    let with_console = ["work", "--console", "127.0.0.1:0"];
    let mut working = Running::start(&mut world.command(&with_console));
    let address = working.rest_after("the console is at http://").unwrap();
    assert!(working.wait_until("working"));

    let answer = get(&address, "/api/queues");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for recipe in ["hc-dequeue", "combine", "export-queue"] {
        assert!(answer.contains(&format!("\"{recipe}\"")), "{answer}");
    }

    let other = World::new();
    let refused = finish(&mut other.command(&["work", "--console", &address]));
    refused.assert_refused(1, "cannot serve the console at");
    assert_eq!(working.interrupt().status, Some(130));
}
