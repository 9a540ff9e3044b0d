//! Numbers, times and names as the pages show them.
//!
//! Templates pass references: what is a number here may be a reference to one.

use std::borrow::Borrow;
use std::fmt::{self, Display, Write};

use askama::filters::Escaper;

use crate::report::Payload;
use export_queue::keyspace::plain::{is_hidden, write_escaped};

/// Escapes what templates show: markup becomes text, and a character that a browser would act on or show nothing for
/// becomes visible, as [`plain`](export_queue::keyspace::plain) writes it. Line breaks and tabs stay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visible;

impl Escaper for Visible {
    fn write_escaped_str<W: Write>(&self, mut dest: W, text: &str) -> fmt::Result {
        for char in text.chars() {
            match char {
                '<' => dest.write_str("&#60;")?,
                '>' => dest.write_str("&#62;")?,
                '&' => dest.write_str("&#38;")?,
                '"' => dest.write_str("&#34;")?,
                '\'' => dest.write_str("&#39;")?,
                '\n' | '\r' | '\t' => dest.write_char(char)?,
                char if is_hidden(char) => write_escaped(&mut dest, char)?,
                char => dest.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// Returns a whole number, that is not negative, in groups of three digits.
pub(super) fn count(number: impl Display) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a count that may have ended early.
pub(super) fn at_least(number: impl Display, has_more: impl Borrow<bool>) -> String {
    let plus = if *has_more.borrow() { "+" } else { "" };
    format!("{}{plus}", count(number))
}

/// Returns what is wrong with the buckets of a combine queue, or of a subscription, that have rows that do not decode.
/// `happens` is what happens to the others: "combined" or "exported".
pub(super) fn damaged(buckets: &[u32], happens: &str) -> String {
    let shown: Vec<_> = buckets.iter().take(5).map(u32::to_string).collect();
    let rest = if buckets.len() > shown.len() {
        ", …"
    } else {
        ""
    };
    match buckets {
        [one] => format!("bucket {one} is damaged: nothing of it is {happens}"),
        _ => format!(
            "{} buckets are damaged: nothing of {}{rest} is {happens}",
            count(buckets.len()),
            shown.join(", ")
        ),
    }
}

/// Returns items for each second.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0/s".to_owned(),
        low if low < 9.95 => format!("{low:.1}/s"),
        _ => format!("{}/s", count(per_second.round() as u64)),
    }
}

/// Returns a span of time in its two greatest units.
pub(super) fn age(seconds: impl Borrow<f64>) -> String {
    let seconds = *seconds.borrow();
    let whole = seconds.max(0.0) as u64;
    let two = |great: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{great} {unit}"),
        _ => format!("{great} {unit} {small} {small_unit}"),
    };
    match whole {
        0..10 if seconds > 0.0 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3_600 => two(whole / 60, "min", whole % 60, "s"),
        3_600..86_400 => two(whole / 3_600, "h", whole % 3_600 / 60, "min"),
        _ => two(whole / 86_400, "d", whole % 86_400 / 3_600, "h"),
    }
}

/// Returns an optional span of time, or a dash.
pub(super) fn age_or_dash(seconds: impl Borrow<Option<f64>>) -> String {
    let seconds = seconds.borrow().as_ref();
    seconds.map_or_else(|| "–".to_owned(), age)
}

/// Returns the first `chars` characters of a text on one line, with an ellipsis if there are more.
pub(super) fn short(text: &str, chars: usize) -> String {
    let mut rest = text.chars();
    let start = String::from_iter(rest.by_ref().take(chars)).replace(char::is_control, " ");
    match rest.next() {
        Some(_) => format!("{start}…"),
        None => start,
    }
}

/// Returns a payload on one line.
pub(super) fn short_payload(payload: &Payload, chars: usize) -> String {
    let text = match (&payload.value, &payload.hex) {
        (Some(value), _) => value.to_string(),
        (None, Some(hex)) => format!("0x{hex}"),
        (None, None) => String::new(),
    };
    short(&text, chars)
}

/// Returns a payload as it is printed for reading.
pub(super) fn pretty_payload(payload: &Payload) -> String {
    match (&payload.value, &payload.hex) {
        (Some(serde_json::Value::String(text)), _) if payload.codec == "Raw" => text.clone(),
        (Some(value), _) => format!("{value:#}"),
        (None, Some(hex)) => hex.clone(),
        (None, None) => String::new(),
    }
}

/// Returns a name as one segment of a path.
pub(super) fn segment(name: &str) -> String {
    // Browsers take these two for steps in a path however they are encoded; in quotes they name the same queue.
    if matches!(name, "." | "..") {
        return format!("%22{name}%22");
    }
    query(name)
}

/// Returns a text as a value of a query.
pub(super) fn query(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(number), text);
        }
        assert_eq!(at_least(1_000, true), "1,000+");
        assert_eq!(
            damaged(&[7], "exported"),
            "bucket 7 is damaged: nothing of it is exported"
        );
        assert_eq!(
            damaged(&[1, 2, 3, 4, 5, 6], "exported"),
            "6 buckets are damaged: nothing of 1, 2, 3, 4, 5, … is exported"
        );
        let rates = [
            (0.0, "0/s"),
            (0.25, "0.2/s"),
            (9.96, "10/s"),
            (12_345.6, "12,346/s"),
        ];
        for (number, text) in rates {
            assert_eq!(rate(number), text);
        }
    }

    #[test]
    fn ages_have_two_units() {
        let ages = [
            (0.0, "0 s"),
            (0.25, "0.2 s"),
            (59.9, "59 s"),
            (60.0, "1 min"),
            (125.0, "2 min 5 s"),
            (7_260.0, "2 h 1 min"),
            (100_000.0, "1 d 3 h"),
            (-1.0, "0 s"),
            (f64::NAN, "0 s"),
        ];
        for (seconds, text) in ages {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn texts_are_cut_between_characters_and_stay_on_one_line() {
        assert_eq!(short("äöü", 2), "äö…");
        assert_eq!(short("a\nb", 3), "a b");
    }

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        assert_eq!(segment("orders/open"), "orders%2Fopen");
        assert_eq!(segment("ä\"<?#&."), "%C3%A4%22%3C%3F%23%26.");
        assert_eq!(segment(".."), "%22..%22");
    }
}
