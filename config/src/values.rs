//! Reads values of a TOML table as serde's types. The error of a value is its remedy.

use crate::keywords::Remedy;
use crate::table::TomlTable;
use serde::de::value::{StrDeserializer, UnitDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::slice;
use toml::Spanned;
use toml::de::DeValue;

/// Positions of the values that could not be read.
type Rejected = RefCell<BTreeSet<usize>>;

impl TomlTable<'_, '_> {
    /// Reads a key.
    pub(crate) fn value<T: DeserializeOwned>(&self, key: &'static str) -> Option<T> {
        self.retry(|rejected| {
            let value = TomlValue::of(self, key, rejected)?;
            value.read(PhantomData).ok()
        })
    }

    /// Reads the keys that are the fields of a structure. A key that is missing or cannot be read
    /// keeps its default.
    pub(crate) fn fields<T: DeserializeOwned + Default>(&self) -> T {
        self.fields_except(&[])
    }

    /// Reads the keys that are the fields of a structure, except some.
    pub(crate) fn fields_except<T: DeserializeOwned + Default>(&self, except: &[&str]) -> T {
        let read = |rejected: &Rejected| {
            let fields = Fields {
                table: self,
                except,
                rejected,
                rest: [].iter(),
                next: None,
            };
            T::deserialize(fields).ok()
        };
        self.retry(read).unwrap_or_default()
    }

    /// Repeats `read`, which rejects a value when it fails, until it succeeds without the rejected
    /// values.
    fn retry<T>(&self, read: impl Fn(&Rejected) -> Option<T>) -> Option<T> {
        let rejected = Rejected::default();
        loop {
            let before = rejected.borrow().len();
            let value = read(&rejected);
            if value.is_some() || rejected.borrow().len() == before {
                return value;
            }
        }
    }
}

/// The keys of a table that are the fields of a structure.
struct Fields<'v, 'r, 't> {
    table: &'v TomlTable<'r, 't>,
    except: &'v [&'v str],
    rejected: &'v Rejected,
    rest: slice::Iter<'static, &'static str>,
    next: Option<TomlValue<'v, 'r, 't>>,
}

impl<'de> Deserializer<'de> for Fields<'_, '_, '_> {
    type Error = Remedy;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Remedy> {
        visitor.visit_map(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Remedy> {
        let rest = fields.iter();
        visitor.visit_map(Self { rest, ..self })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Fields<'_, '_, '_> {
    type Error = Remedy;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Remedy> {
        let mut keys = self.rest.by_ref().filter(|key| !self.except.contains(key));
        self.next = keys.find_map(|key| TomlValue::of(self.table, key, self.rejected));
        let key = self.next.map(|value| StrDeserializer::new(value.key));
        key.map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Remedy> {
        // Called only after a key was found.
        let value = self.next.ok_or_else(|| Remedy::custom("write a value"))?;
        value.read(seed)
    }
}

/// The value of a key, or an item of the list that is its value.
#[derive(Clone, Copy)]
struct TomlValue<'v, 'r, 't> {
    table: &'v TomlTable<'r, 't>,
    key: &'static str,
    value: &'t Spanned<DeValue<'t>>,
    rejected: &'v Rejected,
    is_item: bool,
}

impl<'v, 'r, 't> TomlValue<'v, 'r, 't> {
    /// Returns the value of a key, unless it is missing or rejected.
    fn of(table: &'v TomlTable<'r, 't>, key: &'static str, rejected: &'v Rejected) -> Option<Self> {
        let value = Self {
            table,
            key,
            value: table.get(key)?,
            rejected,
            is_item: false,
        };
        (!value.is_rejected()).then_some(value)
    }

    fn is_rejected(&self) -> bool {
        self.rejected.borrow().contains(&self.value.span().start)
    }

    /// Reads the value. On an error, reports and rejects it, unless one of its items is the cause.
    fn read<'de, S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Remedy> {
        let before = self.rejected.borrow().len();
        seed.deserialize(self).map_err(|remedy| {
            let remedy = match self.is_item {
                true => remedy.of_list(),
                false => remedy,
            };
            if self.rejected.borrow().len() == before {
                self.table.wrong(self.key, self.value, remedy.to_string());
                self.rejected.borrow_mut().insert(self.value.span().start);
            }
            remedy
        })
    }
}

impl<'de> Deserializer<'de> for TomlValue<'_, '_, '_> {
    type Error = Remedy;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Remedy> {
        match self.value.get_ref() {
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Boolean(flag) => visitor.visit_bool(*flag),
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => visitor.visit_unit(),
            },
            DeValue::Integer(number) => {
                let number = i128::from_str_radix(number.as_str(), number.radix());
                let number = number.unwrap_or(i128::MAX);
                match (u64::try_from(number), i64::try_from(number)) {
                    (Ok(number), _) => visitor.visit_u64(number),
                    (_, Ok(number)) => visitor.visit_i64(number),
                    _ => visitor.visit_unit(),
                }
            }
            // No type accepts a unit, so the error names the expected type.
            _ => visitor.visit_unit(),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Remedy> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Remedy> {
        let list = self.value.get_ref().as_array();
        visitor.visit_seq(Items {
            of: self,
            items: list.map(|list| list.iter()),
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Remedy> {
        let word = self.table.current_word(self.key, self.value);
        visitor.visit_enum(word.into_deserializer())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map struct identifier ignored_any
    }
}

/// The items of a list.
struct Items<'v, 'r, 't> {
    of: TomlValue<'v, 'r, 't>,
    /// `None` if the value is not a list.
    items: Option<slice::Iter<'t, Spanned<DeValue<'t>>>>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_, '_> {
    type Error = Remedy;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Remedy> {
        let Some(items) = &mut self.items else {
            // No type accepts a unit, so the error names the expected type of an item.
            let item = seed.deserialize(UnitDeserializer::<Remedy>::new());
            let wrong = item.err().map(Remedy::of_list);
            return Err(wrong.unwrap_or_else(|| Remedy::custom("write a list")));
        };
        let mut items = items.map(|value| TomlValue {
            value,
            is_item: true,
            ..self.of
        });
        let item = items.find(|item| !item.is_rejected());
        item.map(|item| item.read(seed)).transpose()
    }
}
