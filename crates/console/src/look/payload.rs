//! Values of applications, decoded as far as their codecs describe themselves.

use export_queue::keyspace::Bytes;
use export_queue::keyspace::names::{elements, hex, parse_hex};
use export_queue::keyspace::tuple::Element;
use rmpv::Value as Packed;
use serde_json::{Map, Number, Value, json};

use crate::report::Payload;

/// How deep a MessagePack value may nest.
const MAX_DEPTH: usize = 128;

/// Decodes a value that the codec of this name has written.
pub(crate) fn decode(codec: &str, bytes: &Bytes) -> Payload {
    let decoded = match codec {
        "MessagePack" => message_pack(bytes),
        "Json" => serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        "Tuple" => match elements(bytes) {
            Some(elements) => Ok(elements.into_iter().map(of_element).collect()),
            None => Err("expected a tuple".to_owned()),
        },
        "Raw" => raw(bytes),
        _ => Err(format!("the codec {codec} does not describe itself")),
    };
    let mut payload = Payload {
        codec: codec.to_owned(),
        bytes: bytes.len(),
        value: None,
        hex: None,
        problem: None,
    };
    match decoded {
        Ok(value) => payload.value = Some(value),
        Err(problem) => {
            payload.hex = Some(hex(bytes));
            payload.problem = Some(problem);
        }
    }
    payload
}

/// Decodes a value of which no codec is known, if it looks like that of one: JSON, MessagePack or text.
pub(super) fn guess(bytes: Bytes) -> Payload {
    let is_whole =
        |value: &Value| !matches!(value, Value::Number(_) | Value::Bool(_) | Value::Null);
    // Almost every byte is a number in MessagePack, and digits are one in JSON.
    for (codec, is_likely) in [("Json", true), ("MessagePack", true), ("Raw", false)] {
        let decoded = decode(codec, &bytes);
        let is_found = |value: &Value| !is_likely || is_whole(value);
        if !bytes.is_empty() && decoded.value.as_ref().is_some_and(is_found) {
            return Payload {
                codec: format!("unknown, shown as {codec}"),
                ..decoded
            };
        }
    }
    Payload {
        codec: "unknown".to_owned(),
        bytes: bytes.len(),
        value: None,
        hex: Some(hex(&bytes)),
        problem: None,
    }
}

/// Returns the bytes of a value that an operator has typed, as the codec of this name writes them.
///
/// # Errors
/// Why the text is no value of the codec.
pub(crate) fn encode(codec: &str, text: &str) -> Result<Bytes, String> {
    let parse = || serde_json::from_str::<Value>(text);
    // A word without quotes is a string.
    let value = parse().unwrap_or_else(|_| Value::from(text));
    match codec {
        "MessagePack" => {
            let mut bytes = Vec::new();
            let written = rmpv::encode::write_value(&mut bytes, &to_packed(&value));
            written.map_err(|error| error.to_string())?;
            Ok(bytes.into())
        }
        "Json" => Ok(value.to_string().into()),
        "Raw" => Ok(text.to_owned().into()),
        "Tuple" => to_tuple(&value),
        _ => {
            let bytes = text.strip_prefix("0x").and_then(parse_hex);
            let reason =
                || format!("values of the codec {codec} are given as 0x and hexadecimal digits");
            bytes.map(Bytes::from).ok_or_else(reason)
        }
    }
}

fn raw(bytes: &Bytes) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    if text
        .chars()
        .any(|char| char.is_control() && !char.is_whitespace())
    {
        Err("not text".to_owned())
    } else {
        Ok(text.into())
    }
}

fn message_pack(bytes: &Bytes) -> Result<Value, String> {
    let mut rest = &**bytes;
    let value = rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH)
        .map_err(|error| format!("expected MessagePack: {error}"))?;
    match rest.len() {
        0 => Ok(of_packed(value)),
        left => Err(format!("expected MessagePack: {left} bytes left over")),
    }
}

fn of_packed(value: Packed) -> Value {
    match value {
        Packed::Nil => Value::Null,
        Packed::Boolean(value) => value.into(),
        Packed::Integer(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (_, Some(number)) => number.into(),
            _ => number.to_string().into(),
        },
        Packed::F32(number) => of_float(number.into()),
        Packed::F64(number) => of_float(number),
        Packed::String(text) => match text.as_str() {
            Some(text) => text.into(),
            None => of_bytes(text.as_bytes()),
        },
        Packed::Binary(bytes) => of_bytes(&bytes),
        Packed::Array(values) => values.into_iter().map(of_packed).collect(),
        Packed::Map(pairs) => {
            let name = |key: &Packed| key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            let pairs: Map<_, _> = pairs
                .into_iter()
                .map(|(key, value)| (name(&key), of_packed(value)))
                .collect();
            pairs.into()
        }
        Packed::Ext(kind, bytes) => json!({ "extension": kind, "bytes": hex(&bytes) }),
    }
}

fn of_element(element: Element<'_>) -> Value {
    match element {
        Element::Nil => Value::Null,
        Element::Bytes(bytes) => of_bytes(&bytes),
        Element::String(text) => text.into_owned().into(),
        Element::Tuple(elements) => elements.into_iter().map(of_element).collect(),
        Element::Int(number) => number.into(),
        Element::Float(number) => of_float(number.into()),
        Element::Double(number) => of_float(number),
        Element::Bool(value) => value.into(),
        Element::Versionstamp(stamp) => json!({ "versionstamp": hex(stamp.as_bytes()) }),
        // Features that other crates turn on add kinds of elements.
        #[allow(unreachable_patterns, reason = "in a build without those features")]
        other => format!("{other:?}").into(),
    }
}

