//! The console beside the work.

use std::io::{Read, Write};
use std::net::TcpStream;

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

#[test]
fn sigterm_stops_it_in_order_even_while_a_page_listens() {
    let world = World::new();
    world.write("a", "one two three four five");
    world.run();
    for command in ["work", "export"] {
        let mut call = world.command(&[command, "--console", "127.0.0.1:0"]);
        if command == "export" {
            call.arg("--out").arg(world.out());
        }
        let mut running = Running::start(&mut call);
        let address = running.rest_after("the console is at http://").unwrap();
        assert!(running.wait_until(&format!("{command}ing until Ctrl-C or SIGTERM")));
        let mut page = TcpStream::connect(&address).unwrap();
        let request = format!("GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n");
        page.write_all(request.as_bytes()).unwrap();
        let mut begin = [0; 15];
        page.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200 OK");
        running.signal("-TERM");
        let stopped = running.finish();
        stopped.assert_refused(143, "stopped; the next run continues from here");
        // The store was closed: its log is gone.
        let log = world.place.path().join("store.log.0000000000000001");
        assert!(!log.exists());
        assert_eq!(finish(&mut world.command(&["stats"])).status, Some(0));
    }
}
