//! Records in words, and when two are the same. Must not read from anywhere.

use std::fmt::Write;

use bytes::Bytes;

use crate::wire::records::Record;

/// Characters of a key or value that are shown.
const SHOWN_CHARS: usize = 40;

/// Bytes of a key or value that is not text that are shown.
const SHOWN_BYTES: usize = 8;

/// A record in short words for a person: key, value, timestamp in milliseconds, how many headers.
pub fn describe(record: &Record) -> String {
    format!(
        "key {}, value {}, timestamp {}, {} header{}",
        content(record.key.as_ref()),
        content(record.value.as_ref()),
        record.timestamp,
        record.headers.len(),
        if record.headers.len() == 1 { "" } else { "s" },
    )
}

/// Text in quotes if it can be printed, else its first bytes; with length and CRC-32C where not all of it is shown.
fn content(bytes: Option<&Bytes>) -> String {
    let Some(bytes) = bytes else {
        return "null".to_owned();
    };
    let printable = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.chars().any(char::is_control));
    let mut words = match printable {
        Some(text) => match text.char_indices().nth(SHOWN_CHARS) {
            None => return format!("{text:?}"),
            Some((cut, _)) => format!("{:?}...", text.get(..cut).unwrap_or_default()),
        },
        None => {
            let mut hex = String::from("0x");
            for byte in bytes.iter().take(SHOWN_BYTES) {
                // Writing to a String cannot fail.
                write!(hex, "{byte:02x}").ok();
            }
            if bytes.len() > SHOWN_BYTES {
                hex.push_str("...");
            }
            hex
        }
    };
    write!(
        words,
        " ({} bytes, CRC {:08x})",
        bytes.len(),
        crc32c::crc32c(bytes)
    )
    .ok();
    words
}

/// True if a consumer cannot tell them apart: offset, timestamp, key, value, and headers in their order.
pub fn same(a: &Record, b: &Record) -> bool {
    a == b
}

/// What two records differ in, in words; nothing if they are the same.
pub fn differing_parts(a: &Record, b: &Record) -> Option<String> {
    let parts = [
        (a.offset == b.offset, "offset"),
        (a.key == b.key, "key"),
        (a.value == b.value, "value"),
        (a.timestamp == b.timestamp, "timestamp"),
        (a.headers == b.headers, "headers"),
    ];
    let names: Vec<_> = parts
        .into_iter()
        .filter(|(equal, _)| !equal)
        .map(|(_, name)| name)
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::records::Header;

    fn record(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> Record {
        Record {
            offset: 5,
            timestamp: 1_000,
            key: key.map(Bytes::from_static),
            value: value.map(Bytes::from_static),
            headers: Vec::new(),
        }
    }

    #[test]
    fn records_are_described_in_short_words() {
        for (key, value, words) in [
            (None, None, "key null, value null"),
            (
                Some(&b""[..]),
                Some(&b"a \"b\""[..]),
                r#"key "", value "a \"b\"""#,
            ),
            (
                Some("schlüssel".as_bytes()),
                Some(&[0, 255, 16][..]),
                r#"key "schlüssel", value 0x00ff10 (3 bytes, CRC "#,
            ),
            (
                Some(&b"two\nlines"[..]),
                Some(&b"0123456789012345678901234567890123456789x"[..]),
                "key 0x74776f0a6c696e65... (9 bytes, CRC ",
            ),
            (
                None,
                Some("üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü".as_bytes()),
                r#"value "üüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüüü"... (82 bytes, CRC "#,
            ),
        ] {
            let found = describe(&record(key, value));
            assert!(found.contains(words), "{found}");
            assert!(found.ends_with(", timestamp 1000, 0 headers"), "{found}");
        }
    }

    #[test]
    fn order_and_null_of_headers_count() {
        let header = |key: &'static str, value: Option<&'static str>| Header {
            key: Bytes::from_static(key.as_bytes()),
            value: value.map(|value| Bytes::from_static(value.as_bytes())),
        };
        let with = |headers: Vec<Header>| Record {
            headers,
            ..record(Some(b"k"), Some(b"v"))
        };
        let base = with(vec![header("a", None), header("b", Some(""))]);
        let cases = [
            (base.clone(), None),
            (
                with(vec![header("b", Some("")), header("a", None)]),
                Some("headers"),
            ),
            (
                with(vec![header("a", Some("")), header("b", Some(""))]),
                Some("headers"),
            ),
            (
                Record {
                    timestamp: 1,
                    value: None,
                    ..base.clone()
                },
                Some("value, timestamp"),
            ),
            (
                Record {
                    offset: 6,
                    ..base.clone()
                },
                Some("offset"),
            ),
        ];
        for (other, parts) in cases {
            assert_eq!(differing_parts(&base, &other).as_deref(), parts);
            assert_eq!(same(&base, &other), parts.is_none());
        }
    }
}
