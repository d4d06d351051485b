//! Finds the files that name items of other files in a path or an import.

use super::tree::{self, ModuleId, Tree};
use super::{resolve::Target, tree::is_public};
use crate::syntax;
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprCall, ImplItem, ImplItemFn, Item, ItemFn, ItemMod, ItemUse};
use syn::{ConstParam, Macro, PatIdent, TypeParam, VisRestricted};

/// For each pair of files, the line and name of each use by which the first file depends on the
/// second.
pub(super) type Dependencies = BTreeMap<(usize, usize), BTreeSet<(usize, String)>>;

/// Returns the dependencies between the files of a crate.
pub(super) fn dependencies(tree: &Tree) -> Dependencies {
    let mut reader = Reader {
        tree,
        module: 0,
        file: 0,
        bound: Vec::new(),
        dependencies: Dependencies::new(),
    };
    for (number, file) in tree.files.iter().enumerate() {
        (reader.file, reader.module) = (number, file.module);
        reader.visit_file(&file.syntax);
    }
    reader.dependencies
}

struct Reader<'a> {
    tree: &'a Tree,
    module: ModuleId,
    file: usize,
    /// Names of variables and generic parameters that enclosing items bind.
    bound: Vec<BTreeSet<String>>,
    dependencies: Dependencies,
}

impl Reader<'_> {
    fn name(&mut self, path: &[String], line: usize) {
        let bare = path.len() == 1;
        if bare && (path[0] == "Self" || self.bound.iter().any(|bound| bound.contains(&path[0]))) {
            return;
        }
        for target in self.tree.resolve(self.module, path) {
            self.tie(target, line);
        }
    }

    fn tie(&mut self, target: Target, line: usize) {
        if let Target::Item { module, name } = target {
            let to = self.tree.modules[module].file;
            if to != self.file {
                let names = self.dependencies.entry((self.file, to)).or_default();
                names.insert((line, name));
            }
        }
    }

    /// Records the call of a macro by its bare name.
    fn name_macro(&mut self, name: &str, line: usize) {
        if let Some(module) = self.tree.textual_macro(self.module, name) {
            let name = format!("{name}!");
            self.tie(Target::Item { module, name }, line);
        }
    }

    /// Finds paths in a macro's arguments, because `syn` does not parse them.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let field = at > 0 && is_punct(&tokens[at - 1], '.');
                    let mut path = vec![first.to_string()];
                    while let Some(next) = segment(&tokens[at + 1..]) {
                        path.push(next.to_string());
                        at += 3;
                    }
                    if !field && (path.len() > 1 || is_item(first, tokens.get(at + 1))) {
                        self.name(&path, first.span().start().line);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Returns the identifier after `::`.
fn segment(tokens: &[TokenTree]) -> Option<&Ident> {
    match tokens {
        [first, second, TokenTree::Ident(name), ..] => {
            (is_punct(first, ':') && is_punct(second, ':')).then_some(name)
        }
        _ => None,
    }
}

/// Returns whether a single word probably names an item: a type, a constant or a called function.
fn is_item(word: &Ident, next: Option<&TokenTree>) -> bool {
    word.to_string().starts_with(char::is_uppercase)
        || matches!(next, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if syntax::is_test(syntax::attributes(item)) {
            return;
        }
        if matches!(item, Item::Mod(_)) {
            return visit::visit_item(self, item);
        }
        let mut generics = Generics(BTreeSet::new());
        generics.visit_item(item);
        self.bound.push(generics.0);
        visit::visit_item(self, item);
        self.bound.pop();
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !syntax::is_test(syntax::impl_attributes(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        let mut variables = Variables(BTreeSet::new());
        variables.visit_item_fn(item);
        self.bound.push(variables.0);
        visit::visit_item_fn(self, item);
        self.bound.pop();
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        let mut variables = Variables(BTreeSet::new());
        variables.visit_impl_item_fn(item);
        self.bound.push(variables.0);
        visit::visit_impl_item_fn(self, item);
        self.bound.pop();
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let inner = self.tree.resolve(self.module, &[item.ident.to_string()]);
        let module = inner.into_iter().find_map(|target| match target {
            Target::Module(module) => Some(module),
            Target::Item { .. } => None,
        });
        if let (Some(module), Some((_, items))) = (module, &item.content) {
            let outer = std::mem::replace(&mut self.module, module);
            items.iter().for_each(|item| self.visit_item(item));
            self.module = outer;
        }
    }

    /// Ignores re-exports of items of child modules, because they create no dependency on these
    /// modules.
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for leaf in tree::leaves(item) {
            if leaf.name.is_none() {
                continue;
            }
            for target in self.tree.resolve(self.module, &leaf.path) {
                let below = match target {
                    Target::Module(module) | Target::Item { module, .. } => {
                        self.tree.lies_in(module, self.module)
                    }
                };
                if !(is_public(&item.vis) && below) {
                    self.tie(target, leaf.line);
                }
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|part| part.ident.to_string());
            let line = *syntax::lines(path).start();
            self.name(&names.collect::<Vec<_>>(), line);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        // A function may have the name of a variable: `let frame = frame(…)`.
        if let Expr::Path(called) = &*call.func
            && let Some(name) = called.path.get_ident()
        {
            let bound = std::mem::take(&mut self.bound);
            self.name(&[name.to_string()], name.span().start().line);
            self.bound = bound;
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        match call.path.get_ident() {
            Some(name) => self.name_macro(&name.to_string(), name.span().start().line),
            None => self.visit_path(&call.path),
        }
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

/// The variables of a function.
struct Variables(BTreeSet<String>);

impl<'ast> Visit<'ast> for Variables {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        let name = pattern.ident.to_string();
        // A capitalized name is a constant or a variant.
        if !name.starts_with(char::is_uppercase) {
            self.0.insert(name);
        }
        visit::visit_pat_ident(self, pattern);
    }
}

/// The generic parameters of an item and of the items inside it.
struct Generics(BTreeSet<String>);

impl<'ast> Visit<'ast> for Generics {
    fn visit_type_param(&mut self, parameter: &'ast TypeParam) {
        self.0.insert(parameter.ident.to_string());
        visit::visit_type_param(self, parameter);
    }

    fn visit_const_param(&mut self, parameter: &'ast ConstParam) {
        self.0.insert(parameter.ident.to_string());
        visit::visit_const_param(self, parameter);
    }
}
