//! The bytes and the order of keys.

use microqueue::keyspace::Versionstamp;
use microqueue::keyspace::parts::Part as _;

use super::*;
use crate::session::{HEARTBEATS, STATES};

#[test]
fn the_parts_are_those_of_the_layout_in_the_order_of_their_keys() {
    let names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
    let layout = conformance::documents::parts_of_layout(include_str!("../keys.rs"));
    assert!(layout.into_iter().eq(names));
}

#[test]
fn keys_have_the_bytes_of_the_schema() {
    let keys = Keys::new(Subspace::from_bytes(b"Q"), Environment::system());
    let session = SessionId([7; 16]);
    let id = ItemId::Commit {
        versionstamp: Versionstamp::from_bytes([8; 10]),
        call: 9,
    };
    let name = |name: &str| [b"Q\x02", name.as_bytes(), b"\0"].concat();
    let of_session = |part| [&name(part)[..], b"\x01", &[7; 16], b"\0"].concat();
    let stamped = |prefix: Vec<u8>| [&prefix[..], b"\x33", &[8; 10], b"\0\0\x15\x09"].concat();
    let counter = [&name("c")[..], b"\x02held\0"].concat();
    let dedupe = |part: &[u8]| [b"Q\x02", part, b"\0\x01id\0"].concat();
    let due = [&name("t")[..], b"\x16\x01\x00"].concat();
    let of_group = |part| [&name("l")[..], b"\x01g\0", &name(part)[1..]].concat();
    let kept = stamped([&name("z")[..], b"\x16\x01\x00"].concat());
    let of_kinds = keys.of_kinds(Some(b"\x01\x04mail"));
    let xxh3 = 0xa9f3_0940_324d_79b0_1c20_f986_63c5_d3c8_u128.to_be_bytes();
    let registry = [&name("q")[..], b"\x01", &xxh3, b"\0"].concat();
    let table = [
        (keys.settings(), name("m")),
        (keys.pause(), name("p")),
        (keys.wake(), name("w")),
        (keys.group_limits(b"g"), of_group("k")),
        (keys.group_pause(b"g"), of_group("l")),
        (keys.counter(Counter::Held), counter),
        (keys.sessions.state(session), of_session("s")),
        (keys.sessions.heartbeat(session), of_session("b")),
        (keys.dedupe(b"id"), dedupe(b"k")),
        (keys.dedupe_item(b"id"), dedupe(b"n")),
        (keys.retained(b"id"), dedupe(b"y")),
        (keys.cancels(session), of_session("a")),
        (keys.pointers().bytes().to_vec(), name("o")),
        (keys.request(&id), stamped(name("r"))),
        (of_kinds.request(&id), stamped(registry.clone())),
        (keys.session_kinds(session), of_session("u")),
        (keys.done.subspace().bytes().to_vec(), name("x")),
        (id.key_in(&keys.kept_until(256)), kept.clone()),
        (
            keys.part_of_grant(session, &id, 1),
            [&stamped(of_session("g"))[..], b"\x15\x01"].concat(),
        ),
        (
            keys.held(session).subspace().bytes().to_vec(),
            of_session("h"),
        ),
        (keys.delayed(256).subspace().bytes().to_vec(), due),
        (keys.dead.subspace().bytes().to_vec(), name("d")),
    ];
    for (key, expected) in table {
        assert_eq!(key, expected);
    }
    let of_sessions = [Part::Sessions, Part::Heartbeats].map(Part::name);
    assert_eq!(of_sessions, [STATES, HEARTBEATS]);
    assert_eq!(keys.parse_kept(&kept).unwrap(), (256, id));
    assert_eq!(keys.parse_cancels(&of_session("a")).unwrap(), session);
    assert!(keys.parse_cancels(&of_session("b")).is_err());
    let held = stamped(of_session("h"));
    assert_eq!(keys.parse_holder(&held).unwrap(), session);
    assert!(keys.parse_holder(&of_session("h")).is_err());
    let first = keys.grant(session, &id);
    let of_grant = keys.parse_grant(&keys.part_of_grant(session, &id, 9));
    assert_eq!(of_grant.unwrap(), (session, first));
    assert!(keys.parse_grant(&held).is_err());
}

