//! The modules of one crate, and the names in each of them.

use crate::syntax;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Ident, Item, ItemMod, ItemUse, UseTree, Visibility};

/// A module, identified by its index in [`Tree::modules`].
pub(super) type ModuleId = usize;

/// A library or a program, without its tests.
#[derive(Default)]
pub(super) struct Tree {
    /// All modules; the first is the crate's root.
    pub(super) modules: Vec<Scope>,
    pub(super) files: Vec<File>,
}

/// A file of the crate.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) syntax: syn::File,
    /// The module that the file contains.
    pub(super) module: ModuleId,
}

/// A module: a file, or an inline module.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) parent: Option<ModuleId>,
    /// The index of the module's file in [`Tree::files`].
    pub(super) file: usize,
    pub(super) names: BTreeMap<String, Vec<Name>>,
    /// The targets of `use path::*`.
    pub(super) globs: Vec<Vec<String>>,
    /// Names of `macro_rules!` macros, which child modules see without a path.
    pub(super) macros: BTreeSet<String>,
}

/// A name in a module.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) means: Meaning,
    /// Whether the name is visible outside of the module.
    pub(super) public: bool,
}

/// The meaning of a name in a module.
#[derive(Debug)]
pub(super) enum Meaning {
    Module(ModuleId),
    /// An item that is defined here.
    Item,
    /// An item that is defined at the target of this path.
    Import(Vec<String>),
}

/// One path of a `use` item.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) path: Vec<String>,
    /// The name that the path binds, or `None` for a glob.
    pub(super) name: Option<String>,
    pub(super) line: usize,
}

impl Tree {
    /// Reads the crate whose root is `file`.
    pub(super) fn read(file: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        let beside = file.parent().context("a file without a folder")?;
        tree.add_file(None, file.to_path_buf(), beside)?;
        Ok(tree)
    }

    /// Reads a file as a module, whose children have their files in `folder`.
    fn add_file(
        &mut self,
        parent: Option<ModuleId>,
        path: PathBuf,
        folder: &Path,
    ) -> Result<ModuleId> {
        let (_, syntax) = syntax::read(&path)?;
        let items = syntax.items.clone();
        let (file, module) = (self.files.len(), self.modules.len());
        self.files.push(File {
            path,
            syntax,
            module,
        });
        self.modules.push(Scope {
            parent,
            file,
            ..Scope::default()
        });
        self.add_items(module, &items, folder)?;
        Ok(module)
    }

    fn add_items(&mut self, module: ModuleId, items: &[Item], folder: &Path) -> Result<()> {
        for item in items {
            if syntax::is_test(syntax::attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(child) => self.add_module(module, child, folder)?,
                Item::Use(import) => self.add_imports(module, import),
                Item::Macro(made) => {
                    if let Some(name) = &made.ident {
                        self.modules[module].macros.insert(name.to_string());
                        self.define(module, name, true, Meaning::Item);
                    }
                }
                other => {
                    if let Some((name, visibility)) = defined(other) {
                        self.define(module, name, is_public(visibility), Meaning::Item);
                    }
                    let mut inner = InnerImports(Vec::new());
                    inner.visit_item(other);
                    (inner.0.iter()).for_each(|import| self.add_imports(module, import));
                }
            }
        }
        Ok(())
    }

    fn add_module(&mut self, parent: ModuleId, item: &ItemMod, folder: &Path) -> Result<()> {
        let name = item.ident.to_string();
        let below = folder.join(&name);
        let module = if let Some((_, items)) = &item.content {
            let module = self.modules.len();
            self.modules.push(Scope {
                parent: Some(parent),
                file: self.modules[parent].file,
                ..Scope::default()
            });
            self.add_items(module, items, &below)?;
            module
        } else {
            let beside = folder.join(format!("{name}.rs"));
            let within = below.join("mod.rs");
            let file = if beside.exists() { beside } else { within };
            self.add_file(Some(parent), file, &below)?
        };
        self.define(
            parent,
            &item.ident,
            is_public(&item.vis),
            Meaning::Module(module),
        );
        Ok(())
    }

    fn define(&mut self, module: ModuleId, name: &Ident, public: bool, means: Meaning) {
        let names = &mut self.modules[module].names;
        let name = names.entry(name.to_string()).or_default();
        name.push(Name { means, public });
    }

    fn add_imports(&mut self, module: ModuleId, item: &ItemUse) {
        let public = is_public(&item.vis);
        for leaf in leaves(item) {
            let module = &mut self.modules[module];
            match leaf.name {
                Some(name) => module.names.entry(name).or_default().push(Name {
                    means: Meaning::Import(leaf.path),
                    public,
                }),
                None => module.globs.push(leaf.path),
            }
        }
    }
}

pub(super) fn is_public(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}

/// Returns the name that an item defines.
fn defined(item: &Item) -> Option<(&Ident, &Visibility)> {
    Some(match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::TraitAlias(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Union(item) => (&item.ident, &item.vis),
        _ => return None,
    })
}

/// Returns the paths of a `use` item, or none if the item certainly names another crate.
pub(super) fn leaves(item: &ItemUse) -> Vec<Leaf> {
    let mut found = Vec::new();
    if item.leading_colon.is_none() {
        add_leaves(&item.tree, &mut Vec::new(), &mut found);
    }
    found
}

fn add_leaves(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<Leaf>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            add_leaves(&part.tree, path, found);
            path.pop();
        }
        UseTree::Group(group) => (group.items.iter()).for_each(|tree| {
            add_leaves(tree, path, found);
        }),
        UseTree::Name(name) => found.push(leaf(path, &name.ident, None)),
        UseTree::Rename(name) => found.push(leaf(path, &name.ident, Some(&name.rename))),
        UseTree::Glob(glob) => found.push(Leaf {
            path: path.clone(),
            name: None,
            line: *syntax::lines(glob).start(),
        }),
    }
}

/// Returns the leaf for `a::b`, `a::b as c`, or `a::{self}`, which means `a`.
fn leaf(path: &[String], name: &Ident, rename: Option<&Ident>) -> Leaf {
    let mut path = path.to_vec();
    let line = name.span().start().line;
    if name != "self" {
        path.push(name.to_string());
    }
    let bound = rename.map(Ident::to_string).or(path.last().cloned());
    Leaf {
        path,
        name: Some(bound.unwrap_or_default()),
        line,
    }
}

/// The `use` items in the bodies of functions, which are treated as items of the module.
struct InnerImports(Vec<ItemUse>);

impl<'ast> Visit<'ast> for InnerImports {
    fn visit_item(&mut self, item: &'ast Item) {
        if !syntax::is_test(syntax::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.0.push(item.clone());
    }
}
