//! Resolves a path to the module that defines the named item, through imports and re-exports.

use super::tree::{Meaning, ModuleId, Tree};
use std::collections::BTreeSet;

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Module(ModuleId),
    Item { module: ModuleId, name: String },
}

/// Names that are being resolved, to detect modules that import each other by globs.
type Resolving = BTreeSet<(ModuleId, String)>;

impl Tree {
    /// Returns the possible targets of `path` as written in `module`, or none if it leads out of
    /// the crate.
    ///
    /// A name can refer to both a module and a function. Both are then returned.
    pub(super) fn resolve(&self, module: ModuleId, path: &[String]) -> Vec<Target> {
        self.follow(module, path, &mut Resolving::new())
    }

    /// Returns the module that defines the `macro_rules!` macro that `module` calls by its bare
    /// name.
    pub(super) fn textual_macro(&self, module: ModuleId, name: &str) -> Option<ModuleId> {
        let mut scope = Some(module);
        while let Some(module) = scope {
            if self.modules[module].macros.contains(name) {
                return Some(module);
            }
            scope = self.modules[module].parent;
        }
        None
    }

    /// Returns whether `module` is `above` or one of its descendants.
    pub(super) fn lies_in(&self, module: ModuleId, above: ModuleId) -> bool {
        let parent = self.modules[module].parent;
        module == above || parent.is_some_and(|parent| self.lies_in(parent, above))
    }

    fn follow(&self, from: ModuleId, path: &[String], asked: &mut Resolving) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else {
            return Vec::new();
        };
        let mut rest = rest;
        let mut targets = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(from)],
            "super" => self.parent(from),
            name => self.look_up(from, name, from, asked),
        };
        while let Some((name, further)) = rest.split_first() {
            targets = (targets.into_iter())
                .flat_map(|target| self.step(target, name, from, asked))
                .collect();
            rest = further;
        }
        targets
    }

    fn parent(&self, module: ModuleId) -> Vec<Target> {
        let parent = self.modules[module].parent;
        parent.map(Target::Module).into_iter().collect()
    }

    fn step(&self, at: Target, name: &str, viewer: ModuleId, asked: &mut Resolving) -> Vec<Target> {
        match at {
            Target::Module(module) if name == "super" => self.parent(module),
            Target::Module(module) => {
                let again = asked.contains(&(module, name.to_owned()));
                let found = self.look_up(module, name, viewer, asked);
                // The code compiles, so a macro in this module must have defined the name.
                let made = Target::Item {
                    module,
                    name: name.to_owned(),
                };
                if found.is_empty() && !again && !self.binds_name(module, name) {
                    vec![made]
                } else {
                    found
                }
            }
            // The path continues to a variant or an associated function of the item.
            item => vec![item],
        }
    }

    /// Returns whether `name` is bound in the module, even by an import from another crate.
    fn binds_name(&self, module: ModuleId, name: &str) -> bool {
        self.modules[module].names.contains_key(name)
    }

    fn look_up(
        &self,
        module: ModuleId,
        name: &str,
        viewer: ModuleId,
        asked: &mut Resolving,
    ) -> Vec<Target> {
        if !asked.insert((module, name.to_owned())) {
            return Vec::new();
        }
        let here = &self.modules[module];
        let inside = self.lies_in(viewer, module);
        let mut found = Vec::new();
        for entry in here.names.get(name).into_iter().flatten() {
            if !(entry.public || inside) {
                continue;
            }
            match &entry.means {
                Meaning::Module(id) => found.push(Target::Module(*id)),
                Meaning::Item => found.push(Target::Item {
                    module,
                    name: name.to_owned(),
                }),
                Meaning::Import(path) => found.extend(self.follow(module, path, asked)),
            }
        }
        if found.is_empty() {
            for glob in &here.globs {
                for target in self.follow(module, glob, asked) {
                    if let Target::Module(opened) = target {
                        found.extend(self.look_up(opened, name, module, asked));
                    }
                }
            }
        }
        asked.remove(&(module, name.to_owned()));
        found.dedup();
        found
    }
}