#[test]
fn keys_of_batches_have_the_bytes_of_the_schema() {
    let keys = Keys::new(Subspace::from_bytes(b"Q"), Environment::system());
    let batch = BatchId([6; 16]);
    let id = ItemId::Commit {
        versionstamp: Versionstamp::from_bytes([8; 10]),
        call: 9,
    };
    let of_batch = |part: &[u8]| [b"Q\x02", part, b"\0\x01", &[6; 16], b"\0"].concat();
    let ended = of_batch(b"Bd");
    let member = [&of_batch(b"Bm")[..], b"\x33", &[8; 10], b"\0\0\x15\x09"].concat();
    assert_eq!(keys.ended_batch(batch), ended);
    assert_eq!(id.key_in(&keys.members(batch)), member);
    assert_eq!(keys.parse_ended_batch(&ended).unwrap(), batch);
    assert_eq!(keys.parse_member(&member).unwrap(), (batch, id));
    assert!(keys.parse_kept(&ended).is_err());
    assert!(keys.parse_member(&ended).is_err());
    assert!(keys.parse_ended_batch(&member).is_err());
}

#[test]
fn keys_of_schedules_have_the_bytes_of_the_schema() {
    let keys = Keys::new(Subspace::from_bytes(b"Q"), Environment::system());
    let schedule = b"Q\x02e\0\x02daily\0";
    let owned = b"Q\x02eo\0\x02shop\0\x02daily\0";
    let fire_time = b"Q\x02f\0\x16\x01\x00\x02daily\0";
    assert_eq!(keys.schedule("daily"), schedule);
    assert_eq!(keys.schedules_of("shop").pack(&"daily"), owned);
    assert_eq!(keys.fire_time(256, "daily"), fire_time);

    assert_eq!(keys.parse_schedule(schedule).unwrap(), "daily");
    assert!(keys.parse_schedule(fire_time).is_err());
    let parsed = keys.parse_fire_time(fire_time).unwrap();
    assert_eq!(parsed, (256, "daily".to_owned()));
    assert!(keys.parse_fire_time(schedule).is_err());
    let of_owner = ("shop".to_owned(), "daily".to_owned());
    assert_eq!(keys.parse_owned_schedule(owned).unwrap(), of_owner);
    assert!(keys.parse_owned_schedule(schedule).is_err());
}

#[test]
fn keys_of_queued_items_sort_by_priority() {
    let keys = Keys::new(Subspace::from_bytes(b"Q"), Environment::system());
    let id = ItemId::Commit {
        versionstamp: Versionstamp::from_bytes([8; 10]),
        call: 9,
    };
    let queued = |priority| {
        let priority = Priority::new(priority).unwrap();
        keys.queued(priority).subspace().bytes().to_vec()
    };
    let ht = b"Q\x02ht\0";
    let j = b"Q\x02j\0";
    for (priority, expected) in [
        (9, [&ht[..], b"\x15\x01"].concat()),
        (1, [&ht[..], b"\x15\x09"].concat()),
        (0, b"Q\x02i\0".to_vec()),
        (-1, [&j[..], b"\x15\x0b"].concat()),
        (-9, [&j[..], b"\x15\x13"].concat()),
    ] {
        assert_eq!(queued(priority), expected);
    }
    let of_priority = |priority| id.key_in(keys.queued(priority).subspace());
    assert!(Priority::all().map(of_priority).is_sorted());
    let (begin, end) = keys.outside_lanes();
    for priority in Priority::all() {
        let key = id.key_in(keys.queued(priority).subspace());
        assert!(begin < key && key < end);
        assert_eq!(keys.parse_queued(&key).unwrap(), Spot::Priority(priority));
    }
    for (part, rank) in [
        ("ht", 10),
        ("ht", 11),
        ("ht", 0),
        ("j", 10),
        ("j", 9),
        ("j", 20),
        ("j", 256),
    ] {
        let ranked = keys
            .queue
            .pack(&(part, rank, TupleVersionstamp::incomplete(0), 1));
        assert!(keys.parse_queued(&ranked).is_err());
    }
}
