//! Names of subspaces and texts of keys: tuples as an operator reads them.
//!
//! The console, the labels of metrics and everything else that names a queue to an operator uses
//! [`queue_name`].

use foundationdb_tuple::{self as tuple, Element, Subspace};

use crate::text::plain::{is_hidden, line};

/// How deep tuples may nest that are decoded. Deeper ones would overflow the stack, and are no keys of ours.
const MAX_DEPTH: usize = 64;

/// What begins the name of a prefix that is no tuple of strings, integers, byte strings and versionstamps.
const RAW: &str = "raw:";

/// Returns the name of a queue: the elements of its subspace with slashes between them.
///
/// Strings stand as they are if nothing else is written like them, and otherwise in JSON's quotes. Byte strings
/// are in hexadecimal digits after `0x`, versionstamps after `@`. Any other prefix is `raw:` and its digits, and so is
/// a tuple that is not packed as [`Subspace`] packs it.
/// [`parse_queue_name`] is the inverse.
///
/// ```
/// use keyspace::Subspace;
/// use keyspace::names::queue_name;
///
/// assert_eq!(queue_name(&Subspace::from(("orders", "open", 7))), "orders/open/7");
/// ```
#[must_use]
pub fn queue_name(subspace: &Subspace) -> String {
    let name = |element: &Element<'_>| match element {
        Element::String(text) if is_plain(text) => Some(text.to_string()),
        Element::String(_) | Element::Int(_) | Element::Bytes(_) | Element::Versionstamp(_) => {
            Some(quoted(element))
        }
        _ => None,
    };
    let elements = elements(subspace.bytes()).filter(|elements| !elements.is_empty());
    let names = elements.and_then(|elements| elements.iter().map(name).collect::<Option<Vec<_>>>());
    // A tuple may also have been packed in another way, as by a program that writes longer integers.
    let name = names.map(|names| names.join("/"));
    name.filter(|name| parse_queue_name(name).as_ref() == Some(subspace))
        .unwrap_or_else(|| format!("{RAW}{}", hex(subspace.bytes())))
}

/// Returns the subspace that has a name, or `None` if the text is no name.
#[must_use]
pub fn parse_queue_name(name: &str) -> Option<Subspace> {
    if let Some(digits) = name.strip_prefix(RAW) {
        return parse_hex(digits).map(Subspace::from_bytes);
    }
    let mut elements = Vec::new();
    let mut rest = name;
    loop {
        let (element, after) = parse_element(rest)?;
        elements.push(element);
        match after.strip_prefix('/') {
            Some(next) => rest = next,
            None if after.is_empty() => return Some(Subspace::from(elements)),
            None => return None,
        }
    }
}

/// Returns the first element of a name, and what comes after it.
fn parse_element(name: &str) -> Option<(Element<'_>, &str)> {
    if name.starts_with('"') {
        let mut texts = serde_json::Deserializer::from_str(name).into_iter::<String>();
        let text = texts.next()?.ok()?;
        return Some((Element::String(text.into()), &name[texts.byte_offset()..]));
    }
    let end = name.find('/').unwrap_or(name.len());
    let (text, rest) = name.split_at(end);
    let element = match text.parse() {
        Ok(number) => Element::Int(number),
        Err(_) if is_plain(text) => Element::String(text.into()),
        Err(_) if text.starts_with('@') => {
            let stamp: [u8; 12] = parse_hex(&text[1..])?.try_into().ok()?;
            Element::Versionstamp(stamp.into())
        }
        Err(_) => Element::Bytes(parse_hex(text.strip_prefix("0x")?)?.into()),
    };
    Some((element, rest))
}

/// Returns whether a string is written without quotes.
fn is_plain(text: &str) -> bool {
    let allowed = |char: char| (char.is_alphanumeric() && !is_hidden(char)) || "_.-".contains(char);
    let is_other = text.starts_with("0x") || text.parse::<i64>().is_ok();
    !text.is_empty() && text.chars().all(allowed) && !is_other
}

/// Returns the text of a packed tuple, in parentheses, or `None` if the bytes are no tuple.
#[must_use]
pub fn tuple_text(bytes: &[u8]) -> Option<String> {
    let elements: Vec<_> = elements(bytes)?.iter().map(quoted).collect();
    Some(format!("({})", elements.join(", ")))
}

/// Returns the elements of a packed tuple, or `None` if the bytes are no tuple, or one that nests too deep.
#[must_use]
pub fn elements(bytes: &[u8]) -> Option<Vec<Element<'_>>> {
    // A nested tuple begins with 05. Counting all of these bytes errs on the safe side.
    let nested = bytes.iter().filter(|byte| **byte == 5).count();
    if nested > MAX_DEPTH {
        None
    } else {
        tuple::unpack(bytes).ok()
    }
}

