//! Checks that type names are unique in a crate.

use crate::workspace::Crate;
use crate::{modules, syntax};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Ident, Item, ItemMod};

/// The place of a type's definition: the file with the line, and the scope within the crate.
struct Place {
    shown: String,
    scope: String,
}

/// Returns the type names that a library or a program of the crate defines in several places.
pub(super) fn violations(root: &Path, found: &Crate) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for target in &found.targets {
        let mut types = Types::default();
        for (path, file) in modules::files(target)? {
            let path = path.strip_prefix(root).unwrap_or(&path);
            types.scope = vec![path.display().to_string()];
            types.visit_file(&file);
        }
        for (name, places) in &types.places {
            let shown: Vec<&str> = places.iter().map(|place| place.shown.as_str()).collect();
            if let [first, others @ ..] = shown.as_slice()
                && !others.is_empty()
            {
                let (others, count) = (others.join(" "), shown.len());
                let package = &found.name;
                violations.push(format!(
                    "{first}: type {name} is defined {count} times in {package}; also {others}"
                ));
            }
        }
    }
    Ok(violations)
}

#[derive(Default)]
struct Types {
    /// The current file and inline modules.
    scope: Vec<String>,
    places: BTreeMap<String, Vec<Place>>,
}

impl Types {
    fn define(&mut self, name: &Ident) {
        let place = Place {
            shown: format!("{}:{}", self.scope[0], syntax::lines(name).start()),
            scope: self.scope.join("::"),
        };
        let places = self.places.entry(name.to_string()).or_default();
        // Two definitions in one scope are alternatives for different `cfg` conditions.
        if places.iter().all(|other| other.scope != place.scope) {
            places.push(place);
        }
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        if syntax::is_test(syntax::attributes(item)) {
            return;
        }
        match item {
            Item::Enum(item) => self.define(&item.ident),
            Item::Struct(item) => self.define(&item.ident),
            Item::Trait(item) => self.define(&item.ident),
            Item::Type(item) => self.define(&item.ident),
            Item::Union(item) => self.define(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.scope.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.scope.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_two_meanings_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let lib = "mod a;\nmod b { pub trait State {} }\nfn f() { struct Inner; }\n\
                   #[cfg(test)]\nstruct Other;\n#[cfg(loom)]\ntype Once = u8;\n\
                   #[cfg(not(loom))]\ntype Once = u16;\n";
        let target = write("lib.rs", lib);
        write("a.rs", "enum State {}\n\nstruct Other;\ntype Inner = u8;\n");
        let found = Crate {
            name: "planted".to_owned(),
            root: folder.path().to_path_buf(),
            targets: vec![target],
            inside: Vec::new(),
            outside: Vec::new(),
        };
        assert_eq!(
            violations(folder.path(), &found).unwrap(),
            [
                "lib.rs:3: type Inner is defined 2 times in planted; also a.rs:4",
                "lib.rs:2: type State is defined 2 times in planted; also a.rs:1",
            ]
        );
    }
}
