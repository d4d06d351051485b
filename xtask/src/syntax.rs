//! Common queries on parsed Rust code: tests, attributes and lines of items.

use anyhow::{Context, Result};
use std::ops::RangeInclusive;
use std::path::Path;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, ImplItem, Item, Meta, Token};

/// Reads and parses a file.
pub(crate) fn read(path: &Path) -> Result<(String, syn::File)> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    Ok((text, file))
}

/// Returns whether these attributes exclude an item from an ordinary build: `#[test]`,
/// `#[cfg(test)]`, or a condition that includes it.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || path.is_ident("cfg")
                && (attribute.parse_args::<Meta>()).is_ok_and(|meta| needs_test(&meta))
    })
}

/// Returns whether a condition holds only in tests.
fn needs_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else {
        return condition.path().is_ident("test");
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let parts = parts.unwrap_or_default();
    if list.path.is_ident("all") {
        parts.iter().any(needs_test)
    } else {
        list.path.is_ident("any") && parts.iter().all(needs_test)
    }
}

/// Returns the attributes of an item of a module.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item of an implementation.
pub(crate) fn impl_attributes(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the line numbers of a piece of syntax, starting at 1.
pub(crate) fn lines(piece: &impl Spanned) -> RangeInclusive<usize> {
    let span = piece.span();
    span.start().line..=span.end().line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_include_test_are_tests() {
        let is = |text: &str| is_test(attributes(&syn::parse_str::<Item>(text).unwrap()));
        assert!(is("#[cfg(test)] mod a;"));
        assert!(is("#[test] fn a() {}"));
        assert!(is("#[cfg(all(test, loom))] mod a;"));
        assert!(is("#[cfg(any(test, all(test, loom)))] mod a;"));
        assert!(!is("#[cfg(any(test, fuzzing))] mod a;"));
        assert!(!is("#[cfg(not(test))] mod a;"));
        assert!(!is("#[cfg(feature = \"test\")] mod a;"));
        assert!(!is("#[derive(Debug)] struct A;"));
    }
}