fn quoted(element: &Element<'_>) -> String {
    match element {
        Element::Nil => "null".to_owned(),
        Element::Bytes(bytes) => format!("0x{}", hex(bytes)),
        Element::String(text) => line(serde_json::Value::from(&**text)),
        Element::Tuple(elements) => {
            let elements: Vec<_> = elements.iter().map(quoted).collect();
            format!("({})", elements.join(", "))
        }
        Element::Int(number) => number.to_string(),
        Element::Float(number) => format!("{number:?}"),
        Element::Double(number) => format!("{number:?}"),
        Element::Bool(value) => value.to_string(),
        Element::Versionstamp(stamp) => format!("@{}", hex(stamp.as_bytes())),
        // Features that other crates turn on add kinds of elements.
        #[allow(unreachable_patterns, reason = "in a build without those features")]
        other => format!("{other:?}"),
    }
}

/// Returns the text of bytes that an application has chosen, such as a dedupe id: the text itself, or hexadecimal
/// digits after `0x` if the bytes are no text, or text that begins with `0x`. [`parse_bytes`] is the inverse.
#[must_use]
pub fn bytes_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with("0x") => text.to_owned(),
        _ => format!("0x{}", hex(bytes)),
    }
}

/// Returns the bytes that a [text](bytes_text) stands for: those of the hexadecimal digits after `0x`, or the text
/// itself if it has no such digits.
#[must_use]
pub fn parse_bytes(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("0x").and_then(parse_hex);
    let bytes = digits.filter(|bytes| !bytes.is_empty());
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Returns bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that have these hexadecimal digits, or `None` if the text has other characters.
#[must_use]
pub fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        let digit = char::from(byte).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use foundationdb_tuple::Versionstamp;

    use super::*;

    #[test]
    fn a_queue_is_named_by_the_elements_of_its_subspace() {
        let names = [
            (Subspace::from("jobs"), "jobs"),
            (Subspace::from(("orders", "open")), "orders/open"),
            (Subspace::from(("orders", -7)), "orders/-7"),
            (
                Subspace::from(("7", "a b", "", "0x", "a/b")),
                r#""7"/"a b"/""/"0x"/"a/b""#,
            ),
            (Subspace::from((&b"\x01"[..],)), "0x01"),
            (
                Subspace::from(("i", Versionstamp::complete([1; 10], 2), 3)),
                "i/@010101010101010101010002/3",
            ),
            (
                Subspace::from(("a\u{1b}\u{9b}", "\u{202e}\u{e0041}\n", "\u{3164}")),
                r#""a\u001b\u009b"/"\u202e\udb40\udc41\n"/"\u3164""#,
            ),
            (Subspace::from((true,)), "raw:27"),
            (Subspace::from_bytes(b"Q\xff"), "raw:51ff"),
            (Subspace::from_bytes(b""), "raw:"),
            (Subspace::from_bytes(b"\x15\x07"), "7"),
            (Subspace::from_bytes(b"\x16\0\x07"), "raw:160007"),
        ];
        for (subspace, name) in names {
            assert_eq!(queue_name(&subspace), name);
            assert_eq!(parse_queue_name(name), Some(subspace));
        }
        for text in ["", "/", "a/", "a b", "\"a", "\"a\"b", "0x0", "raw:0", "@00"] {
            assert_eq!(parse_queue_name(text), None, "{text}");
        }
    }

    #[test]
    fn errors_name_a_subspace_as_the_console_does() {
        let subspace = Subspace::from(("orders", "a b", 7));
        let differ = crate::recipes::recipe::SettingsDiffer {
            subspace: subspace.clone(),
            stored: 1,
            given: 2,
        };
        let overlap = crate::Error::Overlap {
            given: Box::new(Subspace::from("jobs")),
            registered: Box::new(subspace),
            recipe: "hc-dequeue".to_owned(),
        };
        for text in [differ.to_string(), overlap.to_string()] {
            assert!(text.contains(r#"`orders/"a b"/7`"#), "{text}");
        }
        assert!(overlap.to_string().contains("`jobs`"));
    }

    #[test]
    fn a_tuple_is_shown_with_its_types() {
        let packed = tuple::pack(&("a\"", 7, (true, 1.5), &b"\xab"[..]));
        let text = tuple_text(&packed).unwrap();
        assert_eq!(text, r#"("a\"", 7, (true, 1.5), 0xab)"#);
        assert_eq!(tuple_text(b"\xff"), None);
        // Deep enough to overflow the stack of a decoder that recurses.
        assert_eq!(tuple_text(&vec![5; 100_000]), None);
    }

    #[test]
    fn the_text_of_bytes_is_read_as_the_same_bytes() {
        for (bytes, text) in [
            (&b"invoice 7"[..], "invoice 7"),
            (b"0xff", "0x30786666"),
            (b"0x", "0x3078"),
            (b"\xff\0", "0xff00"),
            ("zw\u{f6}lf".as_bytes(), "zw\u{f6}lf"),
        ] {
            assert_eq!(bytes_text(bytes), text);
            assert_eq!(parse_bytes(text), bytes);
        }
        assert_eq!(parse_bytes("0x"), b"0x");
        assert_eq!(parse_bytes("0xyz"), b"0xyz");
    }

    #[test]
    fn digits_are_pairs() {
        assert_eq!(parse_hex("0Aff").unwrap(), [10, 255]);
        assert_eq!(parse_hex("").unwrap(), [0; 0]);
        for text in ["0", "0xg0", "ä"] {
            assert_eq!(parse_hex(text), None);
        }
    }
}
