//! What stands behind a key, whatever it is, so that each check can say in plain words what does not fit. The parser's own
//! words for it are those of the programming language.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// A whole number that is not negative.
    Number(u64),
    /// One word, or anything else in one piece.
    Word(String),
    /// Several values.
    List(Vec<Found>),
    /// Nothing, or `null`.
    Empty,
    /// Something that no key takes but those that are not checked here, as it is to be shown.
    Other(String),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Number(n) => write!(f, "{n}"),
            Found::Word(word) => write!(f, "'{word}'"),
            Found::List(_) => f.write_str("a list"),
            Found::Empty => f.write_str("nothing"),
            Found::Other(shown) => f.write_str(shown),
        }
    }
}

impl Found {
    /// The sentence for a value that is not one of those `wanted`.
    pub fn misfit(&self, wanted: impl fmt::Display) -> String {
        match self {
            Found::Empty => format!("is empty: write {wanted}"),
            other => format!("{other} does not fit: write {wanted}"),
        }
    }
}

/// Reads what is there and has it checked, inside the visitor: there the parser still knows key and line.
pub(super) fn read<'de, D, T>(
    d: D,
    check: impl FnOnce(Found) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    d.deserialize_any(Checked(check))
}

impl<'de> Deserialize<'de> for Found {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Found, D::Error> {
        read(d, Ok)
    }
}

struct Checked<F>(F);

impl<T, F: FnOnce(Found) -> Result<T, String>> Checked<F> {
    fn check<E: Error>(self, found: Found) -> Result<T, E> {
        (self.0)(found).map_err(E::custom)
    }

    fn other<E: Error>(self, shown: impl fmt::Display) -> Result<T, E> {
        self.check(Found::Other(shown.to_string()))
    }
}

impl<'de, T, F: FnOnce(Found) -> Result<T, String>> Visitor<'de> for Checked<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain value")
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
        self.check(Found::Number(n))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<T, E> {
        self.check(Found::Word(word.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        self.check(Found::Empty)
    }

    fn visit_none<E: Error>(self) -> Result<T, E> {
        self.check(Found::Empty)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        self.check(Found::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.other("a value with keys of its own")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        self.other(value)
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
        self.other(n)
    }

    fn visit_i128<E: Error>(self, n: i128) -> Result<T, E> {
        self.other(n)
    }

    fn visit_u128<E: Error>(self, n: u128) -> Result<T, E> {
        self.other(n)
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<T, E> {
        self.other(real(n))
    }
}

/// As YAML has it, and short.
pub(super) fn real(n: f64) -> String {
    match n {
        n if n.is_nan() => ".nan".into(),
        n if n.is_infinite() => if n > 0.0 { ".inf" } else { "-.inf" }.into(),
        n if n != 0.0 && !(1e-4..1e15).contains(&n.abs()) => format!("{n:e}"),
        n => n.to_string(),
    }
}