/// JSON has no numbers that are not finite.
fn of_float(number: f64) -> Value {
    Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}

fn of_bytes(bytes: &[u8]) -> Value {
    json!({ "bytes": hex(bytes) })
}

fn to_packed(value: &Value) -> Packed {
    match value {
        Value::Null => Packed::Nil,
        Value::Bool(value) => Packed::Boolean(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => number.into(),
            (_, Some(number), _) => number.into(),
            (_, _, number) => Packed::F64(number.unwrap_or_default()),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(values) => Packed::Array(values.iter().map(to_packed).collect()),
        Value::Object(pairs) => {
            let pair = |(key, value): (&String, &Value)| (key.as_str().into(), to_packed(value));
            Packed::Map(pairs.iter().map(pair).collect())
        }
    }
}

fn to_tuple(value: &Value) -> Result<Bytes, String> {
    fn element(value: &Value) -> Result<Element<'_>, String> {
        Ok(match value {
            Value::Null => Element::Nil,
            Value::Bool(value) => Element::Bool(*value),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Element::Int(number),
                None => Element::Double(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Element::String(text.into()),
            Value::Array(values) => {
                let elements: Result<_, String> = values.iter().map(element).collect();
                Element::Tuple(elements?)
            }
            Value::Object(_) => return Err("a tuple has no objects".to_owned()),
        })
    }
    let elements = match element(value)? {
        Element::Tuple(elements) => elements,
        single => vec![single],
    };
    Ok(export_queue::keyspace::tuple::pack(&elements).into())
}

#[cfg(test)]
mod tests {
    use export_queue::keyspace::codec::{Codec, Json, MessagePack, Tuple};

    use super::*;

    fn encoded<T, C: Codec<T>>(codec: C, value: T) -> Bytes {
        let mut bytes = Vec::new();
        codec.encode(&value, &mut bytes).unwrap();
        bytes.into()
    }

    #[test]
    fn what_the_codecs_of_keyspace_write_is_decoded() {
        let pairs = || vec![("a".to_owned(), 1_u64), ("b".to_owned(), u64::MAX)];
        let expected = json!([["a", 1], ["b", u64::MAX]]);
        let table = [
            (
                "MessagePack",
                encoded(MessagePack, pairs()),
                expected.clone(),
            ),
            ("Json", encoded(Json, pairs()), expected),
            (
                "Tuple",
                encoded(Tuple, ("a".to_owned(), 1, 1.5)),
                json!(["a", 1, 1.5]),
            ),
            ("Raw", Bytes::from("text\n"), json!("text\n")),
        ];
        for (codec, bytes, expected) in table {
            let payload = decode(codec, &bytes);
            assert_eq!(payload.value, Some(expected), "{codec}");
            assert_eq!((payload.hex, payload.problem), (None, None));
            assert_eq!(payload.bytes, bytes.len());
        }
    }

    #[test]
    fn what_does_not_decode_is_shown_in_digits_with_the_reason() {
        let deep = vec![0x91; 100_000];
        let table: [(&str, &[u8], &str); 6] = [
            ("MessagePack", b"\xa5ab", "expected MessagePack"),
            ("MessagePack", b"\x01\x02", "1 bytes left over"),
            ("MessagePack", &deep, "expected MessagePack"),
            ("Json", b"{", "EOF"),
            ("Raw", b"\xff", "not UTF-8"),
            ("Sealed", b"ab", "does not describe itself"),
        ];
        for (codec, bytes, reason) in table {
            let payload = decode(codec, &Bytes::copy_from_slice(bytes));
            assert_eq!(payload.hex, Some(hex(bytes)));
            let problem = payload.problem.unwrap();
            assert!(problem.contains(reason), "{problem}");
        }
    }

    #[test]
    fn what_an_operator_types_has_the_bytes_of_the_codec() {
        let word = "ada".to_owned();
        assert_eq!(
            encode("MessagePack", "ada").unwrap(),
            encoded(MessagePack, word.clone())
        );
        assert_eq!(encode("Json", "ada").unwrap(), encoded(Json, word.clone()));
        assert_eq!(encode("Tuple", "ada").unwrap(), encoded(Tuple, word));
        assert_eq!(
            encode("MessagePack", "300").unwrap(),
            encoded(MessagePack, 300_u32)
        );
        assert_eq!(
            encode("MessagePack", "-1").unwrap(),
            encoded(MessagePack, -1)
        );
        assert_eq!(
            encode("Tuple", r#"["a", 7]"#).unwrap(),
            encoded(Tuple, ("a".to_owned(), 7))
        );
        assert_eq!(encode("Raw", "a b").unwrap(), "a b");
        assert_eq!(encode("Sealed", "0x01ff").unwrap(), &[1, 255][..]);
        assert!(encode("Sealed", "ada").is_err());
    }

    #[test]
    fn the_fields_of_a_typed_value_keep_their_order() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct UserDay {
            user: u32,
            day: u32,
        }
        let key = || UserDay { user: 1, day: 2 };
        let typed = r#"{ "user": 1, "day": 2 }"#;
        assert_eq!(encode("Json", typed).unwrap(), encoded(Json, key()));
        let packed = encoded(MessagePack, key());
        assert_eq!(encode("MessagePack", typed).unwrap(), packed);
        let shown = decode("MessagePack", &packed).value.unwrap();
        assert_eq!(shown.to_string(), r#"{"user":1,"day":2}"#);
    }
}
