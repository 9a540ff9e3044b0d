//! Several processes on one cluster, some of which die.

use std::process::{Child, Stdio};

use conformance::server::Server;
use conformance::{scale, stores};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::program::{Running, World, finish};

/// Returns the cluster, or reports that a test is skipped.
fn server(test: &str) -> Option<Server> {
    match Server::start() {
        Ok(server) => Some(server),
        Err(reason) => {
            stores::skip(test, reason);
            None
        }
    }
}

#[test]
fn on_fdb_a_cluster_that_goes_away_ends_the_run_and_a_later_one_completes_the_job() {
    let Some(server) =
        server("on_fdb_a_cluster_that_goes_away_ends_the_run_and_a_later_one_completes_the_job")
    else {
        return;
    };
    let world = World {
        db: server.url(),
        ..World::new()
    };
    for file in 0..400 {
        world.write(&file.to_string(), format!("one two three four {file}"));
    }
    let mut running = Running::start(world.run_command().args(["--time-limit", "2"]));
    running.wait_for(5);
    server.pause();
    let ended = running.finish();
    server.resume();
    ended.assert_refused(1, "the store gave no answer for 2 seconds");
    world.run();
    world.assert_exported();
}

#[test]
fn on_fdb_ctrl_c_comes_through_though_the_cluster_is_gone() {
    let Some(server) = server("on_fdb_ctrl_c_comes_through_though_the_cluster_is_gone") else {
        return;
    };
    let world = World {
        db: server.url(),
        ..World::new()
    };
    let mut working = Running::start(&mut world.command(&["work"]));
    assert!(working.wait_until("working"));
    server.pause();
    working.ask_to_stop();
    assert!(working.wait_until("stopping"));
    let stopped = working.interrupt();
    server.resume();
    stopped.assert_refused(130, "stopped at once; the next run continues from here");
}

#[test]
fn on_fdb_an_export_ends_when_another_file_takes_its_place() {
    let Some(server) = server("on_fdb_an_export_ends_when_another_file_takes_its_place") else {
        return;
    };
    let world = World {
        db: server.url(),
        ..World::new()
    };
    let out = world.out();
    let other = world.place.path().join("other.sqlite");
    let [out, other] = [&out, &other].map(|path| path.to_str().unwrap());
    let mut exporting = Running::start(&mut world.command(&["export", "--out", out]));
    assert!(exporting.wait_until("exporting"));
    let latter = ["export", "--until-idle", "--out", other];
    assert_eq!(finish(&mut world.command(&latter)).status, Some(0));
    let reason = format!("another file has taken the place of {out}");
    exporting.finish().assert_refused(1, &reason);
}

#[test]
fn on_fdb_processes_that_are_killed_share_the_work_and_nothing_is_lost() {
    let Some(server) =
        server("on_fdb_processes_that_are_killed_share_the_work_and_nothing_is_lost")
    else {
        return;
    };
    let world = World {
        db: server.url(),
        ..World::new()
    };
    let mut rng = StdRng::seed_from_u64(0x0066_6462);
    let directory = world.directory.path().to_str().unwrap().to_owned();
    let out = world.out().to_str().unwrap().to_owned();
    let quiet = |arguments: &[&str]| -> Child {
        let mut command = world.command(arguments);
        command
            .arg("--quiet")
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    for wave in 0..scale(1, 10) {
        for file in 0..60 {
            let words = rng.random_range(0..2_000);
            let word = |_| format!("{} ", rng.random_range(0..900 + wave));
            let text: String = (0..words).map(word).collect();
            world.write(&format!("{}", file + wave * 30), text);
        }
        let mut steady = [quiet(&["work"]), quiet(&["work"])];
        let mut exporting = quiet(&["export", "--out", &out]);
        let mut loading = quiet(&["load", &directory]);
        let mut mortal = Running::start(&mut world.command(&["work"]));
        mortal.wait_for(1);
        assert!(mortal.kill(), "it works until it is killed");
        for _ in 0..scale(3, 12) {
            // A process that finds nothing left to do ends on its own.
            let mut mortal = Running::start(&mut world.command(&["work", "--until-idle"]));
            mortal.wait_for(rng.random_range(0..12));
            mortal.kill();
        }
        assert!(loading.wait().unwrap().success());
        finish(&mut world.command(&["work", "--until-idle", "--json"])).json();
        for process in steady.iter_mut().chain([&mut exporting]) {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        let export = ["export", "--until-idle", "--out", &out, "--json"];
        finish(&mut world.command(&export)).json();
        world.assert_exported();
    }
}
